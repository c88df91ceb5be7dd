"""What of a script belongs to a commit, and how it comes back. Knows no run, no step and no other rank.

registry    what belongs to the state of training
modules     a model's tensors, by name
optimizers  what an optimizer has learned, by its parameters' names
renaming    what is called otherwise in older checkpoints
merging     what each rank has a state of its own of
unclaimed   what a checkpoint holds of objects that are registered late
variables   what a script holds in its own variables that changes
userstate   a script's plain values, `session.state`
rng         the random generators' states, with pythons and numpys
wrapping    the model in DistributedDataParallel, with keepers
collecting  the trained tensors, for exports
outline     what a module is made of, as it was when it was last walked
copies      small plain values, copied fast
glance      whether anything has written to parameters past torch
"""
