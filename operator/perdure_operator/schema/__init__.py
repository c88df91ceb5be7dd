"""What is generated from the models in `api`: the CRD and two pages of the documentation.

pod             the fields of a pod, from the API server's OpenAPI document
template        the schema of spec.template: those fields and Perdure's rules
crd             the CustomResourceDefinition
reference_page  docs/reference.md
signals_page    docs/signals.md
generated       prints, writes or compares the generated files
"""
