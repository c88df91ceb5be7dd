"""The state of training in a store: the log of entries, and the commits it tells of.

checkpointer  the one object the session knows
log, entry, writer, opening, floor, audit   who may write, what is committed, what is wrong
stage, tensors, tree, codec   what a commit consists of: torch and values as bytes and text
upload, download, manifest    bytes into the store and out of it, verified by block: no torch
save, load                    all of it, all ranks together
retention, pins, history, inspect   what may be deleted; which commits there are; what a root holds
"""
