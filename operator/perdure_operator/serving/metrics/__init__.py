"""What Prometheus reads of an operator: series of the jobs and of the operator itself, and the endpoint.

`jobs` and `operator` turn frozen values into series, and are pure. `access` asks the API server who may read them,
`server` answers. The operator's loop freezes the values; a thread makes the text.
Only `loop.operator` imports these, and only where metrics are on. `counted` alone is always there.
"""
