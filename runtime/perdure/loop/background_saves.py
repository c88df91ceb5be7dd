"""Saves in the background: the ranks copy their state at one place, and train on while it is uploaded.

The machine of perdure.checkpoint.background decides. This module tells it what the vote's vector, the uploading process
and rank 0's requests say, and has its actions carried out by perdure.loop.save_effects. Everything but a copy that goes
on while training does happens in the main thread: at a request for a batch, a vote, or an exit. Small states are saved
at once, because a copy and a process would not pay.

Called by perdure.session.boundary and by whatever ends a run or changes its ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from perdure.checkpoint import tensors
from perdure.checkpoint.background import events as ev
from perdure.checkpoint.background.machine import SavesState, begin, step
from perdure.checkpoint.background.state import Carried, carried, may_hand_over, renewed, stands, unanswered, words
from perdure.checkpoint.background.vector import ArenaUse, Words, reduced
from perdure.checkpoint.checkpointer import SecondsLeft
from perdure.errors import PerdureError, StorageError, StorageRefused, in_words
from perdure.host.memory import MemoryPeak, missing_together
from perdure.log.position import Position
from perdure.loop.save_effects import DEADLINE_SECONDS, SaveEffects, SavingRun

LOOK_SECONDS: Final = 0.05
"""How often ranks that stand look whether a save is settled."""
STAND_SECONDS: Final = DEADLINE_SECONDS
"""How long ranks wait for the previous save to finish when another one is due."""
STOP_SECONDS: Final = 3.0
"""How long a hand-over waits for the store's answer to a commit."""
_LOOKS: Final = 2
"""So many steps tell what the next ones will take."""
SHARE: Final = 0.25
"""A rank that is asked to leave waits for at most this part of its time for the save before the one that is wanted."""

WISHES: Final[Mapping[str, ev.Wish]] = {"cadence": ev.Wish.LATER, "epoch": ev.Wish.THIS_STEP}
"""How firmly a save is wanted, by its reason; every other one is wanted now."""

BlockingSave = Callable[[str], None]
"""Makes a blocking save for a reason."""


