"""`kubectl perdure`: what a job does, and what a drain would do, for who looks at a cluster. It only reads.

Pure modules make a page of what was read; `reading` reads, `screen` draws, `command` is the command line.
"""
