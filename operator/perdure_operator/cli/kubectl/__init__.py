"""`kubectl perdure`: what a job does, and what a drain would do, for who looks at a cluster. Only `move`
and `checkpoint` write: the annotations by which users ask jobs for it.

Pure modules make a page of what was read; `reading` and `following` read, `screen` draws, `command` is the command
line.
"""
