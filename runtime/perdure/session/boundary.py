"""Decides where a run may stop: when the script requests its next batch, or when an epoch's body ends.

`step()` only counts the step and votes, because what the script does after it, such as a scheduler's step, belongs to
that step. The session carries out what the ranks agreed on when a training source hands out its next batch, right
before it draws the batch; there it captures the random generators. After an epoch's last batch nothing happens until
the body ends, because a resumed run would execute the rest of the body without a batch. Only a request with a deadline,
or a poll, may save there.

Called by the sources of `Session`, by its steps and polls, and by perdure.session.job at every epoch's end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NoReturn

from perdure.console import say
from perdure.errors import PeerLost
from perdure.group.agreement import NOTHING, CheckpointCall, Votes
from perdure.live.handover import LiveHandover
from perdure.live.header import Stop
from perdure.live.newcomer import Newcomer
from perdure.loop.background_saves import BlockingSave
from perdure.loop.data.source import Source
from perdure.loop.leaving import Exit, save_and_leave
from perdure.loop.requests import ExitRequest
from perdure.loop.run import OWN_STOPPING, OWN_VALUES, Run
from perdure.loop.saving import SaveRequests
from perdure.loop.telemetry.events import Evaluating, PhaseBegan, RequestSeen, SaveWaited, Stepped
from perdure.session.late import check_all_registered, settle
from perdure.session.repeated import Repeated
from perdure.state.write_detection import Fingerprint, Fingerprints
from perdure.wire import Env
from perdure.wire.report import TrainerPhase

PRESSING: Final = 0.25
"""An evaluation between two steps continues until only this fraction of a request's time is left."""
PRESSING_SECONDS: Final = 10.0
_STEP: Final = CheckpointCall.STEP
"""Looked up once, because every step needs it and Python looks up enum members through a function."""


