"""Where the parts of tensors lie, and who sends which part to whom. Pure: no torch, no I/O, and equal on all ranks.

`box` is a block of a tensor, `sharding` says which boxes a rank of a mesh holds, and `plan` makes the moves that bring
every destination what it lacks. Saves and live hand-overs use the same plan: what differs is who needs what.
"""
