"""A digits job while it trains, as a scenario sees it: from outside.

A scenario lets it train, disturbs it, lets it complete, and compares what it left in the bucket with the promises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from e2e.cluster.s3 import S3
from e2e.harness import evidence, observed, reported, timeline
from e2e.harness.handover import Way, way_of
from e2e.harness.job import Job, Manifest, merged, with_container
from e2e.harness.lab import Lab, digits
from e2e.harness.twin import Twin
from e2e.harness.watching import Log, Object, Seen, Watch
from e2e.scenarios import lanes

IMAGE = "perdure-digits-scenarios:dev"
SAMPLES = 1536
START_SECONDS = 180
FINISH_SECONDS = 300
AHEAD = 1
"""A rank may finish a step that another rank is still in when the run ends. No rank that stays has that step."""
UNPACED = "/dev/shm/unpaced"
"""As trainers/paced.py has it."""
STANDBY_SECONDS = 120
"""On a busy machine a standby imports for longer than the 30 s that a job waits for it by itself."""


@dataclass(frozen=True)
class Config:
    """What decides the weights at the end: two jobs with the same Config must end with the same."""

    members: int = 2
    epochs: int = 3
    batch: int = 64
    deterministic: bool = False

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return self.epochs * -(-SAMPLES // self.batch)

    def arguments(self) -> list[str]:
        """For examples/digits/train.py."""
        given = [f"--epochs={self.epochs}", f"--batch={self.batch}"]
        return [*given, "--deterministic"] if self.deterministic else given


@dataclass(frozen=True)
class Trouble:
    """How a job differs from an ordinary one without ending with other weights."""

    script: str = "paced.py"
    environ: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    s3: S3 | None = None
    """A server of its own."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """How many of which resource each member asks for."""
    heard: bool = True
    """Whether an operator is there, and has the time, to hear its first report."""


@dataclass(frozen=True)
class Verdict:
    """What the log and the traces say of a finished training."""

    steps_lost: int
    samples_lost: int
    samples_repeated: int
    steps_without_evidence: int
    weights: str


def nothing_lost(twin: Twin) -> Verdict:
    """As if nothing had happened: each sample once an epoch, no step twice, the weights the same to the last bit."""
    return Verdict(0, 0, 0, 0, twin.weights)


def manifest(config: Config, trouble: Trouble, namespace: str, lane: str) -> Manifest:
    """examples/digits/job.yaml with the scenario's script, on its nodes, and steps slow enough to be disturbed."""
    nodes = {"template": {"spec": {"nodeSelector": {lanes.LABEL: lane}}}}
    checkpoint = {"uri": f"s3://scenarios/{namespace}", "everySteps": 10, "everySeconds": None, "everyEpochs": None}
    disruption = {"replacementTimeoutSeconds": STANDBY_SECONDS}
    spec = {"replicas": config.members, "checkpoint": checkpoint, "disruption": disruption}
    changed = merged(digits({"spec": merged(spec, nodes)}), {"spec": trouble.spec})
    command = ["python", trouble.script, "train.py", *config.arguments()]
    environ = {"PERDURE_TRACE": "1", "OMP_NUM_THREADS": "1", **trouble.environ}
    resources = changed["spec"]["template"]["spec"]["containers"][0]["resources"]
    asked = merged(resources, {"limits": dict(trouble.devices) or None})
    return with_container(changed, environ, image=IMAGE, command=command, args=[], resources=asked)