class Boundary:
    """Makes the checkpoints that are due, and leaves when all ranks leave."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._progress = run.progress
        self.exhausted = False
        """True once a rank has called `step(exhausted=True)`."""
        self.leaving = False
        """True once the ranks have agreed to leave."""
        self.exit_seen = False
        """True once this rank's script has seen the request to leave. It may leave its loop because of it."""
        self.has_left = False
        """True once everything is saved and `should_stop` has returned True. The script gets no further batch."""
        self._departing: BaseException | None = None
        """The exception that left the script, or that replaced it because leaving failed."""
        self.live_handover = LiveHandover(run)
        self.newcomer: Newcomer | None = None
        """Set while this process waits to join a living run, until its first batch."""
        self._due = ""
        """Why a checkpoint is due; empty if none is."""
        self._saves = SaveRequests(run.settings.request_file, run.settings.check_seconds)
        self._stepped = False
        self._request_traced = False
        self.begin_evaluation: Callable[[str], None] = lambda _: None
        """Opens the run if an evaluation begins outside of the epoch loops."""
        self._fingerprints = Fingerprints()
        self._own_weights: Fingerprint | None = None
        """The training's weights, which an evaluation may replace for a while: those after the last step, if the script
        is known to evaluate between two steps, and those around an epoch's batches. None if they are not known."""
        self._in_step_rest = False
        """True from a step until the next batch: what the script does there belongs to that step."""
        self._evaluates_in_steps = False
        """Whether the script has polled, or made a pass over an evaluation, between two steps."""
        self._said_other = False
        self._repeated = Repeated(run)
        self._unheard: PeerLost | None = None
        """A peer that was lost in the vote at a step."""

    # Called by the sources.

    @property
    def epoch(self) -> int | None:
        """The number of the current epoch, over all loops."""
        return self._progress.epoch

    def begin_pass(self, source: Source[Any]) -> None:
        """A loop over `source` begins."""
        if source.evaluates:
            self._run.evaluated.end_look()
            self.begin_evaluation(source.name)
            self._run.tell(PhaseBegan(TrainerPhase.EVALUATING))
        self._progress.begin_pass(source)

    def batch_requested(self, source: Source[Any]) -> None:
        """The script requests its next batch: does what is due, if the run may stop here."""
        self._measure_time(source)
        if self._run.registry.not_registered_yet:
            settle(self._run)
        stops = self._progress.batch_requested(source)
        if source.evaluates:
            self._vote_in_evaluation(source, stops=stops)
        if stops and not source.evaluates:
            self._run.evaluated.settle()
            self._end_step_rest()
            self._repeated.first_batch()
            source.refuse_late_place(self._streams)
            self._run.first_batch()
            source.look_at_limit(joins=self.newcomer is not None)
        if (not stops and not self._run.joining) or (source.evaluates and not self._have_own_weights("evaluates")):
            return
        joins = self.newcomer is not None
        if self.newcomer and not self._first_batch(source, self.newcomer):
            return
        self._run.images.reach_safe_point(after_takeover=joins)
        if self._lost:
            raise self._lost
        if self.leaving:
            self.leave()
        if self._run.agreement.attempt and self.epoch is not None:  # after the goal no run is taken over
            if self._run.checkpointer.pin:
                self.save_if_due()  # newcomers do not know the pin
            self._hand_over(source)
        self.save_if_due(trains=not source.evaluates, asked=source)
        self._run.mirror.at_boundary(trains=not source.evaluates)

    def _have_own_weights(self, doing: str) -> bool:
        """Whether the models are known to have the training's own weights. Collective if all ranks have to act.

        An evaluation may replace them, for example by an average, and restore them afterwards. Nothing is saved
        meanwhile.
        """
        if self.epoch is None or (self._own_weights is None and not self._in_step_rest):
            return True
        own = self._own_weights
        known, have = own is not None, own is not None and self._weights().elements == own.elements
        if self.leaving or self._due or self._run.agreement.attempt:
            where = "a step" if self._in_step_rest else "an epoch"
            have, known = map(
                all, zip(*self._run.peers.gather(f"{doing} in the rest of {where}", (have, known)), strict=True)
            )
        if not have and self.leaving and not self._said_other:
            self._said_other = True
            self.warn(
                "asked to leave, but the weights differ from those after the last step, as when an evaluation uses an "
                "average: nothing is saved until they are back"
                if known
                else f"asked to leave in the script's first evaluation between two steps, after step "
                f"{self._progress.step}: it may use other weights than the training, so nothing is saved before it ends"
            )
        return have

    def _weights(self) -> Fingerprint:
        return self._fingerprints.look(self._run.registry.parameters())

    def _begin_step_rest(self) -> None:
        """What the script does until the next batch belongs to the step that is done."""
        self._in_step_rest = True
        self._own_weights = None
        if self._evaluates_in_steps or self.leaving or self._wants_exit:
            self._own_weights = self._weights()
            self._run.registry.modes.note_step()

    def _end_step_rest(self) -> None:
        self._in_step_rest, self._own_weights = False, None
        self._run.registry.modes.forget_step()

    def _streams(self) -> Mapping[str, Any]:
        """Registered objects that can be iterated. A checkpoint saves their positions, whichever batch they are at."""
        others = self._run.registry.others
        own = (OWN_VALUES, OWN_STOPPING)
        return {name: one for name, one in others.items() if name not in own and isinstance(one, Iterable)}

    def _vote_in_evaluation(self, source: Source[Any], *, stops: bool) -> None:
        """Votes between two batches of an evaluation. If the run `stops` there, its position is within the
        evaluation."""
        self.go_on()
        if self._run.joining:
            return
        if not stops:
            self._poll("evaluates")
            return
        if source.consumed and not self._stepped:
            self._has_begun()
            self._run.tell(Evaluating(self._progress.step, self._progress.epochs_done))
        self._check(CheckpointCall.POLL)
        self._run.reports.call_due()

    def _has_begun(self) -> None:
        """From here on there is something to save."""
        self._run.requests.before_first_step(None)
        self._stepped = True

    def _first_batch(self, source: Source[Any], newcomer: Newcomer) -> bool:
        """Whether this process, which waited to join a living run, is now one of its ranks."""
        if not newcomer.first_batch(source.name):
            return False
        self.newcomer = None
        self._run.checkpointer.pin = None
        self._due, self.exhausted = newcomer.header.due, newcomer.header.exhausted
        return True

    def _hand_over(self, source: Source[Any]) -> None:
        """Hands over: all old ranks were ready when they last checked. The newest vote counts."""
        run = self._run
        self._note(run.agreement.collect())
        run.mirror.settle()
        self._own_weights = None  # newcomers have none either
        if not self.leaving and run.agreement.attempt:
            try:
                with run.heartbeat.paused(), run.handing_over():
                    self.leaving = self.live_handover.hand_over(Stop(source.name, self._due, self.exhausted))
            except BaseException as error:
                self._departing = error  # if a leaver's script catches it, the process is still no rank any more
                raise
        if self.leaving:
            self.leave()
        self._run.images.reach_safe_point(after_takeover=True)

    def draw_begins(self, source: Source[Any]) -> None:  # noqa: ARG002
        """The batch is drawn next. No rank waits for another one until it is handed out."""
        self._run.figures.begin_draw()

    def batch_handed_out(self, source: Source[Any]) -> None:
        """A batch goes to the script."""
        self._run.figures.end_draw()
        self._progress.batch_handed_out(source)
        if not source.evaluates:
            self._run.evaluated.begin_step()
        if self._run.measurements:
            self._run.measurements.batch_handed_out(source)

    def end_pass(self, source: Source[Any]) -> None:
        """A loop over `source` is over."""
        self._measure_time(source)
        self._progress.end_pass(source)
        if source.evaluates:
            self._run.evaluated.note()
            self._run.tell(PhaseBegan(TrainerPhase.TRAINING))
        if source.evaluates or not self._progress.in_rest or self._run.joining:
            return
        self._end_step_rest()
        self._own_weights = self._weights()
        if self.leaving and not source.left:
            self._save_in_case()

    def _measure_time(self, source: Source[Any]) -> None:
        """The script is done with the batch that it has."""
        if self._run.measurements:
            self._run.measurements.batch_requested(source)

    def warn(self, words: str) -> None:
        """Prints a warning. All ranks call this; rank 0 prints."""
        if self._run.rank == 0:
            say(words)

    # Called by the script.

    def step(self, *, exhausted: bool) -> None:
        """One optimizer step is done."""
        run, progress = self._run, self._progress
        run.checkpointer  # noqa: B018 - raises if nothing is restored
        run.background.settle()
        run.mirror.before_step()
        check_all_registered(run)
        run.evaluated.end_look()
        run.registry.note_gradients()
        if run.measurements:
            run.measurements.stepped()
        ids = progress.finish_step()
        self._repeated.stepped()
        if not self._stepped:
            self._has_begun()
        run.tell(Stepped(progress.step, progress.epochs_done, ids, alone=run.images.lost is not None))
        run.heartbeat.stepped()
        if progress.step == run.settings.exit_at_step:
            run.requests.ask(f"{Env.EXIT_AT_STEP}={progress.step}")
        if run.schedule.after_step(progress.step):
            self._due = self._due or "cadence"
        self._check(_STEP, exhausted=exhausted)
        self._begin_step_rest()
        run.reports.call_due()

    def poll(self) -> None:
        """The script offers a place to leave, for example within a long evaluation."""
        self._progress.polls += 1
        self._poll("polls")

    def _poll(self, doing: str) -> None:
        self._run.checkpointer  # noqa: B018 - raises if nothing is restored
        self._run.evaluated.note()
        self._check(CheckpointCall.POLL)
        self._run.reports.call_due()
        self._evaluates_in_steps = self._evaluates_in_steps or self._in_step_rest
        if not self.leaving or not self._progress.may_save or not self._have_own_weights(doing):
            return
        if self._progress.may_leave:
            self.leave()
        if self._pressing():
            self.warn(
                f"the time to leave is nearly over: leaves in the middle of an evaluation that follows step "
                f"{self._progress.step}. The resumed run does not repeat what the script does after it in that step, "
                f"such as a scheduler's step: give it a longer grace period"
            )
            self.leave()
        self._save_in_case()

    def should_stop(self) -> bool:
        """Whether the script leaves its batch loop here, between two batches. If so, everything is saved.
        Collective."""
        self._run.checkpointer  # noqa: B018 - raises if nothing is restored
        if not self.has_left and self.leaving and self._progress.may_save:
            self._end_step_rest()
            self._progress.sums.settle()
            with contextlib.suppress(Exit):
                self.leave()
            self.has_left = True
        return self.has_left

    def mark(self, pin: str | None = None) -> None:
        """The script requests a checkpoint, pinned if it gives a name."""
        checkpointer = self._run.checkpointer
        pin = None if pin is None else checkpointer.check_pin(pin)
        self._check_at_once(CheckpointCall.SAVE if pin is None else CheckpointCall.PIN)
        self._due = "script"
        if pin is not None:
            checkpointer.pin = pin
            self._progress.saved = False  # the saved commit lacks this pin

    # Called by the epoch loops.

    def leave(self) -> NoReturn:
        """Saves and leaves, on all ranks. Raises the same exception again if the script has caught it."""
        self.go_on()
        self.live_handover.leaving()
        try:
            save_and_leave(self._run, self.live_handover.saved)
        except BaseException as error:
            self._departing = error
            raise

    def go_on(self) -> None:
        """Raises again an error that the script caught on its way out. Otherwise batches that it never got would
        count."""
        if self._departing is not None:
            raise self._departing

    def begin_epoch(self) -> None:
        """The body of an epoch is about to begin."""
        self._repeated.begin()
        self._own_weights = None if self._run.joining else self._weights()

    def end_epoch(self) -> None:
        """An epoch's body is done: reads requests to leave that came meanwhile."""
        self._end_step_rest()
        self._check_at_once(CheckpointCall.END)
        if self._run.schedule.after_epoch(self._progress.epochs_done):
            self._due = self._due or "epoch"

    def save_if_due(self, *, goal: bool = False, trains: bool = False, asked: Source[Any] | None = None) -> None:
        """Makes the checkpoint that is due, if any. `goal`: the training has reached its goal. `trains`: the script
        gets a batch to train next. `asked`: the source that it has asked for its next batch."""
        due, self._due = self._due, ""
        if due and asked and self.epoch is not None and not self._progress.saved:
            asked.save_is_due(self.epoch)
        save = partial(self._save_now, goal=goal)
        self._at_boundary("" if self._progress.saved else due, save, trains=trains)

    def save(self, reason: str) -> None:
        """Makes a checkpoint now. If the store fails, that is reported and training continues."""
        self._at_boundary(reason, self._save_now)

    def _at_boundary(self, reason: str, save: BlockingSave, *, trains: bool = False) -> None:
        """Makes or begins the save that is due for this reason, and reports how long the script waited for it."""
        if not reason:
            self._run.background.at_boundary("", save, trains=trains)
            return
        self._run.tell(PhaseBegan(TrainerPhase.SAVING))
        begun = time.monotonic()
        try:
            self._run.background.at_boundary(reason, save, trains=trains)
        finally:
            self._run.tell(SaveWaited(time.monotonic() - begun))

    def _save_now(self, reason: str, *, goal: bool = False) -> None:
        run = self._run
        try:
            with run.heartbeat.paused():
                done = run.checkpointer.periodic(self._progress.position(), reason)
        finally:
            run.tell_failures()
        if done:
            self._progress.saved = True
            run.schedule.saved()
            run.tell_commit(goal=goal)
        else:
            run.schedule.failed(run.checkpointer.failures, run.checkpointer.wasted)

    # The ranks' votes.

    def _check(self, kind: CheckpointCall, *, exhausted: bool = False) -> None:
        """Votes, and reads what the ranks voted at an earlier check. Does nothing once all have agreed to leave."""
        self._run.requests.look()
        self._trace_request()
        if not self.leaving and not self._run.joining and not self._lost:
            save, save_number = (self._run.schedule.by_the_clock(), self._saves.look()) if kind is _STEP else (False, 0)
            wants_exit = self._wants_exit
            news = wants_exit or save or exhausted or save_number
            votes = Votes(wants_exit, save, exhausted, save_number=save_number) if news else NOTHING
            try:
                self._note(self._run.agreement.check(self._progress.step, kind, votes, self.live_handover.look))
            except PeerLost as error:
                if not self._run.images.wanted:
                    raise
                self._unheard = error

    def _check_at_once(self, kind: CheckpointCall) -> None:
        """Like `_check`, but all ranks read here what all of them vote here."""
        self._run.requests.look()
        self._trace_request()
        if self._lost:
            raise self._lost
        if not self.leaving and not self._run.joining:
            votes = Votes(exit=self._wants_exit, attempt=self.live_handover.look())
            self._note(self._run.agreement.at_once(self._progress.step, kind, votes))

    @property
    def _lost(self) -> PeerLost | None:
        """A peer that was lost during a step. It is raised at the next request for a batch, because what the script
        does after the step still belongs to it."""
        return self._unheard or self._run.images.lost

    @property
    def _wants_exit(self) -> bool:
        return self._run.requests.seen or self.live_handover.exit_wanted

    def _note(self, agreed: Votes) -> None:
        self.leaving = agreed.exit
        self.exhausted = self.exhausted or agreed.exhausted
        if agreed.save or agreed.save_number:
            self._due = self._due or ("asked" if agreed.save_number else "cadence")
            self._saves.agreed(agreed.save_number)

    def _pressing(self) -> bool:
        """Whether the time of some rank's request is nearly over. Collective."""
        return any(self._run.peers.gather("polls between two steps", _is_pressing(self._run.requests.current)))

    def _save_in_case(self) -> None:
        """Saves if the request has a deadline, because the run may be killed before it can leave in order.
        Collective."""
        if not self._progress.saved and any(
            self._run.peers.gather("may save before it can leave", self._run.requests.left() is not None)
        ):
            say(f"asked to leave: step {self._progress.step} is saved now, in case time runs out before the next batch")
            self.save("in case")

    def _trace_request(self) -> None:
        """Traces the request once, with the time at which it was seen instead of this check's."""
        request = self._run.requests.current
        if request and not self._request_traced:
            self._request_traced = True
            at = time.time() - (time.monotonic() - request.at)
            self._run.tell(RequestSeen(self._progress.step, request.cause, at))


def _is_pressing(request: ExitRequest | None) -> bool:
    if request is None or request.deadline is None or request.left is None:
        return False
    return request.left <= max(PRESSING_SECONDS, PRESSING * (request.deadline - request.at))
