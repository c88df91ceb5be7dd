"""What a training script touches: the facade, and what ties its rooms together.

state/     what of a script belongs to a commit, and how it comes back
position/  where training stands
process/   one process's place in one run
ranks/     how the ranks of a living training change

session    the facade, `Session`
resuming   how a run goes on from the newest commit
late       objects that a script registers when its run has begun
loading    a commit's parts without a session
job        the epochs up to the goal
phases     a training said as its phases
boundary   where a run may stop
departure  how a script has left its epoch loop
weighting  what a loss counts for where items are counted
preview    what a script would do, described before its first step, with describing, validating and forgotten
driven     the door for frameworks' adapters
"""
