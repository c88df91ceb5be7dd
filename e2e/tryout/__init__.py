"""`make try`: half a minute without Kubernetes. Two processes train, are interrupted at a random step, and go on.

The same proof as `make demo`'s, from plain processes and a folder: the ranks' records of each step, and an
uninterrupted training.
"""
