"""What running members report: whom a token belongs to, which reports count, and what status shows of them.

`tokens` decides whose token it is, by its signature (`signatures`, with the keys of `published_keys`) or by asking the
API server. `trust` and `progress` decide, and are pure. `heard` keeps the newest report of each pod, and `endpoint`
answers. `channel` says where to report by a mounted Secret. Without one, the operator's own certificates are made as
`rotation` decides, and `keys_document` is how they are kept. Nothing is committed or deleted because of a report. Only
`loop` imports these.
"""
