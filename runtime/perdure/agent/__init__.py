"""PID 1 of a member: follows the assignment, runs the trainer, writes the outcome.

state               the agent's frozen state, its events and its actions
stage               the trainer's stage, derived from the state, and its time limit; pure
machine             (state, event, now) -> (state, actions), stage by stage; pure
handover            the agent's part in a live hand-over; pure
exit_cause          how a trainer ended, as an Outcome; pure
environ             the environment of a trainer process; pure
launch              starts one process: the interface of exec and zygote
program             which commands the zygote can run; pure
zygote              the agent's side of the zygote, which forks trainers after its imports
fork                the zygote process: imports, forks, becomes a trainer
imports             reads from a script's source what it will import
preload             imports in the zygote, and checks that forks still work
processes           the running processes: their pipes, ends and descendants
images              memory files for survivors' snapshots
rescuer             the process that commits such a snapshot before the pod goes
reporting           what the agent reports to the operator, from its state; pure
reporter            gives these reports to a process that sends them
sender              that process: HTTPS to the operator
kubeflow            takes what a script reports in the words of Kubeflow's Trainer, on loopback
listeners           remembers the sockets of the trainer's process groups
residual_resources  what an exiting trainer still holds
stderr_tail         the end of a process's stderr, without known noise; pure
memory              out-of-memory kills
pod_log             writes the pod's log without blocking
paths               the agent's files
stop                the marker of a pod that is being deleted, because an early signal is lost
linux               Linux-specific facts and calls
shell               the loop: reads files, pipes and signals, calls `machine`, carries out its actions

It must not import torch or a storage client: it is the parent of every trainer and has to start at once.
`perdure.cli.main` starts it. docs/agent.md draws the stages.
"""
