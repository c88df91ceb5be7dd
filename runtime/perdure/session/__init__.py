"""What a training script touches.

session    the facade, `Session`
progress   where training stands: steps, epochs, each loader's position
registry   what belongs to the state of training
rng        the random generators' states
wrapping   the model in DistributedDataParallel
requests   where a request to save and exit comes from
leaving    what the end of a process means, and who is told
"""
