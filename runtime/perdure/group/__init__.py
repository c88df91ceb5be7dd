"""Who the ranks of a run are, how they find each other and how they agree.

rendezvous   the store and the process groups of a run
found        a process group that was there before
peers        the small messages ranks exchange
gloo         the same over a gloo group of its own
collectives  work that all ranks do, and fail at, together
agreement    the one-step-lagged vote to save or leave
pulse        whether the other ranks are still there, for a rank that is asked to leave
"""
