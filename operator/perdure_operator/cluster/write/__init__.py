"""Carries out a Decision.

manifests            builds budgets, kept templates and events; pure
event_deduplication  which events to send; pure
admitted             checks what admission made of a member; pure
order                batches of writes, and which write depends on which; pure
writes               each kind of write: the request, and the effect of its answer
act                  status first, then the cluster's objects, then events
"""
