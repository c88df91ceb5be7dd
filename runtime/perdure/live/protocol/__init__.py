"""The live hand-over protocol: a pure state machine per party, and its shell.

The log decides: a hand-over has happened if and only if `Opened` with `takesOver` is appended. Votes, words and links
provide speed, never safety. Each participating process drives one machine, `perdure.live.protocol.machine`:

    state, actions = begin(attempt, number)       # at the offer, or in a newcomer's `restore`
    state, actions = step(state, event)           # at every event; has no side effects and no clock
    named(state)                                  # what an old rank puts into the agreement's vector
    timetable.due(now)                            # which alarms have gone off (perdure.live.protocol.timing)

The shell carries out the actions in order and feeds the events. Any event may come in any state: the machine ignores
meaningless ones. All events and actions (perdure.live.protocol.events):

    event                 fed by the shell when
    AllWarm               every party's warm key is in the decider's store, and all hashes agree
    Connected             this party has connected the bridge and its groups of the newer run (in the background)
    AllConnected          old: every party's connected key is in the decider's store
    StoreSeen(answers)    decider: whether the object store answered within the last seconds
    NotLive(why)          this script cannot swap members live
    Unable(why)           hashes differ, connecting or moving state failed, a newcomer's script ended or failed
    Stopped               old: the newest vector names this attempt; this rank has stopped before a batch
    ExitAgreed            old: the newest vector says exit; this rank has stopped before a batch
    TrainingDone          old: the training is done
    Moved                 this party has sent, or received, all state
    FirstBatch            newcomer: the script asks for its first batch
    Acknowledged          the agent has acknowledged Voting
    VoteReduced(whole)    the vote's reduce is over: all parties voted and the old ranks hold equal state, or it failed
    LogAnswered(verdict)  answers ReadLog, AppendOpened and AppendRefused; None: the store did not answer
    Heard(word)           another party said it on the bridge
    LinkClosed            not the decider: its link to the decider is closed
    Silent(party, lost)   no heartbeat: of the decider at other parties, of any party at the decider
    SeenBy(party), PartyGone(party)   decider: that party set its seen key, or its link is closed
    RoundDone(choice)     the round on the old run's group is over; None: it failed
    OlderRunEnded         the exit save is in the log
    Sigterm               this pod is asked to end
    Newer(takes_over)     there is an assignment above this attempt's run; `takes_over` is the run in its own block
    Passed(alarm)         see perdure.live.protocol.timing

    action                the shell
    SetWarm               sets this party's warm key; AllWarm follows once all are set
    Connect               connects in a background thread
    SetConnected          sets this party's connected key; on an old rank AllConnected follows once all are set
    MoveState             sends or receives state; a newcomer waits in it for the old ranks to stop
    TellVoting            tells the agent and waits for its acknowledgement
    Vote                  contributes to the reduce on the bridge
    AppendOpened, AppendRefused, ReadLog   Takeover.open, .refuse, .look; with `again` after a pause
    SayToAll(word, why)   to every party, on the bridge; never waits
    SetSeen               sets this party's seen key
    BeginRound(choice)    one unlagged MAX reduce on the old run's own group
    Install               switches the Session to the newer run's groups, wrapper, agreement, loaders and progress
    TellTookOver, TellEnded(word, why)     to the agent
    TrainOn(aborted)      keeps training as the older run, whose later entries carry `aborted`
    AskExit               votes for an exit in the agreement from now on
    SaveAndExit(aborted)  exit save of the older run; OlderRunEnded follows
    JoinInPlace           newcomer: rendezvous at the newer run's own master, opens by the log's rule
    CloseStore            decider: its store is no longer needed
    ExitProcess(kind, why)   ends this process

Requests of a person or a newer assignment wait until Install or TrainOn: a request always goes to the run that then
trains.
"""
