"""What running members report: whom a token belongs to, which reports count, and what status shows of them.

`tokens` asks the API server whose token it is. `trust` and `progress` decide, and are pure. `heard` keeps the newest
report of each pod, `endpoint` answers, `channel` tells new pods where to report. Nothing is committed or deleted
because of a report. Only `loop` imports these.
"""
