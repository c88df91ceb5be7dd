"""What a training script touches.

session    the facade, `Session`
run        what the rooms of a session share
joining    how a process joins its run
resuming   how a run goes on from the newest commit
job        the epochs up to the goal
boundary   where a run may stop
leaving    how a process leaves before the goal
reporting  what the end of a process means, and who is told
progress   where training stands: steps, epochs, each loader's position
registry   what belongs to the state of training
rng        the random generators' states
wrapping   the model in DistributedDataParallel
requests   where a request to save and exit comes from
"""
