"""Who the ranks of a run are, how they find each other and how they agree.

rendezvous   the store and the process groups of a run
found        a process group that existed before the session
peers        the small messages ranks exchange
gloo         the same over a separate gloo group
collectives  work that succeeds or fails on all ranks together
agreement    the one-step-lagged vote to save or leave
pace         how often the ranks vote
heartbeat    whether the other ranks are alive, for a rank that is asked to leave
places       where the ranks are, if one of them makes no progress
world        gloo groups connected by hand, and installing one as torch's WORLD
old_groups   frees the groups of older runs
mirror_link  the connection to the rank that mirrors this one's part
backoff      limits TCP's pauses between retransmissions
"""
