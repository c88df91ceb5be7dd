"""The API that a training script uses: the facade, and what ties the rooms below together.

session    the facade, `Session`
functions  less common calls: functions of the package
core       the parts behind a session
sources    its loaders, and the numbers of steps
resuming   how a run continues from the newest commit
late       objects that a script registers when its run has begun
loading    a commit's parts without a session
job        the epochs up to the goal
boundary   where a run may stop
loop_exit  how a script has left its epoch loop
weighting  what a loss counts for where items are counted
preview    what a script would do, described before its first step, with describing, validating and forgotten
current    the process's session, for functions of the package
driven     the one door of perdure.adapters
"""
