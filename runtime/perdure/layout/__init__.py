"""Where the parts of tensors are, and which rank sends which part where. Pure: no torch, no I/O, and equal on all
ranks.

`box` is a block of a tensor, `sharding` says which boxes a rank of a mesh holds, and `plan` computes the moves that
bring every destination its missing boxes. `row_major` says where the elements of a box are among the bytes of a
larger one, `memory_order` in which order a tensor's dimensions lie in memory, and `messages` cuts and packs moves for a
link. Saves, loads and live hand-overs use the same plan for
different destinations.
"""
