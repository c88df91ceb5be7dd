"""Live hand-over: ranks that change while training goes on.

joining     connects a process with the other ranks of its run
liveness    detects what keeps a script from changing its ranks
membership  switches a process to the newer run's ranks
handover    an old rank's side of a hand-over
newcomer    a new process's side of a hand-over
driving     drives one party's state machine
header      what rank 0 sends ahead of the tensors
effects     carries out the machine's actions
trial       plays a change of ranks in this process alone, to see whether this torch can
own_states  per-rank state: accumulators, generators, merged states
resharding  checks a sharded model, and gives it its shards in a run of another size
bridge      the connections of one attempt
keys        the attempt's key-value store at the decider
word        a party's message about the outcome
transfer    moves the state to newcomers
collector   pauses Python's garbage collector in the stop
summing     checksums that compare the old ranks' state
protocol    the pure state machines
"""
