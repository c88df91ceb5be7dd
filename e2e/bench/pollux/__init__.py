"""A simulated cluster in which Pollux's policy and Perdure's divide devices among jobs.

The model is that of the paper (OSDI '21): what a step takes and what a sample is worth come from its authors'
measurements, found by POLLUX_DATA; nothing trains. What each figure means is in docs/benchmarks.md.

measurements  what a step of a model takes, and what a sample is worth at each batch
world         jobs on devices, as time goes by: they train, wait, change their sizes and end
their_speed   Pollux: a model of the time of a step, fitted, and the batch that it finds best
genetic       Pollux: the search of placements
their_policy  Pollux: who gets which devices
our_policy    Perdure: who gets how many devices, by the operator's own allocator, and where
runs          which runs there are, each stored as soon as it is made
tables        what they came to, beside what was published
"""
