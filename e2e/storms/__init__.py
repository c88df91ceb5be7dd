"""Storms: a job on the real cluster is disturbed again and again while its members are replaced, and judged afterwards.

    harm      disturbs a process, a link or the store, from outside
    front     a proxy for the store that answers wrongly, or slowly, on request
    storm     one job in a storm: its disturbances, and their records
    judge     the checker: reads the log, the traces and the polled status as files, and shares no code with the others

`python -m e2e.storms FOLDER` judges a storm's evidence again.
"""
