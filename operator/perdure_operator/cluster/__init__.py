"""The only door to Kubernetes.

protocol   what the operator asks of a cluster, and how a cluster refuses
decode     what the API server sends, made harmless
kube       the protocol over kubernetes.aio
clock      the API server's time
election   one leader among the operator's replicas: a Lease
member     the pod contract: a member's pod as it is created
memory     what this process remembers of a job
read       the watch and live LISTs -> the Snapshot that `decide` reads
write      a Decision -> status, then the cluster's objects, then events
"""
