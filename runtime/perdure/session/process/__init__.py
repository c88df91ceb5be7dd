"""One process's place in one run: what it is asked, what it tells, what it leaves behind, and how it leaves.

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