class BackgroundSaves:
    """The saves of one process."""

    def __init__(self, run: SavingRun) -> None:
        self._run = run
        self._state: SavesState | None = None
        self._effects = SaveEffects(run)
        self._turns = 0
        """How often the ranks have left with a save under way, and then trained on in another loop."""
        self._begun_at: int | None = None
        """The step that was done when this process began to train in this run."""
        self._looks = _LOOKS
        """How often the ranks still look for memory before a save is due."""
        self._peak = MemoryPeak()
        """Of this process, while it trains and has no memory for a copy."""
        self._grows_by: int | None = None
        """How many bytes it took for its steps, when it got memory for a copy."""
        self._trains = False
        """Whether the script gets a batch to train next."""

    # The run begins, changes its ranks, and ends.

    def begin(self, before: Carried | None = None) -> None:
        """The run is open; `before` is what it has to know of the one that it has taken over."""
        self._state = begin(self._mark(), self._run.settings.rank, before)

    def join_newer_run(self) -> None:
        """This process is now a rank of the newer run."""
        if self._state is None:
            return
        self._end_copy()
        if not self._idle:
            self._feed(ev.HandsOver())
        self._state = renewed(self._state, self._mark(), self._run.settings.rank)
        self._begun_at, self._looks = None, _LOOKS  # as on a newcomer, because the ranks look together
        self._effects.join_newer_run()

    def end(self) -> None:
        """This process ends its saves: it stops the copy and the upload."""
        if self._state is not None:
            self._feed(ev.Ends())
        self._effects.end()
        self._state = None

    def _mark(self) -> str:
        return f"{self._run.settings.uid}/{self._run.checkpointer.run}/{self._turns}"

    def settle(self) -> None:
        """The script has finished a step, or is about to register more: nothing is copied beyond that."""
        self._effects.deferral.settle()

    # What the ranks vote and read.

    def words(self) -> Sequence[int]:
        """This rank's part of the vote vector."""
        if self._state is None or self._idle:
            return Words().vector()
        self._look()
        return words(self._state).vector()

    def heard(self, most: Sequence[int]) -> None:
        """What all ranks have said."""
        if self._state is not None and not self._idle:
            self._feed(ev.Agreed(Words.read(most)))

    @property
    def may_hand_over(self) -> bool:
        """Whether the ranks may hand over now."""
        return self._state is None or may_hand_over(self._state)

    @property
    def carried(self) -> Carried:
        """What the newer run has to know if this one is handed over now."""
        return Carried() if self._state is None else carried(self._state)

    # Where a save may begin.

    def at_boundary(self, reason: str, save: BlockingSave, *, trains: bool = False) -> None:
        """All ranks are at a place where the run may stop. `reason`: why a save is due; empty if none is. Collective.

        `save` makes it if it is to be made at once. `trains`: the script gets a batch to train next. Raises what `save`
        raises.
        """
        self._trains = trains
        state, progress = self._state, self._run.progress
        if state is None:
            if reason:
                save(reason)
            return
        if self._begun_at is None:
            self._begun_at = progress.step
            self._peak.begin()
        looks = self._looks > 0 and progress.step > self._begun_at and not reason
        size = self._bytes() if reason or looks or state.owed else 0
        pays = size >= self._run.settings.background_bytes
        if looks and pays:
            self._make_room(size)
        elif looks:
            self._looks = 0
        if self._idle and not (reason and pays):
            if reason:
                save(reason)
            return
        self._look()
        paused = self._run.schedule.paused or bool(state.outcome and not state.outcome.seq)
        if state.save is None and (reason or (state.owed and not paused)):
            self._agree_to_copy(size if pays else 0)
        position = progress.position() if reason else None
        here = ev.AtBoundary(
            progress.step,
            WISHES.get(reason, ev.Wish.NOW) if reason else None,
            reason,
            same=position is not None and self._is_at(position),
            paused=paused,
        )
        self._feed(here, save)
        begun = time.monotonic()
        while self._state is not None and stands(self._state):
            self._stand(begun, save)

    def _stand(self, begun: float, save: BlockingSave) -> None:
        time.sleep(LOOK_SECONDS)
        self._look()
        left = self._run.requests.left()
        patience = STAND_SECONDS if left is None else left * SHARE
        said, waits = self._gather("waits for the save before", time.monotonic() - begun > patience)
        self._feed(ev.Stood(said, late=any(waits)), save)

    def _agree_to_copy(self, size: int) -> None:
        """Hears whether all ranks can copy what they save, after those that could not have looked for memory."""
        said, _ = self._gather("says whether it can copy what it saves", None)
        if said.arena == ArenaUse.NONE and size:
            self._make_room(size)
            said, _ = self._gather("says whether it has memory for a copy", None)
        self._feed(ev.Agreed(said))

    def _make_room(self, size: int) -> None:
        """Ranks without memory for a copy take it, if their pod has enough for all its ranks beside their steps.
        Collective.

        What a step takes is known once this process has done one. Of the first one it is an upper bound, because what
        that creates stays. Before it, on a newcomer, the most that another rank knows counts.
        """
        peers, pod, copies = self._run.peers, self._run.settings.pod, self._effects.copies
        part, grows_by = size // peers.world, self._grows_by
        if grows_by is None and self._run.progress.step > (self._begun_at or 0):
            grows_by = self._peak.growth()
        told = peers.gather("says how much memory a copy needs", [*copies.needs(part), grows_by])
        most = max((grows for *_, grows in told if grows is not None), default=None)
        if most is None:
            return
        needs = [(lacks + (most if grows is None else grows), free) for lacks, free, grows in told]
        missing = [missing_together(needs[first : first + pod]) for first in range(0, len(needs), pod)]
        self._looks = max(self._looks - 1, 0) if any(missing) else 0
        own = missing[self._run.settings.rank // pod]
        if self._known.room:
            return
        made = not (own and self._looks) and copies.make_room(part, own)
        self._feed(ev.Room(made))
        if made:
            self._grows_by = most if grows_by is None else grows_by
        else:
            self._peak.begin()

    def _gather(self, doing: str, beside: Any) -> tuple[Words, list[Any]]:
        answers = self._run.peers.gather(doing, [list(words(self._known).vector()), beside])
        return reduced(Words.read(vector) for vector, _ in answers), [other for _, other in answers]

    # The ranks stop for a hand-over.

    def stop(self) -> str:
        """The ranks stand for a hand-over: waits for the store's answer to a commit. Returns why that has failed.

        Collective, if a save is under way.
        """
        if self._state is None or self._idle:
            return ""
        begun, refused = time.monotonic(), ""
        try:
            self._end_copy()
            self._feed(ev.Stops())
            while stands(self._known) and not refused:
                self._look()
                said, waits = self._gather("waits for a commit", time.monotonic() - begun > STOP_SECONDS)
                for action in self._feed(ev.Stood(said, late=any(waits))):
                    if isinstance(action, ev.RefuseHandover):
                        refused = action.why
                time.sleep(LOOK_SECONDS / 10)
        except PerdureError as error:
            return str(error)
        return refused

    def train_on(self) -> None:
        """The hand-over was aborted."""
        if self._state is not None:
            self._feed(ev.TrainsOn())

    # The ranks leave.

    def leave(
        self, position: Position, left: SecondsLeft, whole: Callable[[SecondsLeft], None], *, hurries: bool
    ) -> bool:
        """All ranks leave their run at `position`, with a final commit. Collective.

        `whole` makes it from the live state within the time that it is given. `hurries`: something waits for this
        process to exit. Returns whether it did; if not, the save under way was of this very position. Raises what
        `whole` raises, and StorageError if time is up.
        """
        if self._state is None or self._idle:
            whole(left)
            return True
        try:
            return self._leave(position, left, whole, hurries)
        finally:
            self._turns += 1
            self._state = renewed(self._known, self._mark(), self._run.settings.rank)

    def _leave(
        self, position: Position, left: SecondsLeft, whole: Callable[[SecondsLeft], None], hurries: bool
    ) -> bool:
        failed: list[StorageError] = []
        while True:
            self._look()
            actions = self._feed(self._leaving(position, left, hurries))
            for action in actions:
                match action:
                    case ev.Stream(keep=keep):
                        if self._streams(lambda keep=keep: whole(lambda: _less(left(), keep)), failed):  # type: ignore[misc]
                            return True
                    case ev.Left():
                        return False
                    case ev.Close(why) | ev.GiveUp(why):
                        if isinstance(action, ev.Close):
                            self._run.checkpointer.close(why)
                        if self._run.progress.saved:
                            return False
                        raise failed[-1] if failed else StorageError(f"step {position.step} is not saved: {why}")
            if not actions:
                time.sleep(LOOK_SECONDS)

    def _streams(self, whole: Callable[[], None], failed: list[StorageError]) -> bool:
        """Makes the last save of the live state; False if the store did not answer in time."""
        try:
            whole()
        except StorageRefused:
            raise
        except StorageError as error:
            failed.append(error)
            self._feed(ev.Streamed(done=False))
            return False
        self._feed(ev.Streamed(done=True))
        return True

    def _leaving(self, position: Position, left: SecondsLeft, hurries: bool) -> ev.Leaves:
        known = {
            "left": left(),
            "rest": self._effects.rest(self._known.save) if self._known.save else 0.0,
            "whole": self._effects.whole(),
            "hurries": hurries,
            "unanswered": unanswered(self._known),
        }
        said, ranks = self._gather("leaves with a save under way", known)
        return ev.Leaves(
            said,
            left=min((one["left"] for one in ranks if one["left"] is not None), default=None),
            rest=max(one["rest"] for one in ranks),
            whole=max(one["whole"] for one in ranks),
            same=self._is_at(position),
            hurries=any(one["hurries"] for one in ranks),
            unanswered=any(one["unanswered"] for one in ranks),
        )

    # Looking.

    @property
    def _known(self) -> SavesState:
        if self._state is None:
            raise RuntimeError("no run is open")
        return self._state

    @property
    def _idle(self) -> bool:
        """Whether no save is under way, owed or unreported. Equal on all ranks."""
        state = self._state
        return state is None or not (state.save or state.outcome or state.owed)

    def _bytes(self) -> int:
        """How large the state is, about. Equal on all ranks."""
        return sum(map(tensors.size_of, self._run.registry.trained()))

    def _is_at(self, position: Position) -> bool:
        """Whether the save under way is all that is wanted at this position: it has no pin. Equal on all ranks."""
        save, pinned = self._known.save, self._run.checkpointer.pin is not None
        return save is not None and not pinned and self._effects.position(save) == position

    def _look(self) -> None:
        """Hears what the copy, the uploading process, rank 0's requests and the clock say."""
        self._end_copy()
        for event in self._effects.results():
            self._feed(event)
        save = self._known.save
        if save and self._effects.has_become_late(save):
            self._feed(ev.Late(save.name))

    def _end_copy(self) -> None:
        for event in self._effects.copied():
            self._feed(event)

    # Acting.

    def _feed(self, event: ev.Event, save: BlockingSave | None = None) -> list[ev.Action]:
        """Passes an event to the machine and carries out its actions, but for those of the caller, which it returns."""
        self._state, actions = step(self._known, event)
        return [action for action in actions if not self._act(action, save)]

    def _act(self, action: ev.Action, save: BlockingSave | None) -> bool:
        match action:
            case ev.Copy():
                self._copy(action.save)
            case ev.StartUpload() | ev.KillUploader():
                self._effects.act_on_process(action)
            case ev.Prepare() | ev.Append() | ev.Abandon():
                self._effects.act_on_rank_0(action)
            case ev.TellCommitted() | ev.TellFailed() | ev.TellMissed():
                self._effects.tell(action)
            case ev.Stream(reason, final=False) if save:
                save(reason)
                self._feed(ev.Streamed(done=self._run.progress.saved))
            case ev.StopFenced():
                self._effects.stop_fenced()
            case _:
                return False
        return True

    def _copy(self, save: ev.Save) -> None:
        try:
            events = self._effects.copy(save, trains=self._trains)
        except BaseException as error:
            self._effects.copied()  # the copy may have begun, and the next user of the arena must be the only one
            self._feed(ev.CopyFailed(save.name, f"it could not be copied: {in_words(error)}"))
            raise
        for event in events:
            self._feed(event)


def _less(left: float | None, keep: float) -> float | None:
    return None if left is None else left - keep