class Training:
    """One job in a namespace of its own; the `with` block watches it and leaves no pods behind."""

    def __init__(self, lab: Lab, name: str, config: Config, trouble: Trouble, lane: str) -> None:
        self.config = config
        self.heard = trouble.heard
        self.lab = lab
        self.job: Job = lab.job(manifest(config, trouble, name, lane), name, trouble.s3)
        self.watch: Watch = self.job.watch()

    def __enter__(self) -> Self:
        self.watch.__enter__()
        self.job.apply()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.watch.__exit__(kind, error, trace)
        print(self.timeline())  # pytest shows it when the scenario fails
        self.job.delete()

    def trains(self, steps: int, *, run: int = 1) -> None:
        """Waits until this run has done so many steps; only its log shows that a larger one is current."""
        self.watch.wait(f"run {run} assigned", lambda h: observed.training_run(h, run), seconds=START_SECONDS)
        with self.log(rank=0) as log:
            log.wait(rf"PACE run {run}: {steps} steps", seconds=START_SECONDS)

    def log(self, *, rank: int) -> Log:
        """The log of the member with this rank."""
        return self.job.log(self.member(rank)["metadata"]["name"])

    def member(self, rank: int) -> Object:
        """The pod with this rank in the newest run."""
        return observed.member_of_rank(self.watch.history, rank)

    def node(self, rank: int) -> str:
        """Where that pod runs."""
        return str(self.member(rank)["spec"]["nodeName"])

    def nodes(self) -> set[str]:
        """Where its pods run."""
        return {str(pod["spec"].get("nodeName")) for pod in observed.pods(self.watch.history)}

    def formers(self) -> list[Object]:
        """Its pods that it has written off, once there is one."""

        def there(history: Sequence[Seen]) -> list[Object] | None:
            found = observed.pods(history)
            return [pod for pod in found if pod["metadata"]["labels"].get(observed.ROLE) == "former"] or None

        return self.watch.wait("a member is written off", there, seconds=START_SECONDS)

    def evicted(self) -> set[str]:
        """The uids of its pods that a kubelet has evicted, once it has said so of one."""

        def told(history: Sequence[Seen]) -> set[str] | None:
            pods = [seen.object for seen in history if seen.kind == "Pod"]
            return {str(pod["metadata"]["uid"]) for pod in pods if pod["status"].get("reason") == "Evicted"} or None

        return self.watch.wait("a pod is evicted", told, seconds=START_SECONDS)

    def landed_on(self, node: str) -> set[str]:
        """The uids of all pods that were ever put there."""
        history = self.watch.history
        return {seen.uid for seen in history if seen.kind == "Pod" and observed.is_on(seen.object, node)}

    def has_warm_pods_on(self, node: str, count: int) -> None:
        """Waits until so many pods there are Ready."""

        def there(history: Sequence[Seen]) -> list[Object] | None:
            warm = [pod for pod in observed.pods(history) if observed.is_on(pod, node) and observed.ready(pod)]
            return warm if len(warm) >= count else None

        self.watch.wait(f"{count} warm pods on {node}", there, seconds=START_SECONDS)

    def nodes_of(self, run: int) -> set[str]:
        """Where the members are, or were, that this run was planned with."""
        return {str(pod["spec"]["nodeName"]) for pod in self._planned(run).values()}

    def began_on(self, run: int) -> list[str]:
        """Where the pods are, or were, in which this run began by its trainers' word: a node for each of them."""
        nodes = {seen.name: seen.object["spec"].get("nodeName") for seen in self.watch.history if seen.kind == "Pod"}
        return sorted(str(nodes[name]) for name in self.job.root.members(run))

    def ends(self, *, run: int) -> list[datetime]:
        """When the trainers of these members have ended, which are all over."""
        states = [pod["status"]["containerStatuses"][0]["state"] for pod in self._planned(run).values()]
        return [datetime.fromisoformat(state["terminated"]["finishedAt"]) for state in states]

    def _planned(self, run: int) -> dict[str, Object]:
        """The members of this run, as last seen."""
        uids, history = self.planned(run), self.watch.history
        return {seen.uid: seen.object for seen in history if seen.kind == "Pod" and seen.uid in uids}

    @property
    def uid(self) -> str:
        """The job's."""
        found = observed.newest_job(self.watch.history)
        return str(found["metadata"]["uid"]) if found else ""

    def members(self) -> list[str]:
        """The pods of the newest run."""
        return sorted(
            str(member["name"]) for member in observed.status(self.watch.history)["current"]["plan"]["members"]
        )

    def run(self) -> int:
        """The run that is on."""
        return int(observed.status(self.watch.history)["current"]["run"])

    def changes_run(self, *, after: int) -> None:
        """Waits until every member of a newer run has its rank."""
        self.watch.wait(f"run {after + 1}", lambda h: observed.training_run(h, after + 1), seconds=START_SECONDS)

    def has_pods(self, count: int) -> None:
        """Waits until there are just so many."""

        def there(history: Sequence[Seen]) -> list[Object] | None:
            found = observed.pods(history)
            return found if len(found) == count else None

        self.watch.wait(f"{count} pods", there, seconds=START_SECONDS)

    def keeps_its_pods(self) -> None:
        """Waits until all members are over: their logs can be read then, because they are not deleted yet."""

        def there(history: Sequence[Seen]) -> list[Object] | None:
            found = observed.pods(history)
            over = [pod for pod in found if pod["status"]["phase"] == "Succeeded"]
            return found if len(over) == self.config.members else None

        found = self.watch.wait("all members are over", there, seconds=START_SECONDS)
        assert not [pod for pod in found if pod["metadata"].get("deletionTimestamp")]

    def uids(self) -> list[str]:
        """Of the pods that exist."""
        return sorted(pod["metadata"]["uid"] for pod in observed.pods(self.watch.history))

    def planned(self, run: int) -> set[str]:
        """The uids of the pods that this run was planned with."""
        return observed.planned_in(self.watch.history, run)

    def newcomer(self, *, run: int) -> Object:
        """The pod that will join the living training in this run, once it was assigned."""
        return self.watch.wait(f"a newcomer for run {run}", lambda h: observed.joined(h, run), seconds=START_SECONDS)

    def holds(self, moment: str, pod: Object) -> None:
        """Waits until the trainer of this pod, which runs holding.py, stands still at this moment of a hand-over."""
        with self.job.log(pod["metadata"]["name"]) as log:
            log.wait(f"HOLD {moment}$", seconds=START_SECONDS)

    def hurries(self) -> None:
        """The awaited event has happened: from now on paced.py slows no step down."""
        for pod in observed.pods(self.watch.history):
            if observed.is_over(pod):
                continue
            words = ["--namespace", self.job.namespace, pod["metadata"]["name"], "--", "touch", UNPACED]
            if self.job.kubectl.run("exec", *words).returncode:  # one that has left may end just now
                self._is_over(pod)

    def _is_over(self, pod: Object) -> None:
        """Waits until this pod does nothing any more."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]

        def over(history: Sequence[Seen]) -> bool | None:
            here = [found for found in observed.pods(history) if found["metadata"]["uid"] == uid]
            return True if all(map(observed.is_over, here)) else None

        self.watch.wait(f"pod {name} is over", over, seconds=START_SECONDS)

    def suspends(self, *, suspend: bool) -> None:
        """kubectl patch, and waits until all members have left, or for the next run's."""
        self._patch("merge", {"spec": {"suspend": suspend}})
        phase = "Suspended" if suspend else "Running"
        self.watch.wait(f"the job is {phase}", observed.in_phase(phase, "Completed"), seconds=START_SECONDS)

    def edits_its_template(self) -> None:
        """kubectl patch: a variable that the script never reads."""
        value = {"name": "EDITED", "value": "while it was handed over"}
        self._patch("json", [{"op": "add", "path": "/spec/template/spec/containers/0/env/-", "value": value}])

    def has_warm_spares(self) -> list[Object]:
        """Waits until all spares that the job asks for are Ready."""
        return self.watch.wait("warm spares", observed.has_warm_spares, seconds=START_SECONDS)

    def scales(self, *, replicas: int) -> None:
        """kubectl scale."""
        words = ["--namespace", self.job.namespace, f"--replicas={replicas}"]
        self.job.kubectl("scale", "trainingjob", self.job.name, *words)

    def may_shrink_to(self, replicas: int) -> None:
        """From now on: a job that may begin with fewer members does so if one comes late."""
        self._patch("merge", {"spec": {"elastic": {"minReplicas": replicas}}})

    def breaks_its_template(self) -> None:
        """kubectl patch: the CRD takes a mount of a volume that is not there, and no API server a pod with one."""
        mounts = [{"name": "nowhere", "mountPath": "/data"}]
        self._patch("json", [{"op": "add", "path": "/spec/template/spec/containers/0/volumeMounts", "value": mounts}])

    def _patch(self, kind: str, patch: object) -> None:
        words = ["--namespace", self.job.namespace, f"--type={kind}", f"--patch={json.dumps(patch)}"]
        self.job.kubectl("patch", "trainingjob", self.job.name, *words)

    def selector(self) -> dict[str, str]:
        """The labels by which GET /scale tells an autoscaler whose pods to count."""
        path = f"/apis/perdure.dev/v1alpha1/namespaces/{self.job.namespace}/trainingjobs/{self.job.name}/scale"
        told = json.loads(self.job.kubectl("get", "--raw", path))["status"]["selector"]
        return dict(pair.split("=") for pair in told.split(","))

    def selected(self) -> list[str]:
        """The pods that an autoscaler would count now."""
        words = [f"{label}={value}" for label, value in self.selector().items()]
        found = self.job.kubectl.json("get", "pods", "-n", self.job.namespace, f"--selector={','.join(words)}")
        return sorted(pod["metadata"]["name"] for pod in found["items"])

    def roles_selected_by(self, selector: Mapping[str, str]) -> set[str]:
        """The roles of all pods there have been that the selector would have counted at any moment."""
        labels = [seen.object["metadata"].get("labels", {}) for seen in self.watch.history if seen.kind == "Pod"]
        return {found[observed.ROLE] for found in labels if selector.items() <= found.items()}

    def completes(self) -> Object:
        """Waits for the end; the status then."""
        found = self.watch.wait("the job ends", observed.in_phase("Completed", "Failed"), seconds=FINISH_SECONDS)
        assert found["phase"] == "Completed", json.dumps(found, indent=1)
        return found

    def fails(self) -> Object:
        """Waits until it has been given up; the status then."""
        return self.watch.wait("the job fails", observed.in_phase("Failed"), seconds=FINISH_SECONDS)

    def is_removed(self) -> None:
        """Waits until the TrainingJob itself is gone."""

        def gone(history: Sequence[Seen]) -> Seen | None:
            return observed.first(history, lambda seen: seen.kind == "TrainingJob" and seen.type == "DELETED")

        self.watch.wait("the job is removed", gone, seconds=FINISH_SECONDS)

    def shows(self, reason: str, *, seconds: float = 60) -> Object:
        """Waits for a condition with this reason, now or before."""
        return self.watch.wait(f"condition {reason}", observed.has_condition(reason), seconds=seconds)

    def says(self, kind: str, pattern: str, *, seconds: float = 60) -> Object:
        """Waits until this condition says so, now or before."""
        return self.watch.wait(f"{kind} says {pattern}", observed.says(kind, pattern), seconds=seconds)

    def is_disrupted_by(self, pattern: str, *, seconds: float = 90) -> str:
        """Waits until the condition Disrupted says so; its message."""

        def told(history: Sequence[Seen]) -> str | None:
            said = observed.condition(observed.status(history), "Disrupted").get("message", "")
            return said if re.search(pattern, said) else None

        return self.watch.wait(f"Disrupted by {pattern}", told, seconds=seconds)

    def is_undisturbed(self, *, seconds: float = 60) -> None:
        """Waits until nothing asks the run to end any more, and no member was asked to leave."""

        def calm(history: Sequence[Seen]) -> Object | None:
            told = observed.condition(observed.status(history), "Disrupted")
            return told if told.get("status") == "False" else None

        self.watch.wait("nothing asks the run to end", calm, seconds=seconds)
        assert not observed.asked_to_leave(self.watch.history, self.run())

    def shows_steps(self, count: int) -> None:
        """Waits until status has shown so many different steps: they come by the members' reports."""

        def told(history: Sequence[Seen]) -> list[int] | None:
            found = reported.shown(history)
            return found if len(found) >= count else None

        self.watch.wait(f"{count} steps in status.progress", told, seconds=START_SECONDS)

    def verdict(self) -> Verdict:
        """Judges what the training has left in the bucket."""
        entries, trace = self.job.root.entries(), self.job.root.trace().steps
        found = evidence.samples(entries, trace, size=SAMPLES, epochs=self.config.epochs)
        assert found.foreign == 0
        told = observed.status(self.watch.history)
        if told.get("phase") in ("Completed", "Failed"):
            wrong = evidence.contradiction(told, entries, trace)
            assert not wrong, wrong
        untrue = reported.untrue(self.watch.history, entries, trace, reports=self.heard)
        assert not untrue, "\n".join(untrue)
        return Verdict(
            steps_lost=evidence.steps_lost(entries, trace),
            samples_lost=found.lost,
            samples_repeated=found.repeated,
            steps_without_evidence=len(evidence.untraced(entries, trace)),
            weights=self.job.root.weight_hash(),
        )

    def steps_redone(self, *, rank: int) -> int:
        """Steps that this rank had finished and was to train again."""
        trace = [step for step in self.job.root.trace().steps if step.rank == rank]
        return evidence.steps_lost(self.job.root.entries(), trace)

    def batches(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The samples of each step that counts, of all ranks together."""
        return tuple(evidence.batches(self.job.root.entries(), self.job.root.trace().steps))

    def timeline(self) -> str:
        """What happened when."""
        history = self.watch.history
        told = timeline.moments(history, self.job.root.entries(), evidence.gaps(self.job.root.trace().steps), [])
        return timeline.written(told, start=history[0].time if history else 0.0)

    def ways(self) -> list[Way]:
        """How each run but the first began."""
        entries, gaps = self.job.root.entries(), evidence.gaps(self.job.root.trace().steps)
        return [way_of(self.watch.history, entries, gap) for gap in gaps]

    def worlds(self) -> list[int]:
        """The ranks of each run, by the log."""
        return [int(entry.body["world"]) for entry in self.job.root.entries() if entry.kind == "Opened"]

    def pauses(self) -> dict[int, float]:
        """How long each run that took over a living one made the member wait that waited longest, by the traces."""
        marks = self.job.root.trace().marks
        told = {run: timeline.handover_parts(self.watch.history, marks, run) for run in self.runs()}
        return {run: parts["pause"] for run, parts in told.items() if "pause" in parts}

    def runs(self) -> list[int]:
        """The runs that were opened, in order."""
        return [entry.run for entry in self.job.root.entries() if entry.kind == "Opened"]
