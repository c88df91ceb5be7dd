"""The bugs of the catalogue, one file per story: each was really made once, or one like it stayed unnoticed.

leaving  signals, outages, suspension, waiting for exit saves
ending   outcomes, blame, what a run has lost, the end of the job
members  gates, names, promotion, the budget, the objects that are created
reading  the watch, the cache, live reads, what others may write into objects
moving   standbys, seats, hand-overs and the evidence of them, as the operator sees them
inside   the agent, the machines of a hand-over, the log, and what only real processes do
answering  statuses, headers and bodies of the API server's answers
writing  preconditions, order and answers of writes, rounds, the Lease
"""
