"""Commits: their parts, and how their bytes get into the store and out of it.

checkpointer, schedule        the one object that the session knows; when a checkpoint is due
opening, inherit, outlook     how a run begins: from a commit, from an image, or only predicted
stage, deferred               a rank's part of a commit, ready to be written: read at once, or in two parts
state, tensors, tree, codec   what a commit consists of: torch and values as bytes and text
boxes, cells                  tensors that are sharded: which part a rank holds, and which bytes of a commit it reads
upload, download, manifest    bytes into the store and out of it, verified by block: no torch
save, load                    all of it, all ranks together
background                    a save while training continues: separate memory, and a process that uploads it
image_file, rescue            a rank's in-memory image, and how an agent commits it
retention, reading, pinning   which data may be deleted; how a reader and a user keep a commit
history, inspect, compare     which commits exist; what a root holds; what differs between two commits
stored_commit, copying        one commit read from outside its run; a copy of a root
garbage, first_commit         unneeded data; a root's first commit that no training has made
"""
