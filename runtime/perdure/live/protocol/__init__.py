"""Changing the ranks of a living training between two batches: a pure machine per party, and its shell.

The log decides: a hand-over has taken place when, and only when, `Opened` with `takesOver` is appended. Votes, words
and links are speed, never safety. Each process that takes part drives one machine, `perdure.live.protocol.machine`:

    state, actions = begin(attempt, number)       # at the offer, or in a newcomer's `restore`
    state, actions = step(state, event)           # for whatever happens; does nothing, knows no clock
    named(state)                                  # what an old rank puts into the agreement's vector
    timetable.due(now)                            # which alarms have gone off (perdure.live.protocol.timing)

The shell carries out actions in their order and turns what happens into events. Any event may come in any state: the
machine ignores what means nothing there. What the shell tells and does (perdure.live.protocol.events):

    event                 told by the shell when
    AllWarm               every party's warm key is in the decider's store, and all hashes agree
    Connected             the bridge and the newer run's groups stand (made in the background)
    StoreSeen(answers)    decider: whether the object store has answered within the last seconds
    NotLive(why)          this script cannot change its membership in place
    Unable(why)           hashes differ, connecting or moving state failed, a newcomer's script ended or failed
    Stopped               old: the newest vector names this attempt; this rank stands at a hand-out
    ExitAgreed            old: the newest vector says exit; this rank stands at a hand-out
    GoalReached           old: the script's work is done
    Moved                 this party has sent, or received, all state
    FirstBatch            newcomer: the script asks for its first batch
    Acknowledged          the agent has acknowledged Voting
    VoteReduced(whole)    the vote's reduce is over: everybody's is in it and the old ranks hold the same, or it failed
    LogAnswered(verdict)  answers ReadLog, AppendOpened and AppendRefused; None: the store did not answer
    Heard(word)           somebody said it on the bridge
    LinkClosed            not the decider: its link to the decider is closed
    Silent(party, lost)   the decider of an old rank or a newcomer, another party of the decider: nothing is heard
    SeenBy(party), Gone(party)   decider: that party has set its seen key, or its link is closed
    RoundDone(choice)     the round on the old run's group is over; None: it failed
    Saved                 the exit save is in the log
    Sigterm               this pod is to end
    Newer(takes_over)     an assignment above this attempt's run, and which run its own block names
    Passed(alarm)         see perdure.live.protocol.timing

    action                the shell
    SetWarm               sets this party's warm key; AllWarm follows once all are there
    Connect               connects in a background thread
    Move                  sends or receives state; a newcomer waits in it for the old ranks to stop
    TellVoting            tells the agent, waits for its acknowledgement
    Vote                  contributes to the reduce on the bridge
    AppendOpened, AppendRefused, ReadLog   Takeover.open, .refuse, .look; with `again` after a pause
    Say(word, why)        to every party, on the bridge; never waits
    SetSeen               sets this party's seen key
    Round(choice)         one unlagged MAX reduce on the old run's own group
    Install               the newer run's groups, wrapper, agreement, loaders and progress become the Session's
    TellTookOver, TellEnded(word, why)     to the agent
    TrainOn(aborted)      leaves the stop, or goes on, as the older run; its later entries carry `aborted`
    AskExit               votes for an exit in the agreement from now on
    SaveAndExit(aborted)  exit save of the older run; Saved follows
    JoinInPlace           newcomer: rendezvous at the newer run's own master, opens by the log's rule
    CloseStore            decider: its store is not needed any more
    Exit(kind, why)       ends this process

What a person or a newer assignment asks while the machine holds it back stays the Session's to do after Install or
TrainOn: a request always is one to the run that then trains.
"""
