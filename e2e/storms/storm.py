"""One job in a storm: its disturbances, and their records, for `judge` to read.

Everything is done from outside: a drain begins a hand-over, a file in the pods says at which of its acts which party
stands still (trainers/holding.py), and there a process, a link or the store is disturbed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from e2e.harness import observed
from e2e.harness.drain import Drain, uncordon
from e2e.harness.lab import Lab
from e2e.harness.watching import Late, Object, Seen
from e2e.scenarios.training import Training
from e2e.storms import judge
from e2e.storms.harm import Pod, Processes, Store

HOLD: Final = "/dev/shm/hold"
"""The path in the pods."""
ENVIRON: Final = {
    "HOLD": HOLD,
    "HOLD_SECONDS": "60",
    "PACE_SECONDS": "0.3",
    "PACE_HOLDS": "1000000",
    "PACED_RUNS": "1000000",
    "PERDURE_BACKGROUND_BYTES": "0",
}
LOOK_SECONDS: Final = 0.1
ACT_SECONDS: Final = 150.0
CALM_SECONDS: Final = 420.0
DRAIN_SECONDS: Final = 300.0
FROZEN_SECONDS: Final = 15.0
CALM_STEPS: Final = 4


class Act(StrEnum):
    """The acts of a hand-over; holding.py defines them."""

    CONNECTING = "connecting"
    RECEIVING = "receiving"
    VOTING = "voting"
    PUTTING = "putting"
    PUT = "put"


class Victim(StrEnum):
    """The victim."""

    NEWCOMER = "newcomer"
    LEAVER = "leaver"
    STAYER = "stayer"
    DECIDER = "decider"


class Harm(StrEnum):
    """The disturbance."""

    KILLED = "killed"
    FROZEN = "frozen"
    CUT = "cut"  # from all other parties
    STORE_FROZEN = "store-frozen"
    STORE_CUT = "store-cut"
    STORE_MUTE = "store-mute"  # it does what it is asked to, and its answer is lost
    STORE_500 = "store-500"
    STORE_403 = "store-403"
    STORE_SLOW = "store-slow"

    @property
    def of_the_store(self) -> bool:
        """Whether it hits the store, and so all."""
        return self.value.startswith("store-")


OF_PROCESSES: Final = (Harm.KILLED, Harm.FROZEN)
OF_THE_STORE: Final = tuple(harm for harm in Harm if harm.of_the_store)


@dataclass(frozen=True)
class Move:
    """A disturbed hand-over."""

    act: Act
    victim: Victim
    harm: Harm
    seconds: float = FROZEN_SECONDS
    """How long it lasts, if it lasts."""

    def __str__(self) -> str:
        whom = "" if self.harm.of_the_store else f" of the {self.victim}"
        return f"{self.harm}{whom} while {self.act}"


@dataclass
class Storm:
    """Used as a context manager around the training's own; its evidence is in `folder` afterwards."""

    lab: Lab
    training: Training
    store: Store
    folder: Path
    draw: random.Random
    faults: list[judge.Fault] = field(default_factory=list)
    drains: list[judge.Drain] = field(default_factory=list)
    missed: list[Move] = field(default_factory=list)
    """Those of which no party came to the act."""

    def __post_init__(self) -> None:
        self._processes = Processes(self.lab)
        self._hold = ""
        self._troubled = False
        """Whether there was a disturbance since the job last recovered."""
        self._over = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "pods").mkdir(parents=True)
        self._keeper = threading.Thread(target=self._keeps, daemon=True)
        self._keeper.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hold = ""
        self._over.set()
        self._keeper.join()
        self.writes_down()

    # Disturbances.

    def moves(self, move: Move) -> None:
        """Drain a member's node, and disturb a party in the middle of the hand-over; wait for recovery."""
        number = max(int(self.status["run"]), self._opened()) + 1
        node, parties = self._cast(move.victim)
        holder = Victim.DECIDER if move.act in (Act.PUTTING, Act.PUT) or move.harm.of_the_store else move.victim
        print(f"{self.clock} {move}: run {number} is to come, {node} is drained", flush=True)
        self._hold = moment = f"{move.act} {holder} {number}"
        with self._drain(node) as drain:
            if self._reaches(moment, drain):
                self._harms(move, number, parties)
            else:
                print(f"{self.clock} no party came to {moment}", flush=True)
                self.missed.append(move)
                self._hold = ""
            self._finishes(drain)
        uncordon(self.lab.kubectl, [node])
        self.is_calm()

    def drains_a_node(self) -> None:
        """No disturbance."""
        node, _ = self._cast(Victim.LEAVER)
        print(f"{self.clock} {node} is drained", flush=True)
        with self._drain(node) as drain:
            self._finishes(drain)
        uncordon(self.lab.kubectl, [node])

    def kills(self, rank: int, *, everything: bool) -> None:
        """A member in the middle of its training: its trainer, or all of its pod."""
        run, pod = self._opened(), self._member(rank)
        what = "everything-killed" if everything else "killed"
        with self._fault(f"{what} rank {rank} of run {run}", killed=self._seats(pod, int(self.status["run"]))):
            (self._processes.kill_all if everything else self._processes.kill)(pod)

    def freezes(self, rank: int, seconds: float) -> None:
        """A member's trainer in the middle of its training."""
        pod = self._member(rank)
        with self._fault(f"frozen rank {rank} of run {self._opened()}"), self._processes.frozen(pod):
            self._waits(seconds)

    def cuts(self, rank: int, others: Sequence[int], seconds: float) -> None:
        """The links between one member and these others."""
        pod, peers = self._member(rank), [self._member(other) for other in others]
        what = f"cut rank {rank} from {list(others)}"
        with self._fault(what, links=_links(pod, peers)), self._processes.cut_off(pod, *peers):
            self._waits(seconds)

    def harms_the_store(self, harm: Harm, seconds: float) -> None:
        """While all train."""
        with self._fault(f"{harm} for {seconds:.0f} s"), self._store(harm):
            self._waits(seconds)

    def is_calm(self, *, seconds: float = CALM_SECONDS) -> None:
        """Wait until the job has exactly its members and trains in its newest run.

        Not until status knows: if a hand-over ends no member, status may know only the offer for minutes.
        """

        def calm() -> bool:
            pods = observed.pods(self.training.watch.history)
            there = [pod for pod in pods if pod["status"].get("phase") in ("Pending", "Running")]
            whole = len(there) == self.training.config.members and all(map(observed.ready, there))
            newest = 0 < self._opened() == int(self.status.get("run") or 0)
            return self.over or (whole and newest and self.status["phase"] == "Running")

        steps: dict[int, int] = {}

        def trains() -> bool:
            if not calm():
                steps.clear()
                return False
            run = int(self.status["run"])
            return self.over or self._steps(run) >= steps.setdefault(run, self._steps(run)) + CALM_STEPS

        self._until("the job has its members, and its newest run trains", trains, seconds)
        self._troubled = False

    @property
    def over(self) -> bool:
        """Whether nothing is left to disturb."""
        return self.status.get("phase") in ("Completed", "Failed")

    @property
    def clock(self) -> str:
        """Seconds since the job was first seen."""
        history = self.training.watch.history
        return f"{time.time() - history[0].time:7.1f} s" if history else "  0.0 s"

    @property
    def status(self) -> Any:
        """The newest."""
        return observed.status(self.training.watch.history)

    def _cast(self, victim: Victim) -> tuple[str, dict[Victim, Object]]:
        """A node to drain, and the role of each pod then; the newcomer does not exist yet."""
        members = [self._member(rank) for rank in range(self.training.config.members)]
        by_node: dict[str, list[Object]] = {}
        for pod in members:
            by_node.setdefault(str(pod["spec"]["nodeName"]), []).append(pod)
        fewest = min(map(len, by_node.values()))
        fitting = sorted(node for node, pods in by_node.items() if len(pods) == fewest)
        node = self.draw.choice(fitting)
        stay = [pod for pod in members if pod not in by_node[node]] or members
        parts = {Victim.LEAVER: by_node[node][0], Victim.DECIDER: stay[0], Victim.STAYER: stay[-1]}
        if victim is Victim.STAYER and stay[0] is stay[-1]:
            print(f"{self.clock} there is no stayer besides the decider", flush=True)
        return node, parts

    def _opened(self) -> int:
        """The training run by the log; status may know only the offer for minutes."""
        return max((entry.run for entry in self.training.job.root.entries() if entry.kind == "Opened"), default=0)

    def _member(self, rank: int) -> Object:
        """The pod of this rank in the training run, as last seen."""
        history, run = self.training.watch.history, self._opened()
        assigned = {its: name for name, its in observed.ranked_in(history, run).items()}  # the newest of each rank
        name = (assigned | dict(enumerate(self.training.job.root.members(run))))[rank]
        return next(seen.object for seen in reversed(history) if seen.kind == "Pod" and seen.name == name)

    def _harms(self, move: Move, number: int, parties: dict[Victim, Object]) -> None:
        newcomer = observed.joined(self.training.watch.history, number)
        cast: dict[Victim, Object] = parties | ({Victim.NEWCOMER: newcomer} if newcomer else {})
        pod = cast[move.victim]
        if move.harm is Harm.KILLED:
            with self._fault(str(move), killed=self._seats(pod, number)):
                self._processes.kill(pod)
            self._goes_on()
            return
        others = [other for other in cast.values() if other is not pod]
        links = _links(pod, others) if move.harm is Harm.CUT else ()
        with self._fault(str(move), links=links), self._lasting(move, pod, others):
            self._goes_on()
            self._waits(move.seconds)

    def _lasting(self, move: Move, pod: Pod, others: Sequence[Pod]) -> contextlib.AbstractContextManager[None]:
        if move.harm.of_the_store:
            return self._store(move.harm)
        if move.harm is Harm.CUT:
            return self._processes.cut_off(pod, *others)
        return self._processes.frozen(pod)

    def _store(self, harm: Harm) -> contextlib.AbstractContextManager[None]:
        return self.store.answers(harm.removeprefix("store-"))

    def _seats(self, pod: Pod, number: int) -> tuple[tuple[int, int], ...]:
        """(run, rank) of this pod, and those that it may have become meanwhile."""
        history, name = self.training.watch.history, str(pod["metadata"]["name"])
        ranked = [(run, observed.ranked_in(history, run)) for run in {self._opened(), number}]
        return tuple((run, ranks[name]) for run, ranks in ranked if name in ranks)

    def _goes_on(self) -> None:
        """Release all parties."""
        self._hold = ""
        self._plants()

    @contextlib.contextmanager
    def _fault(
        self, what: str, *, killed: tuple[tuple[int, int], ...] = (), links: tuple[tuple[str, str], ...] = ()
    ) -> Iterator[None]:
        print(f"{self.clock} {what}", flush=True)
        start, alone, self._troubled = time.time(), not self._troubled, True
        try:
            yield
        finally:
            self.faults.append(judge.Fault(what, start, time.time(), alone, killed, links))
            print(f"{self.clock} {what}: over", flush=True)

    @contextlib.contextmanager
    def _drain(self, node: str) -> Iterator[Drain]:
        with self.lab.drain(node) as drain:
            yield drain

    def _finishes(self, drain: Drain) -> None:
        done = drain.finish(seconds=DRAIN_SECONDS)
        self.drains.append(judge.Drain(done.node, done.started, done.ended, done.status))
        print(f"{self.clock} the drain took {done.seconds:.1f} s", flush=True)

    def _waits(self, seconds: float) -> None:
        self._over.wait(seconds)

    # Observation.

    def _reaches(self, moment: str, drain: Drain) -> bool:
        """Whether a party comes to this act of the hand-over that the drain begins."""
        said = f"HOLD {moment}\n"
        try:
            self._until(said, lambda: self.over or not drain.still_waits() or self._said(said) > 0, ACT_SECONDS)
        except Late:
            return False
        return not self.over and self._said(said) > 0

    def _steps(self, run: int) -> int:
        return self._said(f"PACE run {run}: ")

    def _said(self, words: str) -> int:
        return sum(path.read_text(errors="replace").count(words) for path in self._logs())

    def _until(self, what: str, done: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                raise Late(f"not within {seconds:g} s: {what}\n{self.training.job.describe()}")
            time.sleep(LOOK_SECONDS)

    def _logs(self) -> list[Path]:
        return sorted((self.folder / "pods").glob("*.log"))

    # Records.

    def _keeps(self) -> None:
        """In parallel: freeze the chosen party, and keep logs beyond their pods."""
        while not self._over.wait(LOOK_SECONDS):
            self._plants()
            self._links_logs()

    def _plants(self) -> None:
        with self._lock:
            for pod in observed.pods(self.training.watch.history):
                self._plant(pod)

    def _plant(self, pod: Pod) -> None:
        for pid in self.lab.cluster.pod_processes(str(pod["metadata"]["uid"])):
            file = Path(f"/proc/{pid}/root{HOLD}")
            with contextlib.suppress(OSError):
                if self._hold and (not file.exists() or file.read_text() != self._hold):
                    file.write_text(self._hold)
                elif not self._hold and file.exists():
                    file.unlink()
                return

    def _links_logs(self) -> None:
        namespace = self.training.job.namespace
        for log in self.lab.cluster.folder.root.glob(f"nodes/*/pod-logs/{namespace}_*/trainer/*.log"):
            kept = self.folder / "pods" / f"{log.parent.parent.name.split('_')[1]}.log"
            if not kept.exists():
                with contextlib.suppress(OSError):
                    os.link(log, kept)

    def writes_down(self) -> None:
        """All data for `judge`."""
        history = self.training.watch.history
        jobs = [seen for seen in history if seen.kind == "TrainingJob"]
        self._lines("polls.jsonl", [{"t": t, "status": status} for t, status in _polled(jobs)])
        pods = [seen for seen in history if seen.kind == "Pod"]
        self._lines("pods.jsonl", [_pod_line(seen) for seen in pods])
        self._lines("faults", [asdict(one) for one in self.faults])
        self._lines("drains", [asdict(one) for one in self.drains])
        root = self.store.server.folder / self.training.job.bucket_name / self.training.job.namespace
        for name in ("log", "trace", "members"):
            shutil.copytree(root / name, self.folder / name, dirs_exist_ok=True)

    def _lines(self, name: str, found: Sequence[object]) -> None:
        (self.folder / name).write_text("".join(f"{json.dumps(one)}\n" for one in found))


def _links(pod: Pod, peers: Sequence[Pod]) -> tuple[tuple[str, str], ...]:
    return tuple((str(pod["metadata"]["name"]), str(peer["metadata"]["name"])) for peer in peers)


def _polled(seen: Sequence[Seen]) -> Iterator[tuple[float, Any]]:
    """The status as seen by a client that polls once a second."""
    found = [one for one in seen if one.object.get("status")]
    if not found:
        return
    at, place = found[0].time, 0
    while at <= found[-1].time:
        while place + 1 < len(found) and found[place + 1].time <= at:
            place += 1
        yield at, found[place].object["status"]
        at += 1.0
    yield found[-1].time, found[-1].object["status"]


def _pod_line(seen: Seen) -> dict[str, Any]:
    status = seen.object.get("status", {})
    ended = [one for one in status.get("containerStatuses", ()) if one.get("state", {}).get("terminated")]
    running = seen.type != "DELETED" and status.get("phase") == "Running" and not ended
    told = observed.assignment(seen.object)
    return {"t": seen.time, "name": seen.name, "running": running, "ready": observed.ready(seen.object), "told": told}
