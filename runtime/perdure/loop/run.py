"""What one process of one run shares between the session's rooms. Decides nothing.

perdure.live.joining fills it when the ranks are connected, and perdure.session.resuming when the run is open in the
log. Made by `Session`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

from perdure.checkpoint.checkpointer import Checkpointer
from perdure.checkpoint.opening import Opening
from perdure.checkpoint.schedule import CheckpointSchedule
from perdure.checkpoint.state import RankState
from perdure.errors import UserError
from perdure.group.agreement import Agreement
from perdure.group.gloo import peer_lost
from perdure.group.heartbeat import Heartbeat
from perdure.group.old_groups import OldGroups
from perdure.group.peers import Peers, Solo
from perdure.group.world import collectives_so_far
from perdure.log.images import Stamp
from perdure.loop.adapting.decision_list import DecisionHistory
from perdure.loop.adapting.part_gradients import PartGradients
from perdure.loop.adapting.statistical_progress import StatisticalProgress
from perdure.loop.background_saves import BackgroundSaves
from perdure.loop.data.batch_share import BatchShare, share_in
from perdure.loop.death_cost import death_cost
from perdure.loop.evaluated import Evaluated
from perdure.loop.framework import Framework
from perdure.loop.hooks import HookName, Hooks
from perdure.loop.measuring.measurements import EVERY, Measurements
from perdure.loop.measuring.measurements import STATE as MEASURED
from perdure.loop.mirroring import Mirror
from perdure.loop.position.accumulating import Sums
from perdure.loop.position.datasets import Datasets
from perdure.loop.position.progress import ProgressTracker
from perdure.loop.position.stopping import Stopping
from perdure.loop.reporting import Reporter
from perdure.loop.reports import Reports, read_values
from perdure.loop.requests import Requests
from perdure.loop.result import Result
from perdure.loop.survivor_snapshots import SurvivorSnapshots
from perdure.loop.telemetry.events import Event, HandoverStop, Reported
from perdure.loop.telemetry.figures import FiguresToAgent
from perdure.loop.telemetry.sinks import LogLines
from perdure.loop.telemetry.timings import Timings
from perdure.loop.telemetry.trace import NoTrace, Trace
from perdure.state import rng
from perdure.state.registry import Registry
from perdure.state.userstate import UserState
from perdure.state.wrapping import Replica, spread, spread_now
from perdure.store import Store, open_store
from perdure.wire import AttemptRecord, ExitKind
from perdure.wire.channel import CommitDone, Exiting, Resulted, SaveFailed
from perdure.wire.report import DeathCost
from perdure.wire.settings import Settings

OWN_VALUES: Final = "session"
"""The name under which a checkpoint holds the script's own values."""
OWN_STOPPING: Final = "session_stopping"
"""The name for the session's own values: training time, requests to stop, result, accumulators, facts of datasets,
decisions about the batch, statistical progress."""


OwnPart = Stopping | Result | Sums | Datasets | DecisionHistory | StatisticalProgress


class SessionState:
    """The session's own state, under one name. A checkpoint of an older version holds a part of it."""

    def __init__(self, *kept: OwnPart) -> None:
        """No two of them use the same name for a value."""
        self._kept: list[OwnPart | Measurements] = [*kept]
        self._loaded: Mapping[str, Any] = {}

    @property
    def measured(self) -> bool:
        """Whether the run that it was loaded from has measured its training."""
        return MEASURED in self._loaded

    def add(self, one: Measurements) -> None:
        """One more from now on. It gets its part of a checkpoint that was loaded before."""
        self._kept.append(one)
        one.load_state_dict(self._loaded)

    def state_dict(self) -> dict[str, Any]:
        """The values of all of them."""
        return {name: value for one in self._kept for name, value in one.state_dict().items()}

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        """Restores each of them."""
        self._loaded = saved
        for one in self._kept:
            one.load_state_dict(saved)


