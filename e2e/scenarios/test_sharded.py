"""A model that four members hold in parts: its nodes go away and come back, and no step or sample is lost."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from e2e.harness import evidence, observed, reported, timeline
from e2e.harness.drain import Drained, uncordon
from e2e.harness.job import Job, Manifest, merged, with_container
from e2e.harness.lab import Lab
from e2e.harness.power import powered_off
from e2e.harness.watching import Log, Watch
from e2e.scenarios import lanes, tinygpt
from e2e.scenarios.training import STANDBY_SECONDS, START_SECONDS, UNPACED

pytestmark = pytest.mark.cluster

MEMBERS = 4
PACE = {"PACE_SECONDS": "0", "PACE_HOLDS": "2", "PACE_HOLD_SECONDS": "4", "PACED_RUNS": "9"}
"""Four minutes for four runs, of which none may be over before a test has seen it."""
SEAT = "example.com/seat"
"""A member needs one. One node has three and two have one, so one node can go without loss of a member, and not two."""
REPLACED_SECONDS = 25
"""So long the members then wait for a replacement that has no node."""
FINISH_SECONDS = 300

LOST_SECONDS = 5


@dataclass(frozen=True)
class Trouble:
    """How the job is paced and specified for what happens to it."""

    name: str
    pace: Mapping[str, str]
    spec: Mapping[str, Any]


MOVED = Trouble(
    "moved",
    PACE,
    {
        "checkpoint": {"everySteps": 10},
        "elastic": {"minReplicas": MEMBERS, "maxReplicas": MEMBERS, "growAfterSeconds": 1},
    },
)
POWERED_OFF = Trouble(
    "off",
    {"PACE_SECONDS": "0.3", "PACED_RUNS": "1"},
    {"checkpoint": {"everySteps": 1000}, "failure": {"lostNodeSeconds": LOST_SECONDS}},
)
"""It saves at its end."""


@dataclass(frozen=True)
class Kind:
    """How the script shards the model, and the sizes that the job may then have with a member less."""

    flag: str
    elastic: Mapping[str, Any] = field(default_factory=dict)
    fewer: int = MEMBERS

    @property
    def arguments(self) -> tuple[str, ...]:
        """For the script."""
        return "--epochs=1", "--batch=32", self.flag


FSDP = Kind("--fsdp", {"minReplicas": 3}, 3)
HSDP = Kind("--hsdp", {"minReplicas": 2, "sizes": [2, 4]}, 2)
TENSOR_PARALLEL = Kind("--tp")


def manifest(lane: str, kind: Kind, trouble: Trouble) -> Manifest:
    """Four members and no fewer, each with a seat."""
    spec = merged({"replicas": MEMBERS, "disruption": {"replacementTimeoutSeconds": STANDBY_SECONDS}}, trouble.spec)
    found = tinygpt.manifest(lane, f"case-{trouble.name}{kind.flag[1:]}", kind.arguments, trouble.pace, spec)
    resources = found["spec"]["template"]["spec"]["containers"][0]["resources"]
    return with_container(found, {}, resources=merged(resources, {"limits": {SEAT: "1"}}))


class Sharded:
    """The job, and what rank 0 of each run has printed, whichever pod it was."""

    def __init__(self, lab: Lab, job: Job, watch: Watch, logs: contextlib.ExitStack) -> None:
        self._lab, self._job, self._watch, self._stack = lab, job, watch, logs
        self._logs: dict[str, Log] = {}

    def trains(self, *, run: int, steps: int = 2) -> None:
        """Waits until this run has done so many steps."""
        self._watch.wait(f"run {run} assigned", lambda h: observed.training_run(h, run), seconds=START_SECONDS)
        name = observed.member_of_rank(self._watch.history, 0)["metadata"]["name"]
        if name not in self._logs:
            self._logs[name] = self._stack.enter_context(self._job.log(name))
        self._logs[name].wait(rf"PACE run {run}: {steps} steps", seconds=START_SECONDS)

    def grows(self, *, run: int) -> None:
        """Waits until this run, in which all members go on, has done two steps.

        If they go on live, none of them reports, and the status does not yet show that it has begun.
        """
        name = observed.member_of_rank(self._watch.history, 0)["metadata"]["name"]
        self._logs[name].wait(rf"PACE run {run}: 2 steps", seconds=START_SECONDS)

    def nodes(self) -> set[str]:
        """Where its pods are."""
        return {str(pod["spec"].get("nodeName")) for pod in observed.pods(self._watch.history)}

    def drained(self, node: str) -> Drained:
        """`kubectl drain`, once it has come back."""
        with self._lab.drain(node) as drain:
            return drain.finish()

    def may_have_fewer_members(self, kind: Kind) -> None:
        """From now on, and it waits less for a replacement that has no node. A job that may begin with fewer does so if
        the last member comes late."""
        spec = {"elastic": kind.elastic, "disruption": {"replacementTimeoutSeconds": REPLACED_SECONDS}}
        words = ["--type=merge", "--patch", json.dumps({"spec": spec})]
        self._lab.kubectl("patch", "trainingjob", self._job.name, "--namespace", self._job.namespace, *words)

    def hurries(self) -> None:
        """From now on nothing holds the steps up."""
        for pod in observed.pods(self._watch.history):
            words = ["--namespace", self._job.namespace, pod["metadata"]["name"], "--", "touch", UNPACED]
            self._lab.kubectl("exec", *words)

    def timeline(self) -> str:
        """What happened when."""
        gaps, history = evidence.gaps(self._job.root.trace().steps), self._watch.history
        return timeline.written(
            timeline.moments(history, self._job.root.entries(), gaps, []), start=history[0].time if history else 0.0
        )

    def completes(self) -> list[str]:
        """Every line that a rank 0 has printed."""
        status = self._watch.wait("the job ends", observed.in_phase("Completed", "Failed"), seconds=FINISH_SECONDS)
        assert status["phase"] == "Completed", self._job.describe()
        assert (status["failures"]["code"], status["failures"]["infrastructure"], status["stepsLost"]) == (0, 0, 0)
        return [line for log in self._logs.values() for line in log.whole(seconds=FINISH_SECONDS)]


@contextlib.contextmanager
def seated(lab: Lab, lane: str, manifest: Manifest) -> Iterator[tuple[Job, Watch]]:
    """The job, applied, on nodes with three seats and one and one; nothing of it stays behind."""
    large, *small = lanes.nodes(lab, lane)
    job = lab.job(manifest, manifest["spec"]["checkpoint"]["uri"].rpartition("/")[2])
    with lab.devices([large], SEAT, each=3), lab.devices(small, SEAT, each=1):
        try:
            with job.watch() as watch:
                job.apply()
                yield job, watch
        finally:
            job.delete()


def losses(lines: list[str]) -> dict[int, str]:
    """The loss of rank 0's part of each step, as printed."""
    found = (re.match(r"step (\d+) loss (.*)", line) for line in lines)
    return {int(one[1]): one[2] for one in found if one}


