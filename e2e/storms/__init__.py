"""Storms: a job on the real cluster is harmed again and again while its members are replaced, and judged afterwards.

    harm      what can be done to a process, a link or the store, from outside
    front     a program in front of the store that answers badly, or slowly, when it is told to
    storm     one job in a storm: what is done to it, when, and what is written down of it
    judge     the checker: reads the log, the traces and the polled status as files, and shares no code with anybody

`python -m e2e.storms FOLDER` judges what a storm has left once more.
"""
