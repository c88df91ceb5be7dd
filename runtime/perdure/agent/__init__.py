"""PID 1 of a member: follows the assignment, runs the trainer, leaves the outcome behind.

    state     what the agent knows: a frozen state, the events it learns from, the actions it takes
    stage     where the trainer stands by what is known, and until when; pure
    machine   (state, event, now) -> (state, actions), stage by stage; pure, no clock, no files, no processes
    verdict   how a trainer ended, in the words of the contract; pure
    environ   the environment of a trainer process; pure
    launch    starts one process: the seam between exec and the zygote
    program   which commands the zygote can run; pure
    zygote    forks trainers from a process that has imported everything already, and executes where it cannot
    fork      that process: imports, forks, becomes a trainer
    processes the running processes: their pipes, their ends, their descendants
    tail      the end of a process's stderr, without what libraries always write; pure
    memory    whether the kernel has killed for want of memory
    outlet    the pod's log, written without waiting
    paths     where the agent reads and writes
    stop      the marker of a pod that is being deleted: a file, because an early signal is lost
    linux     the few facts and calls that only Linux knows
    shell     the loop: reads files, pipes and signals, asks `machine`, carries the actions out

It must not import torch or a storage client: it is the parent of every trainer, and has to be up at once.
`perdure.cli.main` starts it. docs/agent.md draws the stages.
"""
