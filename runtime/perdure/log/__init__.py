"""The append-only log in the store: the truth about training. No torch: the command line and the agent read it.

entry           an entry's kinds and bytes; checksums
reader          the head, the chain and the commits of a log
writer          who may append, and when
takeover        the entries that decide a hand-over, appended while the older run lives
verdict         what the log says about one attempt to hand over
images          which image a run may begin from
position        how far training has come
objects         the names of a commit's objects
minimum_commit  refuses a log that lost commits
audit           what is wrong with a root before a run begins there
pins, kept      which commits retention keeps: those that the script pins; those that users pin or a process reads
members         where the ranks of a run ran
"""
