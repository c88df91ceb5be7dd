"""The API that a training script uses: the facade, and what ties the rooms below together.

session      the facade, `Session`
functions    less common calls: functions of the package
core         the parts behind a session
sources      its loaders and step numbers; mesh_places: which share of a batch a rank gets in a device mesh
resuming     how a run continues from the newest commit
late         objects that a script registers when its run has begun
loading      a commit's parts without a session; importing: a state_dict that no training has made
job          the epochs up to the goal
boundary     where a run may stop
loop_exit    how a script has left its epoch loop
acting       what it does for a loader that adapts
weighting    how much a rank's mean loss counts; closures: the loss that an optimizer's closure returns
exchanging   small values between ranks
current      the process's session, for functions of the package
driven       the only module through which adapters reach the rooms below
description  what a session is about to do, as a value: describing makes it, preview runs a script up to it, and
             validating finds mistakes in it
forgotten    training state that a script has not registered, found by averages, memories and momenta;
             unregistered_check looks for it after steps
gradients    warns of gradients that a stop would lose
repeated     warns of changes above the batch loop that a resumed epoch makes twice
options      reports misspelt options
"""
