"""HTTPS that the operator serves itself: one short request a connection, each with a bearer token.

`connections` accepts, reads and answers within limits, and knows no endpoint. `certificate` makes what TLS needs,
`reviews` asks the API server about tokens. Used by `metrics` and `reports`.
"""
