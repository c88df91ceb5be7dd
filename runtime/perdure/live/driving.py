"""Drives one party's state machine through one attempt: takes events from any thread and carries out the actions.

The machine (perdure.live.protocol.machine) decides; this module waits. Every wait for another party or for the store
has its own thread, so that alarms, words and lost links are noticed meanwhile. The main thread stops for what touches
the training: the script's tensors and its ranks.

Used by perdure.live.handover and perdure.live.newcomer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final, Generic, Protocol, TypeVar

from perdure.console import Trouble
from perdure.errors import PeerLost, PerdureError, StorageError, UserError
from perdure.group.peers import Peers, RanksApart
from perdure.host.threads import SystemThreads, Threads
from perdure.live.protocol import events as ev
from perdure.live.protocol.hearing import Hearing
from perdure.live.protocol.machine import PartyPhase, PartyState, begin, known, named, step
from perdure.live.protocol.parties import Attempt, Party
from perdure.live.protocol.timing import ACK_SECONDS, HERE_SECONDS, Timetable
from perdure.live.word import Word
from perdure.log.verdict import Verdict
from perdure.wire import AttemptRecord, HandoverWord
from perdure.wire.channel import HandoverEnded

LOOK_SECONDS: Final = 0.002
"""Polling interval for the agent's answer, for which the run waits."""
SEEN_SECONDS: Final = 0.1
"""How often a decider without a bridge checks which parties still need its store."""
STORE_SECONDS: Final = 2.0
"""How often the decider checks that the object store answers."""
LOG_SECONDS: Final = 0.5
"""How often a newcomer without a decider reads the log: its run may begin in place."""
AGAIN_SECONDS: Final = 0.2
"""The pause before a repeated request."""

Main = ev.MoveState | ev.Install | ev.TrainOn | ev.SaveAndExit | ev.JoinInPlace | ev.ExitProcess
"""Actions of the main thread."""


class GivenUp(Exception):
    """The attempt is over."""


class Heartbeats(Protocol):
    """A connection to the decider's store for heartbeats alone."""

    def send_heartbeat(self) -> dict[int, int]: ...


class PartyEffects(Protocol):
    """What a driver can do. perdure.live.effects has it for real processes, and says what each does."""

    attempt: Attempt
    party: Party
    stopped: bool

    @property
    def connected(self) -> bool: ...
    @property
    def peers(self) -> Peers: ...
    @property
    def size_obstacle(self) -> str: ...

    def find_store(self, give_up: Callable[[], None]) -> None: ...
    def obstacle(self) -> str: ...
    def get_warm(self, warm: str) -> None: ...
    def await_newcomers(self) -> None: ...
    def can_hand_over(self) -> bool: ...
    def connect(self) -> None: ...
    def connect_ranks(self) -> None: ...
    def publish_connected(self) -> None: ...
    def await_connected(self) -> None: ...
    def second_connection(self) -> Heartbeats: ...
    def vote(self) -> None: ...

    def say(self, word: Word) -> None: ...
    def hear(self, party: int) -> Word | None: ...
    def early_word(self) -> Word | None: ...
    def seen(self) -> None: ...
    def seen_by(self, parties: Iterable[int]) -> list[int]: ...
    def let_go(self) -> None: ...

    def store_answers(self) -> bool: ...
    def append_opened(self) -> Verdict: ...
    def append_refused(self) -> Verdict: ...
    def read_log(self) -> Verdict: ...
    def word(self) -> Word: ...
    def learn(self, word: Word) -> None: ...
    def abort(self) -> None: ...

    def record(self, attempt: AttemptRecord | None) -> None: ...
    def tell(self, report: HandoverEnded) -> None: ...
    def tell_attached(self, why: str) -> None: ...
    def tell_voting(self) -> None: ...
    def acknowledged(self) -> bool: ...


E = TypeVar("E", bound=PartyEffects)


