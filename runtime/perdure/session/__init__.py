"""What a training script touches.

session    the facade, `Session`
run        what the rooms of a session share
joining    how a process joins its run
resuming   how a run goes on from the newest commit
loading    a commit's parts without a session
job        the epochs up to the goal
boundary   where a run may stop
departure  how a script has left its epoch loop
leaving    how a process leaves before the goal
ending     how the ranks end together after it
reporting  what the end of a process means, and who is told
progress   where training stands: steps, epoch loops, each loader's position
counting   the steps of a loop over samples of the script's own
registry   what belongs to the state of training
renaming   what is called otherwise in older checkpoints
rng        the random generators' states
weighting  what a loss counts for where items are counted
wrapping   the model in DistributedDataParallel
requests   where a request to save and exit comes from
asking     signals and a file of the script's own that ask for it
"""
