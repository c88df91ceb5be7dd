"""The state of training in a store: the log of entries, and the commits it tells of.

log: who may write, what is committed. codec: values as typed JSON. save, load: collective over all ranks.
retention: what may be deleted. Only `save`, `load` and `codec` need torch.
"""
