"""A save in the background: a copy at a hand-out, and an upload by another process while training goes on.

arena      memory of its own for a rank's part: filled by the trainer, read by the process that uploads
words      what both say to each other
part       writes a part under a name that other processes may write it under, too
uploader   that process
uploading  the trainer's side of it: orders, words, its end
"""
