"""From a Decision to writes.

manifests  the budgets, kept templates and events the operator creates; pure
news       which events are worth sending; pure
order      which writes go out together, and which rest on which; pure
act        status first, then the cluster's objects, then events
"""
