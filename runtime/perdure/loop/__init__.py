"""One process's place in one run: where training stands, what it is asked, what it tells, and how it leaves.

data/       which sample goes where, and the loader a script iterates
position/   steps, epochs, each loader's place, sums, and what ends a loop
telemetry/  one stream of events, and its sinks

run        what the rooms of a session share
requests   where a request to save and exit comes from
asking     signals and a file of the script's own that ask for it
saving     a save that somebody asks for while training goes on
hooks      what a script has been asked to be told of
reporting  what the end of a process means, and who is told
reports    what the script tells of its training
result     what a training has come to
imaging    what is kept in memory for the others, should this process be lost
allowance  what that may take of the training's time
leaving    how a process leaves before the goal
ending     how the ranks end together after it
"""
