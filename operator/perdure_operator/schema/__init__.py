"""What is generated from the models: the CRD and the reference pages, and the words both are made with.

cel        rules that the API server checks, in words that name the remedy; used by `api.spec`
pod        the fields of a pod, from the API server's OpenAPI document
template   the schema of spec.template: those fields and Perdure's rules
crd        the CustomResourceDefinition
docs       docs/reference.md
generated  prints, writes or compares the generated files
"""
