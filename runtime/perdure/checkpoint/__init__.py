"""Commits: their parts, and how their bytes get into the store and out of it.

checkpointer  the one object the session knows
opening, inherit, outlook   how a run begins: from a commit, from an image, or only described
stage, tensors, tree, codec   what a commit consists of: torch and values as bytes and text
upload, download, manifest    bytes into the store and out of it, verified by block: no torch
save, load                    all of it, all ranks together
background                    a save while training continues: separate memory, and a process that uploads it
image_file, rescue            a rank's in-memory image, and how an agent commits it
retention, history, inspect   which data may be deleted; which commits exist; what a root holds
"""
