"""The command lines: `perdure-operator` (`main`) and `kubectl perdure` (`kubectl`). `start` begins each.

`explain` and `explain_signals` print what the operator would decide, and which signals it knows. `convert` is a command
of `perdure`, and here because it makes TrainingJobs.
"""
