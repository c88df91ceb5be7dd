"""What of a script belongs to a commit, and how it is restored. Knows no run, no step and no other rank.

registry         what belongs to the training state
modules          a model's tensors, by name, with modes of its parts
optimizers       an optimizer's state, by its parameters' names
renaming         new names for objects in older checkpoints
merging          state that is each rank's own
pending_state    what a checkpoint holds of objects that are registered late
variables        what a script holds in its own variables, with parts
userstate        a script's plain values, `session.state`
rng              the random generators' states, with python_random and numpy_random
wrapping         the model in DistributedDataParallel, with keepers and parameter_layouts
fully_sharded    takes a model that is sharded by FSDP2 to other ranks; shards: how a module is sharded
collecting       the trained tensors, for exports
holding          optimizers that other objects hold, with living
outline          what a module is made of, as of the last walk
copies           fast copies of small plain values
write_detection  whether parameters were written to without torch's notice
"""
