"""The append-only log in the store: the truth about training. No torch: the command line and the agent read it.

entry     an entry's kinds and bytes; checksums
reader    the head, the chain and the commits of a log
writer    who may append, and when
takeover  the entries that decide a hand-over, appended while the older run lives
verdict   what the log says of an attempt at one
images    which image a run may begin from
position  how far training has come
objects   the names of a commit's objects
floor, audit   what is wrong with a root before a run begins there
pins, members  which commits retention keeps; where the ranks of a run ran
"""
