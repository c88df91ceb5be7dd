"""From a Decision to writes.

manifests  the budgets, kept templates and events the operator creates; pure
news       which events are worth sending; pure
order      which writes go out together, and which rest on which; pure
writes     each kind of write: what is sent, and what its answer or refusal leaves
act        status first, then the cluster's objects, then events
"""
