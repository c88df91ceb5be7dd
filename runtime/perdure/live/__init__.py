"""How the ranks of a living training change: who joins, who hands over, and whether a script's ranks can at all.

joining     how a process joins its run
liveness    what in a script keeps the ranks it was made with
membership  who the ranks of this run are
handing     a hand-over, as the boundary sees it
driving     the party's machine, driven by one process
effects     what the machine asks for, done
newcomer    a process that comes into a living training
"""
