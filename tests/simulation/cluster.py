"""A cluster that plays one job's whole history: nodes, pods, agents, trainers and the log, in ticks of one second.

It is written from the contract, not from `decide`: agents see only annotations and SIGTERM, and a run saves only when
all its trainers still live. The operator is driven from outside (see `history`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from perdure.contract import (
    LINGER_SECONDS,
    CommitRef,
    ErrorKind,
    ExitKind,
    Failure,
    Leave,
    Outcome,
    Standby,
    Train,
    read_assignment,
    write_outcome,
)
from perdure_operator.decide.facts import terminated
from perdure_operator.state.snapshot import NodeView, PodView, Snapshot, Terminated
from tests.unit.decide import world

GOAL = 200
EVERY = 10
SAVE_SECONDS = 2
WARM_SECONDS = 3
POD_GC_SECONDS = 40


@dataclass
class Run:
    """The trainers of one run, as they are."""

    number: int
    world: int
    lost: tuple[int, ...]
    wait: int
    pods: dict[int, str] = field(default_factory=dict)
    """By rank."""
    born: int = 0
    opened: bool = False
    step: int = 0
    commit: tuple[int, int] | None = None
    saving_since: int | None = None
    ended: ExitKind | None = None
    ended_at: int = 0
    cut_off: int = 0
    """For how many seconds one of its pods has been unreachable."""


@dataclass
class Entry:
    """One entry of the log."""

    kind: str
    run: int
    step: int


class Cluster:
    """Everything but the operator."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.tick = 0
        self.log: list[Entry] = []
        self.runs: dict[int, Run] = {}
        self.steps_lost = 0
        self.training_at_once = 0
        self._age: dict[str, int] = {}
        self._seen: dict[str, Train | Leave] = {}
        self._asked: dict[str, int] = {}
        self._absent: dict[str, int] = {}

    # what the history asks for

    def pod(self, name: str) -> PodView | None:
        """The pod, unless its object is gone."""
        return next((pod for pod in self.snapshot.pods if pod.name == name and not pod.gone), None)

    def alive(self) -> list[PodView]:
        """Pods that run or are about to."""
        return [pod for pod in self.snapshot.pods if not terminated(pod)]

    def node(self, pod: PodView) -> NodeView | None:
        """The node under a pod."""
        return next((node for node in self.snapshot.nodes if node.name == pod.node), None)

    def reachable(self, pod: PodView) -> bool:
        """Whether its kubelet hears the API server, and its trainer the others."""
        node = self.node(pod)
        return node is not None and node.ready and node.exists

    def crash(self, name: str, error: Failure | None) -> None:
        """A trainer dies of this; None: the whole container dies without a word."""
        run = self._run_of(name)
        text = "" if error is None else write_outcome(self._outcome(name, run, ExitKind.FAILED, error))
        self._end(name, text, 137 if error is None else 1)

    def vanish(self, name: str) -> None:
        """The pod's object goes by force; its processes with it."""
        self.snapshot = world.change_pod(self.snapshot, name, gone=True, ready=False)

    def forget(self) -> None:
        """What the watch of a dead operator knew."""
        self.snapshot = world.change(self.snapshot, pods=tuple(p for p in self.snapshot.pods if not p.gone))

    # one second

    def advance(self) -> None:
        """Kubelets, then agents, then trainers."""
        self.tick += 1
        self.snapshot = world.change(self.snapshot, now=self.snapshot.now + timedelta(seconds=1))
        for pod in self.alive():
            self._kubelet(pod)
        for pod in self.alive():
            if self.reachable(pod):
                self._agent(pod)
        for run in list(self.runs.values()):
            if run.ended is None:
                self._train(run)
        self._leave_seats()
        self._count_training()

    def _count_training(self) -> None:
        """A run partitioned for lostNodeSeconds has been declared lost: it may train until the log stops it."""
        training = [run for run in self.runs.values() if run.opened and run.ended is None]
        for run in training:
            pods = [self.pod(name) for name in run.pods.values()]
            run.cut_off += any(pod is not None and not self.reachable(pod) for pod in pods)
        limit = self.snapshot.spec.failure.lost_node_seconds
        together = [run for run in training if run.cut_off < limit]
        self.training_at_once = max(self.training_at_once, len(together))

    def _kubelet(self, pod: PodView) -> None:
        node = self.node(pod)
        if not pod.node:
            self._schedule(pod)
        elif node is None or not node.exists:
            self._absent[pod.name] = self._absent.get(pod.name, 0) + 1
            if self._absent[pod.name] > POD_GC_SECONDS:
                self.vanish(pod.name)
        elif not node.ready:
            self._set(pod, ready=False)
        elif pod.deleting and pod.deletion_deadline and pod.deletion_deadline <= self.snapshot.now:
            self.crash(pod.name, None)
        else:
            self._age[pod.name] = self._age.get(pod.name, 0) + 1
            if self._age[pod.name] >= WARM_SECONDS and not pod.ready:
                self._set(pod, ready=True, phase="Running", ip=f"10.0.0.{int(pod.name.rpartition('-')[2]) % 250}")

    def _schedule(self, pod: PodView) -> None:
        free = [node.name for node in self.snapshot.nodes if world.usable(node)]
        if free:
            load = {name: sum(1 for other in self.alive() if other.node == name) for name in free}
            self._set(pod, node=min(free, key=lambda name: (load[name], name)), unschedulable="")

    def _agent(self, pod: PodView) -> None:
        if not pod.ready:
            return
        if pod.deleting:
            self._asked.setdefault(pod.name, self.tick)
        else:
            self._hear(pod)
        run = self._run_of(pod.name)
        asked = self._asked.get(pod.name)
        if asked is None:
            return
        if run is None or not run.opened:
            self._end(pod.name, write_outcome(self._outcome(pod.name, run, ExitKind.STOPPED)), 0)
        elif run.ended is None and self._timed_out(pod, asked):
            self._end(pod.name, write_outcome(self._outcome(pod.name, run, ExitKind.EXIT_TIMEOUT)), 1)

    def _timed_out(self, pod: PodView, asked: int) -> bool:
        said = self._seen.get(pod.name)
        seconds = said.seconds if isinstance(said, Leave) else 110
        return self.tick - asked > seconds

    def _hear(self, pod: PodView) -> None:
        said, before = read_assignment(pod.assignment), self._seen.get(pod.name)
        if isinstance(said, Standby) or (before and said.run < before.run):
            return
        self._seen[pod.name] = said
        run = self._run_of(pod.name)
        if run and run.number in said.lost and run.number < said.run and run.ended is None:
            self._end(pod.name, write_outcome(self._outcome(pod.name, run, ExitKind.PEER_LOST)), 1)
        elif isinstance(said, Leave):
            self._asked.setdefault(pod.name, self.tick)
        elif run is None:
            joined = self.runs.setdefault(said.run, Run(said.run, said.world, said.lost, said.wait, born=self.tick))
            joined.pods[said.rank] = pod.name

    def _train(self, run: Run) -> None:
        pods = [self.pod(name) for name in run.pods.values()]
        if len(pods) < run.world:
            self._break_if_dead(run, pods)
            return
        if any(pod is None or terminated(pod) or not self.reachable(pod) for pod in pods):
            self._break_if_dead(run, pods)
        elif not run.opened:
            self._open(run)
        elif run.saving_since is not None or any(name in self._asked for name in run.pods.values()):
            self._save(run)
        else:
            run.step += 1
            if run.step % EVERY == 0 or run.step >= GOAL:
                self._commit(run, ExitKind.COMPLETED if run.step >= GOAL else None)

    def _break_if_dead(self, run: Run, pods: list[PodView | None]) -> None:
        """Trainers notice a dead peer; one that is only cut off they wait for, until their time is over."""
        if any(pod is None or terminated(pod) for pod in pods):
            run.ended, run.ended_at = ExitKind.PEER_LOST, self.tick

    def _open(self, run: Run) -> None:
        opened = [entry for entry in self.log if entry.kind == "opened"]
        if opened and opened[-1].run >= run.number:
            self._fence(run, opened[-1].run)
            return
        last = opened[-1].run if opened else None
        closed = any(entry.kind in ("final", "completed") and entry.run == last for entry in self.log)
        if last is None or closed or last in run.lost or self.tick - run.born >= run.wait:
            run.opened = True
            commits = [index for index, entry in enumerate(self.log) if entry.kind != "opened"]
            base = self.log[commits[-1]].step if commits else 0
            run.commit = (commits[-1] + 1, base) if commits else None
            if last is not None:
                self.steps_lost += max(self.runs[last].step - base, 0) if last in self.runs else 0
            run.step = base
            self.log.append(Entry("opened", run.number, base))

    def _save(self, run: Run) -> None:
        run.saving_since = self.tick if run.saving_since is None else run.saving_since
        if self.tick - run.saving_since >= SAVE_SECONDS:
            self._commit(run, ExitKind.CHECKPOINTED)

    def _commit(self, run: Run, ended: ExitKind | None) -> None:
        newest = max(entry.run for entry in self.log if entry.kind == "opened")
        if newest > run.number:
            self._fence(run, newest)
            return
        kind = {None: "commit", ExitKind.CHECKPOINTED: "final"}.get(ended, "completed")
        self.log.append(Entry(kind, run.number, run.step))
        run.commit = (len(self.log), run.step)
        if ended:
            run.ended, run.ended_at = ended, self.tick

    def _fence(self, run: Run, opened: int) -> None:
        run.ended, run.ended_at = ExitKind.FENCED, self.tick
        for name in run.pods.values():
            pod = self.pod(name)
            if pod and not terminated(pod) and self.reachable(pod):
                outcome = self._outcome(name, run, ExitKind.FENCED, opened=opened)
                self._end(name, write_outcome(outcome), 1)

    def _leave_seats(self) -> None:
        """Who completed exits at once; who saved or lost a peer holds the seat for a newer assignment."""
        for run in self.runs.values():
            if run.ended is None:
                continue
            for name in run.pods.values():
                pod = self.pod(name)
                if pod is None or terminated(pod) or not self.reachable(pod):
                    continue
                held = self.tick - run.ended_at >= LINGER_SECONDS
                if run.ended is ExitKind.COMPLETED or name in self._asked or held:
                    self._end(name, write_outcome(self._outcome(name, run, run.ended)), 0)

    def _outcome(
        self, name: str, run: Run | None, ended: ExitKind, error: Failure | None = None, opened: int | None = None
    ) -> Outcome:
        if run is None:
            return Outcome(ended, run=0, rank=0, error=error)
        rank = next(rank for rank, other in run.pods.items() if other == name)
        commit = CommitRef(*run.commit) if run.commit else None
        highest = (run.number if run.opened else 0) if opened is None else opened
        step = run.step if run.opened else 0
        return Outcome(ended, run.number, rank, step=step, commit=commit, opened=highest, error=error)

    def _end(self, name: str, message: str, code: int) -> None:
        ended = Terminated(exit_code=code, reason="Completed" if code == 0 else "Error", message=message)
        phase = "Succeeded" if code == 0 else "Failed"
        gone = (pod := self.pod(name)) is not None and pod.deleting
        self.snapshot = world.change_pod(self.snapshot, name, terminated=ended, phase=phase, ready=False, gone=gone)

    def _run_of(self, name: str) -> Run | None:
        return next((run for run in self.runs.values() if name in run.pods.values()), None)

    def _set(self, pod: PodView, **fields: object) -> None:
        self.snapshot = world.change_pod(self.snapshot, pod.name, **fields)


SIGKILL = Failure(ErrorKind.SIGNAL, "SIGKILL")
EXCEPTION = Failure(ErrorKind.EXCEPTION, "ValueError", "Traceback\nValueError: no")
