"""What a run reports: one stream of events, and sinks that pass them on.

events    the events, and `Events`, which gives each to every sink
sinks     the agent's pipe, and lines for people
figures   the agent's pipe again, with rates and progress for people
trace     the trace of every step, in the store
own_time  what part of its time the script's thread works itself
ledger    what it does with its time, run by run
timings   how long the parts of the beginning and the end took

A sink that fails harms neither training nor the other sinks. Must not import torch.
"""