class Run:
    """This process in its run."""

    store: Store
    peers: Peers
    agreement: Agreement
    heartbeat: Heartbeat
    hands_over = False
    """Whether its ranks are in the stop of a live hand-over."""
    _own_collectives = 0
    """Collectives that are not the script's. A newcomer skips them."""
    _resumed_share: list[int] | None = None
    """This rank's share of a batch as the checkpoint has it."""
    measurements: Measurements | None = None
    """What it measures of its training; None unless it is to."""
    part_gradients: PartGradients | None = None
    """What the parts of a batch leave in gradients; None unless a loader adapts."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.progress = ProgressTracker()
        self.registry = Registry()
        self.progress.generators.follow(self.registry.modes)
        self.timings = Timings()
        self.figures = FiguresToAgent(
            settings.report_fd,
            settings.world,
            self._part_done,
            self._save_seconds,
            self._death_cost,
            started=settings.started,
        )
        self.reporter = Reporter(settings.report_fd, LogLines(settings.run, settings.rank), self.timings, self.figures)
        self.requests = Requests(
            settings.request_file,
            settings.grace,
            look_seconds=settings.check_seconds,
            launcher_kills=settings.master_is_elsewhere,
        )
        self.schedule = CheckpointSchedule(settings.cadence, rank=settings.rank)
        self.hooks = Hooks(
            lambda name: self.progress.beside(f"the hook {name.value!r}", may_read=name is HookName.INIT)
        )
        self.stopping = Stopping()
        self.reports = Reports(self.report)
        self.images = SurvivorSnapshots(self)
        self.mirror = Mirror(self)
        self.background = BackgroundSaves(self)
        self.evaluated = Evaluated(self)
        self.user_state = UserState(self.registry.trained)
        self.registry.add(OWN_VALUES, self.user_state)
        self.result = Result()
        self._reported_result: dict[str, Any] | None = None
        self._own_state = SessionState(self.stopping, self.result, *self.progress.kept)
        self.registry.add(OWN_STOPPING, self._own_state, loose=True)
        self.joining = settings.handover is not None
        """Whether this process waits to join a living run, and is no rank of it yet."""
        self.old_groups = OldGroups()
        self.hint = ""
        """An extra hint for errors about ranks that have diverged."""
        self.seed = 0
        """Seeds random states that cannot be resumed."""
        self.max_save_failures: int | None = None
        """How many periodic checkpoints may fail in a row."""
        self.timeout = 0.0
        """How long a collective may wait for a rank, in seconds."""
        self.found: object = None
        """The store of the process group that existed before the Session. The script may end that group early; this
        reference keeps its store alive."""
        self.replicas: list[Replica] = []
        """The models that the script has wrapped."""
        self.framework: Framework | None = None
        """The framework that drives the loop, if any."""
        self.before_save: Callable[[], None] = lambda: None
        """Called on all ranks when a save is about to read the state."""
        self.trace: Trace = NoTrace()
        self.opening: Opening | None = None
        self.opened_checkpointer: Checkpointer | None = None
        self.attempt: AttemptRecord | None = None
        """What this process did and read in its newest hand-over."""
        self.collectives_before: int | None = None
        """How many collectives the script had made before its first batch to train on; None before that."""
        self.read_opened = 0
        """The highest run of which it has read `Opened` in the log."""

    def open_store(self) -> None:
        """Opens the store of the checkpoint root, with the keys of the environment. UserError if there is no such
        store."""
        self.store = open_store(self.settings.root, os.environ)

    @property
    def rank(self) -> int:
        """This process's number in the run."""
        return self.settings.rank

    @property
    def world(self) -> int:
        """How many processes the run has."""
        return self.settings.world

    @property
    def checkpointer(self) -> Checkpointer:
        """Makes the run's commits. UserError before the run is open."""
        if self.opened_checkpointer is None:
            raise UserError("nothing is restored yet: iterate `for epoch in session.epochs(n)`, or call restore()")
        return self.opened_checkpointer

    def first_batch(self) -> None:
        """The script requests a batch to train on: counts what it did before the first one."""
        if self.collectives_before is None:
            counts = (self.registry.sharded or self.framework) and not self.settings.joined
            self.collectives_before = collectives_so_far() - self._own_collectives if counts else 0

    @contextmanager
    def own_collectives(self) -> Iterator[None]:
        """Meanwhile collectives do not count as the script's. Blocks may be nested."""
        scripts = collectives_so_far() - self._own_collectives
        try:
            yield
        finally:
            self._own_collectives = collectives_so_far() - scripts

    @property
    def mirrored(self) -> Stamp | None:
        """The newest snapshot that lies in this pod for the mirror."""
        return self.mirror.newest

    def take_replica(self, replica: Replica) -> None:
        """Has a wrapped model train on the ranks, now if there are any yet, and on those that follow. Collective.

        UserError on all ranks if their models differ; then it is none that follows the ranks.
        """
        if not self.joining:
            with self.own_collectives():
                replica.adapt(self.world, gather=self.peers.gather)
        if self.measurements:
            replica.watch(self.measurements.rank_norms)
        self.replicas.append(replica)

    @property
    def measures_alone(self) -> bool:
        """Whether it measures its training and the run that it goes on with does not, or the other way round."""
        return (self.measurements is not None) is not self._own_state.measured

    def measure(self, batch: int, every: int = EVERY) -> Measurements:
        """Measures the training from now on. All ranks call it between the same two steps. `batch`: the samples of the
        script's own batch. `every`: of how many steps one is looked at for its gradients."""
        if self.measurements is None:
            self.measurements = Measurements(self, batch, every)
            self._own_state.add(self.measurements)
            self.agreement.apart = self.measurements
            for replica in self.replicas:
                replica.watch(self.measurements.rank_norms)
        return self.measurements

    def state(self) -> RankState:
        """The state that a save made now would hold."""
        return self.registry.state(self.own(), spread=spread(self.replicas) if self.world > 1 else ())

    def state_to_save(self) -> RankState:
        """The state for a save by all ranks. Collective, if the framework that drives the loop makes it so."""
        self.before_save()
        return self.state()

    def beside(self) -> list[Any]:
        """What this rank tells the others with a save, beside its state."""
        return [self.progress.datasets.facts_of_this_rank(), self.evaluated.total()]

    def compare_beside(self, by_rank: Sequence[list[Any]]) -> None:
        """The values of all ranks. UserError if they cannot train together. Collective if they differ."""
        self.progress.datasets.compare([datasets for datasets, _ in by_rank])
        self.evaluated.compare([evaluated for _, evaluated in by_rank])

    def spread_buffers(self) -> None:
        """Gives all ranks rank 0's buffers, which they would have after a resume. Collective."""
        with peer_lost("buffers were spread"):
            spread_now(self.replicas)

    @property
    def batch_share(self) -> BatchShare | None:
        """This rank's share of a batch; None before the script has said which ranks share one."""
        mesh = self.progress.batch_mesh or self._models_mesh
        if mesh is not None:
            return share_in(mesh)
        return BatchShare(self.rank, self.world) if self.progress.sources else None

    @cached_property
    def _models_mesh(self) -> Any:
        """Sharded models are registered before this is first asked for, and keep their mesh."""
        return self.registry.batch_mesh

    @property
    def drawing_place(self) -> rng.DrawingPlace:
        """Where this rank is among those that draw random numbers."""
        share = self.batch_share
        return rng.DrawingPlace(self.rank, self.rank if share is None else share.rank)

    def resume_share(self, own: Mapping[str, Any] | None) -> None:
        """Takes this rank's share of a batch from its own state in a checkpoint of as many ranks: it counts until the
        script says. Without any, the rank draws as if each had a share of its own."""
        self._resumed_share = [self.rank, self.world] if own is None else own.get(rng.SHARE)

    def _share(self) -> dict[str, Any]:
        share = self.batch_share
        if share is None:
            return {rng.SHARE: self._resumed_share} if self._resumed_share else {}
        return {rng.SHARE: [share.rank, share.world]}

    def own(self, reading: rng.Reading = rng.IN_FULL) -> dict[str, Any]:
        """The part of the state that is this rank's alone."""
        kept = {**self._share(), **self.progress.sums.own(), **self.registry.own()}
        return {"rng": self.progress.generators.state(reading), "asked": self.stopping.requested, **kept}

    def let_go(self) -> None:
        """Frees the groups. This closes the connections, so that ranks still waiting for this one get an error."""
        for replica in self.replicas:
            replica.let_go()
        self.peers, self.agreement, self.found = Solo(), Agreement(None), None
        if self.opened_checkpointer:
            self.opened_checkpointer.peers = self.peers
        self.old_groups.clear()

    def let_go_shards(self) -> None:
        """Drops the groups that sharded modules keep, once the script trains no more. Otherwise rank 0's store would
        listen until the process has ended, and the pod's next trainer would wait for that."""
        if not self.settings.joined:
            self.registry.let_go_groups()

    def _part_done(self) -> float | None:
        return self.progress.part_done(self.stopping.clock.seconds)

    def _save_seconds(self) -> float | None:
        """What the newest save took; None before the first."""
        return self.timings.of_a_save() if "commit" in self.timings.seconds else None

    def _death_cost(self) -> tuple[DeathCost, int | None]:
        """What the death of a member costs now, and how many steps if that is a number."""
        return death_cost(images=self.images.hold_all_steps, mirror=self.mirror.guard)

    def tell(self, event: Event) -> None:
        """Reports an event to the agent, the trace and the other sinks."""
        self.reporter.tell(event)

    @contextmanager
    def handing_over(self) -> Iterator[None]:
        """The block is the stop of a live hand-over."""
        self.hands_over = True
        self.tell(HandoverStop(True))
        try:
            yield
        finally:
            self.hands_over = False
            self.tell(HandoverStop(False))

    def tell_commit(self, *, goal: bool = False) -> None:
        """Reports the newest commit to the agent and the hooks. `goal`: it is the last one of the training."""
        if self.checkpointer.commit:
            self.tell(CommitDone(self.checkpointer.commit, goal))
            with rng.untouched():  # a resumed run does not commit here
                self.hooks.run(HookName.COMMITTED, self.checkpointer.made)

    def tell_failures(self) -> None:
        """Tells the agent how many saves failed in a row, if any, also when training ends because of that."""
        if self.checkpointer.failures:
            self.tell(SaveFailed(self.checkpointer.failures, self.checkpointer.trouble))

    def report(self, values: Mapping[str, Any]) -> None:
        """Reports values of the script. UserError for values that cannot be reported."""
        reported = Reported(self.progress.step, self.progress.epochs_done, read_values(values))
        self.tell(reported)
        with rng.untouched():
            self.hooks.run(HookName.REPORTED, reported)

    def set_result(self, value: Mapping[str, Any] | None) -> None:
        """Sets the script's result. UserError if it is invalid."""
        self.result.set(value)
        if self.rank == 0:
            self.tell_result()

    def share_result(self, of_rank_0: Mapping[str, Any] | None) -> None:
        """The run ends: each rank reports rank 0's result, so that all pods say the same."""
        if self.rank != 0 and of_rank_0 != self.result.value:
            self.result.set(of_rank_0)
        self.tell_result()

    def tell_result(self) -> None:
        """Tells the agent the result, unless it knows that already."""
        value = self.result.value
        if value != self._reported_result:
            self._reported_result = value
            self.tell(Resulted(value))

    def ending(self, outcome: ExitKind) -> Exiting:
        """How this process is about to end, as far as it is known."""
        opened = max(self.opening.opened if self.opening else 0, self.read_opened)
        commit = self.opened_checkpointer.commit if self.opened_checkpointer else None
        seconds: dict[str, Any] = dict(self.timings.seconds)
        return Exiting(
            outcome,
            self.progress.step - self.images.alone,
            commit,
            opened,
            seconds,
            epoch=self.progress.epochs_done,
            attempt=self.attempt,
            accounts=self.figures.ledger.accounts,
        )