class Driver(Generic[E]):
    """Drives one party of one attempt."""

    def __init__(
        self,
        effects: E,
        timetable: Timetable,
        *,
        ask_exit: Callable[[], None],
        ready: threading.Event | None = None,
        threads: Threads | None = None,
    ) -> None:
        self.effects = effects
        self.word: Word | None = None
        """The outcome, from the decider or the log."""
        self.why = ""
        """Why the attempt failed."""
        self.main_waits = False
        """Whether the main thread waits for its next action."""
        self.abandoned: Callable[[ev.ExitProcess], None] | None = None
        """Ends the process if the main thread does not wait here."""
        self.hangs = False
        """Whether a thread waits in a collective of the old ranks; it would keep the interpreter from ending."""
        self.threads = threads or SystemThreads()
        self.leaving = self.threads.flag()
        """Set once the main thread has its ExitProcess."""
        self._timetable = timetable
        self._ask_exit = ask_exit
        self._ready = ready or threading.Event()
        self._lock = threading.RLock()
        """Held for no wait for another party, nor for the store."""
        self._main = self.threads.inbox()
        self._connect = self.threads.flag()
        self._over = self.threads.flag()
        self._warm = self._why_not = ""
        self._log_trouble = Trouble()
        self._hearing: Hearing | None = None
        self._state, self._first = begin(effects.attempt, effects.party.number)
        effects.record(known(self._state))

    @property
    def phase(self) -> PartyPhase:
        """The party's phase."""
        return self._state.phase

    @property
    def state(self) -> PartyState:
        """The machine's state."""
        return self._state

    @property
    def named(self) -> int:
        """The run that this rank is ready to hand over to; 0 while it is not ready."""
        return named(self._state)

    def begin(self, warm: str, why_not: str = "") -> None:
        """Take part from now on. `warm` must be equal on all parties; `why_not` is an obstacle to changing ranks that
        only the main thread can see."""
        self._warm, self._why_not = warm, why_not
        self._thread(self._watch_time)
        with self._lock:
            self._act_all(self._first)

    def feed(self, event: ev.Event) -> None:
        """Pass an event to the machine and start its actions. From any thread."""
        with self._lock:
            match event:
                case ev.Stopped():
                    self._timetable = replace(self._timetable, stopped=self.threads.monotonic())
                case ev.Heard(word, why):
                    self.why = why or word.value
            self._state, actions = step(self._state, event)
            self.effects.record(known(self._state))
            if named(self._state):
                self._ready.set()
            else:
                self._ready.clear()
            self._act_all(actions)

    def shorten(self, deadline: float) -> None:
        """Set an earlier deadline for this process."""
        with self._lock:
            self._timetable = self._timetable.shortened(deadline)

    def next_act(self) -> Main:
        """Wait for the main thread's next action."""
        self.main_waits = True
        try:
            act: Main = self._main.get()
        finally:
            self.main_waits = False
        if isinstance(act, ev.ExitProcess):
            self.leaving.set()
        return act

    def is_needed(self) -> bool:
        """Whether another party may still need this one. Once none does, this ends all threads and connections."""
        if self._state.needed:
            return True
        self.finish()
        self.effects.let_go()
        return False

    def finish(self) -> None:
        """End all waiting threads."""
        self._over.set()

    # Actions.

    def _act_all(self, actions: tuple[ev.Action, ...]) -> None:
        for action in actions:
            self._act(action)

    def _act(self, action: ev.Action) -> None:
        match action:
            case ev.MoveState() | ev.Install() | ev.TrainOn() | ev.SaveAndExit() | ev.JoinInPlace() | ev.ExitProcess():
                self._leave_to_main(action)
            case ev.SetWarm() | ev.Connect() | ev.SetConnected() | ev.SetSeen() | ev.SayToAll():
                self._act_on_parties(action)
            case ev.TellVoting() | ev.TellEnded() | ev.AskExit():
                self._act_on_agent(action)
            case ev.CloseStore() | ev.TellTookOver():
                pass  # the main thread does both: `is_needed` drops the store, and the effects make the message
            case ev.Vote():
                self._thread(self._vote)
            case ev.AppendOpened(again):
                self._thread(self._ask_log, self.effects.append_opened, again)
            case ev.AppendRefused():
                self._thread(self._ask_log, self.effects.append_refused, False)
            case ev.ReadLog(again):
                self._thread(self._ask_log, self.effects.read_log, again)
            case ev.BeginRound(choice):
                self._thread(self._round, choice)

    def _leave_to_main(self, action: Main) -> None:
        if isinstance(action, ev.TrainOn | ev.SaveAndExit) and action.aborted:
            self.effects.abort()
        if isinstance(action, ev.ExitProcess) and not self.main_waits and self.abandoned:
            self.abandoned(action)
        self._main.put(action)

    def _act_on_parties(self, action: ev.SetWarm | ev.Connect | ev.SetConnected | ev.SetSeen | ev.SayToAll) -> None:
        match action:
            case ev.SetWarm():
                self._thread(self._prepare)
            case ev.Connect():
                self._connect.set()
            case ev.SetConnected():
                self._thread(self._meet)
            case ev.SetSeen():
                self.effects.seen()
            case ev.SayToAll(word, why):
                self.why = self.why or why
                self.effects.say(self._word(word, why))
                if self.effects.party.decides and not self.effects.connected:
                    self._thread(self._watch_seen)

    def _act_on_agent(self, action: ev.TellVoting | ev.TellEnded | ev.AskExit) -> None:
        effects = self.effects
        match action:
            case ev.TellVoting():
                self._timetable = replace(self._timetable, informed=self.threads.monotonic())
                effects.tell_voting()
                if effects.acknowledged():
                    self.feed(ev.Acknowledged())
                else:
                    self._thread(self._await_agent)
            case ev.TellEnded(word, why):
                why = effects.size_obstacle or self.why or why  # others may have refused the size and left before
                effects.tell(HandoverEnded(effects.attempt.next, word, why))
            case ev.AskExit():
                self._ask_exit()

    def _word(self, word: HandoverWord, why: str) -> Word:
        if word is HandoverWord.GO:
            self.word = self.word or self.effects.word()
            return self.word
        return Word(word, why)

    # Waiting threads.

    def _thread(self, act: Callable[..., None], *arguments: object) -> None:
        self.threads.start(f"perdure-handover{act.__name__}", act, *arguments)

    def _give_up(self) -> None:
        if self._over.is_set() or self._state.word:
            raise GivenUp
        word = self.effects.early_word()
        if word:
            self.feed(ev.Heard(word.word, word.why))
            raise GivenUp

    def _prepare(self) -> None:
        effects = self.effects
        if effects.party.old is None:
            self._thread(self._watch_log)
        try:
            effects.find_store(self._give_up)
            why = effects.obstacle() or self._why_not
            if why or effects.size_obstacle:
                self._refuse(why)
                return
            effects.get_warm(self._warm)
            if effects.party.decides:
                self.feed(ev.StoreSeen(effects.store_answers()))
            self.feed(ev.AllWarm())
            while not self._connect.wait(AGAIN_SECONDS):
                self._give_up()
            effects.connect()
            self._begin_to_hear()  # so that a party's death while ranks connect is noticed immediately
            effects.connect_ranks()
        except GivenUp:
            return
        except PerdureError as error:
            self.feed(ev.Unable(str(error)))
            return
        self.feed(ev.Connected())

    def _meet(self) -> None:
        """Tell the old ranks that this party is connected; on one of them wait for the others."""
        try:
            self.effects.publish_connected()
            if self.effects.party.old is None:
                return
            self.effects.await_connected()
        except GivenUp:
            return
        except PerdureError as error:
            self.feed(ev.Unable(str(error)))
            return
        self.feed(ev.AllConnected())

    def _begin_to_hear(self) -> None:
        effects = self.effects
        others = [party.number for party in effects.attempt.parties if party.number != effects.party.number]
        heard = others if effects.party.decides else [effects.attempt.decider]
        for other in heard:
            self._thread(self._listen, other)
        if effects.party.decides:
            self._thread(self._watch_store)
        self._hearing = Hearing(heard, self.threads.monotonic())
        self._thread(self._say_here)

    def _refuse(self, why: str) -> None:
        """Say that there is an obstacle: `why`, for good, or one to the newer run's size.

        Old ranks then end their run, but for a growth only once all newcomers have come as far as this: one that cannot
        start stops no healthy run. A newcomer first lets the old ranks speak. If they have an obstacle too, as the same
        script most often has, all begin in place; if old rank 0 shows that it can hand over, the newcomer alone ends.
        """
        effects = self.effects
        if effects.party.old is None:
            self._give_up()
            while not effects.can_hand_over() and not self._over.wait(AGAIN_SECONDS):
                self._give_up()
        elif not effects.attempt.leavers:
            effects.await_newcomers()
        if why:
            effects.tell_attached(why)
        self.feed(ev.NotLive(why or effects.size_obstacle))
        while not self._over.wait(AGAIN_SECONDS):
            self._give_up()

    def _listen(self, party: int) -> None:
        """Pass on a party's words until it ends: the decider's first, or all of another party's."""
        decider = self.effects.attempt.decider
        try:
            while word := self.effects.hear(party):
                if word.word is HandoverWord.GO:
                    self.word = word
                    self.effects.learn(word)
                self.feed(ev.Heard(word.word, word.why))
                if party == decider:
                    return
        except PeerLost:
            self.feed(ev.LinkClosed() if party == decider else ev.PartyGone(party))
        else:
            self.feed(ev.SeenBy(party))

    def _say_here(self) -> None:
        """Send heartbeats. This may block forever; `_watch_time` notices the silence."""
        hearing, known = self._hearing, dict[int, int]()
        with suppress(PeerLost):
            line = self.effects.second_connection()
            while hearing:
                counts = line.send_heartbeat()
                if not self.effects.party.decides:
                    hearing.heard(self.effects.attempt.decider)
                for party, count in counts.items():
                    if count != known.get(party) and party != self.effects.party.number:
                        hearing.heard(party)
                known = counts
                if self._over.wait(HERE_SECONDS):
                    return

    def _hear(self, now: float) -> None:
        """Report silent parties; on a newcomer only once the old ranks have stopped, because before that no rank
        waits."""
        for silent in self._hearing.silent(now) if self._hearing else ():
            if self.effects.party.old is not None or self.effects.stopped:
                self.feed(silent)

    def _watch_seen(self) -> None:
        """On a decider that said its word before the bridge was connected."""
        while self._state.needed and not self._over.wait(SEEN_SECONDS):
            for party in self.effects.seen_by(self._state.needed):
                self.feed(ev.SeenBy(party))

    def _watch_store(self) -> None:
        while not self._over.wait(STORE_SECONDS) and self.phase is PartyPhase.PREPARING:
            self.feed(ev.StoreSeen(self.effects.store_answers()))

    def _watch_log(self) -> None:
        """On a newcomer: the older run may end without ever hearing of this attempt."""
        while not self._over.wait(LOG_SECONDS) and self.phase is PartyPhase.PREPARING:
            self._ask_log(self.effects.read_log, False)

    def _watch_time(self) -> None:
        while not self._over.is_set():
            now = self.threads.monotonic()
            for alarm in self._timetable.due(now):
                self.feed(ev.Passed(alarm))
            self._hear(now)
            following = self._timetable.next(now)
            self._over.wait(min(1.0, 1.0 if following is None else max(0.01, following - now)))

    def _await_agent(self) -> None:
        end = self.threads.monotonic() + ACK_SECONDS
        while self.threads.monotonic() < end and not self._over.wait(LOOK_SECONDS):
            if self.effects.acknowledged():
                self.feed(ev.Acknowledged())
                return

    def _vote(self) -> None:
        try:
            self.effects.vote()
        except (PeerLost, UserError) as error:
            self.why = self.why or str(error)
            self.feed(ev.VoteReduced(whole=False, why=str(error)))
        else:
            self.feed(ev.VoteReduced(whole=True))

    def _ask_log(self, ask: Callable[[], Verdict], again: bool) -> None:
        if again:
            self._over.wait(AGAIN_SECONDS)
        try:
            verdict: Verdict | None = ask()
            self._log_trouble.over()
        except StorageError as error:
            self._log_trouble.say(f"hand-over to run {self.effects.attempt.next}: the log does not answer: {error}")
            verdict = None
        except PerdureError as error:
            self.why = str(error)
            verdict = None
        if verdict is Verdict.GO:
            self.word = self.word or self.effects.word()
        self.feed(ev.LogAnswered(verdict))

    def _round(self, choice: ev.Choice) -> None:
        self.hangs = True
        found: ev.Choice | None = None
        with suppress(PerdureError):
            found = agreed(self.effects.peers, choice)
        self.hangs = False
        self.feed(ev.RoundDone(found))


def agreed(peers: Peers, choice: ev.Choice) -> ev.Choice:
    """The highest choice of all ranks. Collective.

    A rank whose main thread was just entering the stop may be in that call instead. All see that, and come again.
    """
    while True:
        with suppress(RanksApart):
            return ev.Choice(max(peers.gather("agrees how to leave a hand-over", int(choice))))
