"""One process's place in one run: its position, its requests, its reports, and how it leaves.

adapting/   a batch that changes while the job trains
data/       which sample goes where, and the loader a script iterates
measuring/  step times and gradient noise, if a run is to measure them
position/   steps, epochs, each loader's place, sums, and what ends a loop
telemetry/  one stream of events, and its sinks

run                 the state that the rooms of a session share
requests            where a request to save and exit comes from
asking              signals and a file of the script's own that request an exit
saving              saves that are requested while training continues
background_saves    saves in the background, as the ranks decide them; save_effects carries them out
deferral            copies parameters and optimizer state until an optimizer steps
hooks               the script's functions for certain moments of its training
failures            what an error that ends a script means
reporting           what the end of a process means, and reports it
reports             the script's own timed reports
result              the result that a script sets
survivor_snapshots  images for the next run, in case a peer is lost
safe_point          one place where a run might have stopped, and the image made of it
last_step           which images a rank of a sharded model leaves, so that one lost rank costs no step
death_cost          what the death of a member costs now
optimizer_meeting   where the ranks meet before their optimizers step; step_exchanges warns of other exchanges there
mirror              a rank's part in another pod's memory, as a pure machine; mirroring carries it out
buddies             which pod mirrors which
copy_budget         how much of the training's time copies for images may take
current_call        the session call that a rank is in, for deadlock messages
hanging             when a process hangs: pure; hang_watch looks at it, and writes the stacks of its threads (stacks)
evaluated           the statistics that each rank evaluates with
framework           a framework that drives the loop, as its adapter describes it
leaving             how a process leaves before the goal
ending              how the ranks end together after it
"""
