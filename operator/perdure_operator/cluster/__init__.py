"""The only door to Kubernetes.

protocol   the calls that the operator makes, and their errors
decode     strips API objects of what could not be parsed safely
kube       the protocol over kubernetes.aio
clock      the API server's time
election   elects one leader among the operator's replicas, with a Lease
member     the pod contract: builds a member's pod
memory     what this process remembers of a job
batching   independent calls, in bounded batches
read       the watch and live LISTs -> the Snapshot that `decide` reads
write      a Decision -> status, then the cluster's objects, then events
"""
