"""The only door to Kubernetes.

protocol   what the operator asks of a cluster, and how a cluster refuses
kube       the protocol over kubernetes.aio
election   one leader among the operator's replicas: a Lease
objects    the pods, budgets and events the operator creates; pure
views      raw objects -> the values `decide` reads; pure
cache      the newest raw object the watch or a LIST has told, and what was last seen of deleted pods
observe    cache and live LISTs -> Snapshot
act        Plan -> status write, cluster writes, events
"""