@pytest.mark.parametrize("kind", [FSDP, pytest.param(HSDP, marks=pytest.mark.chaos)], ids=lambda kind: kind.flag)
def test_a_sharded_training_loses_one_node_with_room_elsewhere_and_one_without_and_grows_back(
    lab: Lab, lane: str, kind: Kind
) -> None:
    _, *small = lanes.nodes(lab, lane)
    with seated(lab, lane, manifest(lane, kind, MOVED)) as (job, watch), contextlib.ExitStack() as logs:
        training = Sharded(lab, job, watch, logs)
        training.trains(run=1)
        first, second = sorted(small, key=lambda node: node not in training.nodes())
        moved = training.drained(first)
        training.trains(run=2)
        training.may_have_fewer_members(kind)
        shrunk = training.drained(second)
        training.trains(run=3)
        uncordon(lab.kubectl, small)
        training.grows(run=4)
        training.hurries()
        said = training.completes()
        print(training.timeline())
        told_last = job.describe()
    undisturbed = tinygpt.undisturbed(lab, kind.arguments, MEMBERS)
    entries, trace = job.root.entries(), job.root.trace().steps
    assert (moved.status, shrunk.status) == (0, 0), moved.output + shrunk.output
    assert list(evidence.worlds(entries).items()) == [(1, 4), (2, 4), (3, kind.fewer), (4, 4)], told_last
    assert evidence.took_over(entries, 2), told_last
    assert (evidence.steps_lost(entries, trace), evidence.untraced(entries, trace)) == (0, [])
    assert tuple(evidence.batches(entries, trace)) == undisturbed.batches
    of_four = evidence.turns(entries, trace)[1].end
    assert reported.untrue(watch.history, entries, trace) == []
    assert len(reported.shown(watch.history)) > 1, told_last
    here, there = losses(said), losses(undisturbed.said.splitlines())
    assert here.keys() == there.keys()
    assert [here[step] for step in range(1, of_four + 1)] == [there[step] for step in range(1, of_four + 1)]


@pytest.mark.chaos  # tests/unit/runtime/live moves ranks of such meshes
def test_a_drained_training_with_tensor_parallelism_goes_on_live(lab: Lab, lane: str) -> None:
    _, *small = lanes.nodes(lab, lane)
    kind = TENSOR_PARALLEL
    with seated(lab, lane, manifest(lane, kind, MOVED)) as (job, watch), contextlib.ExitStack() as logs:
        training = Sharded(lab, job, watch, logs)
        training.trains(run=1)
        moved = training.drained(min(small, key=lambda node: node not in training.nodes()))
        training.trains(run=2)
        training.hurries()
        training.completes()
        told_last = job.describe()
    undisturbed = tinygpt.undisturbed(lab, kind.arguments, MEMBERS)
    entries, trace = job.root.entries(), job.root.trace().steps
    assert moved.status == 0, moved.output
    assert list(evidence.worlds(entries).items()) == [(1, 4), (2, 4)], told_last
    assert evidence.took_over(entries, 2), told_last
    assert (evidence.steps_lost(entries, trace), evidence.untraced(entries, trace)) == (0, [])
    assert tuple(evidence.batches(entries, trace)) == undisturbed.batches
    assert job.root.weight_hash() == undisturbed.weights


@pytest.mark.chaos  # tests/unit/runtime/live replaces rank 0 of such a model
def test_the_node_of_rank_0_is_drained_and_then_that_of_the_next_rank_0(lab: Lab, lane: str) -> None:
    kind, members = FSDP, 2
    spec = {
        "replicas": members,
        "checkpoint": {"everySteps": 10},
        "disruption": {"replacementTimeoutSeconds": STANDBY_SECONDS},
    }
    made = tinygpt.manifest(lane, "case-first-fsdp", kind.arguments, PACE, spec)
    job = lab.job(made, "case-first-fsdp")
    try:
        with job.watch() as watch, contextlib.ExitStack() as logs:
            job.apply()
            training = Sharded(lab, job, watch, logs)
            moved = []
            for run in (1, 2):
                training.trains(run=run)
                node = str(observed.member_of_rank(watch.history, 0)["spec"]["nodeName"])
                moved.append(training.drained(node))
                uncordon(lab.kubectl, [node])
            training.trains(run=3)
            training.hurries()
            training.completes()
            told_last = job.describe()
    finally:
        job.delete()
    undisturbed = tinygpt.undisturbed(lab, kind.arguments, members)
    entries, trace = job.root.entries(), job.root.trace().steps
    assert [one.status for one in moved] == [0, 0], moved
    assert [evidence.took_over(entries, run) for run in (2, 3)] == [True, True], told_last
    assert (evidence.steps_lost(entries, trace), evidence.untraced(entries, trace)) == (0, [])
    assert reported.untrue(watch.history, entries, trace) == []
    assert tuple(evidence.batches(entries, trace)) == undisturbed.batches
    assert job.root.weight_hash() == undisturbed.weights


@pytest.mark.chaos  # tests/handover/test_shards kills and freezes a rank at each place of a step
def test_a_node_without_power_costs_a_model_with_replicas_no_finished_step(lab: Lab, lane: str) -> None:
    _, *small = lanes.nodes(lab, lane)
    with seated(lab, lane, manifest(lane, HSDP, POWERED_OFF)) as (job, watch), contextlib.ExitStack() as logs:
        training = Sharded(lab, job, watch, logs)
        training.trains(run=1, steps=12)
        node = min(small, key=lambda node: node not in training.nodes())
        with powered_off(lab, node, [pod for pod in observed.pods(watch.history) if observed.is_on(pod, node)]):
            status = watch.wait("the job ends", observed.in_phase("Completed", "Failed"), seconds=FINISH_SECONDS)
            told_last = job.describe()
    undisturbed = tinygpt.undisturbed(lab, HSDP.arguments, MEMBERS)
    entries, trace = job.root.entries(), job.root.trace().steps
    assert status["phase"] == "Completed", told_last
    opened = next(entry.body for entry in entries if (entry.kind, entry.run) == ("Opened", 2))
    assert opened["image"]["run"] == 1, told_last
    assert (evidence.steps_lost(entries, trace), status["stepsLost"]) == (0, 0), told_last
    assert job.root.weight_hash() == undisturbed.weights
