"""Members see their assignments right after they have become Ready: how long that takes, on real kubelets.

A kubelet may leave an update that comes while it syncs a pod for its next periodic sync, 60 to 90 s later; the operator
touches a member that shows no effect (decide/nudging.py). Jobs of one member that trains nothing are assigned one after
another, each in the moment in which its member is Ready. All times are of this machine's clock: the audit log shows
when the API server had the assignment, and the file's own time in the pod when the kubelet showed it.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from e2e.harness import observed
from e2e.harness.job import Manifest, merged, with_container
from e2e.harness.lab import Lab, digits
from e2e.harness.watching import Seen, Watch
from e2e.scenarios import lanes
from e2e.scenarios.training import IMAGE
from perdure_operator.decide.nudging import FRESH_SECONDS

pytestmark = pytest.mark.cluster

AT_ONCE = 3
START_SECONDS = 300.0
NUDGE = "perdure.dev/nudge"
SHOWN = """
import json, os, time
print(json.dumps({"shown": os.lstat("/run/perdure/..data").st_mtime, "begun": time.time()}))
"""


@dataclass(frozen=True)
class Assigned:
    """One assignment."""

    pod: str
    told: float
    shown: float
    begun: float
    """When its trainer ran."""
    nudged: bool

    @property
    def seconds(self) -> float:
        """Until the file showed it."""
        return self.shown - self.told


@pytest.mark.chaos
@pytest.mark.parametrize("count", [10, 100])
def test_an_assignment_right_after_readiness_is_shown_to_its_member(
    lab: Lab, lane: str, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    namespace = f"assigned-{count}"
    load = os.getloadavg()[0]
    job = lab.job(tiny(lane), namespace)
    with job.watch() as watch:
        for number in range(count):
            completes(watch, number - AT_ONCE + 1)
            lab.kubectl.apply(numbered(job.manifest, number))
        completes(watch, count)
        found = list(assigned(lab, namespace, watch.history))
    lab.kubectl("delete", "namespace", namespace, "--wait=false")
    with capsys.disabled():
        print(f"\n{table(found, load, os.getloadavg()[0])}")
    assert len(found) == count
    assert [one for one in found if one.seconds > FRESH_SECONDS[-1]] == []


def tiny(lane: str) -> Manifest:
    """A job of one member that says when it was shown its assignment, and ends."""
    nodes = {"template": {"spec": {"nodeSelector": {lanes.LABEL: lane}}}}
    root = {"uri": "s3://scenarios/assigned", "everySteps": None}
    changed = digits({"spec": {"replicas": 1, "completion": "ExitCode", "checkpoint": root, **nodes}})
    command = ["python", "-I", "-c", SHOWN]
    return with_container(changed, {"PERDURE_PRELOAD": "none"}, image=IMAGE, command=command, args=[])


def numbered(manifest: Manifest, number: int) -> Manifest:
    """One of many such jobs, each with a root of its own."""
    root = {"uri": f"{manifest['spec']['checkpoint']['uri']}/{number}"}
    return merged(manifest, {"metadata": {"name": f"tiny-{number}"}, "spec": {"checkpoint": root}})


def completes(watch: Watch, count: int) -> None:
    """Waits until so many jobs are over."""

    def over(history: Sequence[Seen]) -> bool | None:
        jobs = {seen.name: seen.object.get("status", {}) for seen in history if seen.kind == "TrainingJob"}
        failed = [name for name, status in jobs.items() if status.get("phase") == "Failed"]
        assert not failed
        return sum(status.get("phase") == "Completed" for status in jobs.values()) >= count or None

    watch.wait(f"{count} jobs are over", over, seconds=START_SECONDS)


def assigned(lab: Lab, namespace: str, history: Sequence[Seen]) -> Iterator[Assigned]:
    """What the members have said, beside what the API server has written down."""
    patched = told(lab.cluster.audit_log, namespace)
    nudged = {seen.name for seen in history if seen.kind == "Pod" and NUDGE in seen.object["metadata"]["annotations"]}
    ranked = {seen.name for seen in history if seen.kind == "Pod" and "rank" in observed.assignment(seen.object)}
    for pod in sorted(ranked):
        lines = lab.kubectl("logs", "-n", namespace, pod).splitlines()
        said = next(json.loads(line) for line in lines if line.startswith("{"))
        yield Assigned(pod, patched[pod], float(said["shown"]), float(said["begun"]), pod in nudged)


def told(audit_log: Path, namespace: str) -> dict[str, float]:
    """By pod, when the API server had taken the operator's first patch, which is the assignment."""
    found: dict[str, float] = {}
    with audit_log.open() as lines:
        for line in lines:
            if namespace not in line or '"pods"' not in line:
                continue
            event = json.loads(line)
            what, who = event.get("objectRef", {}), event["user"]["username"]
            if (what.get("resource"), what.get("namespace")) != ("pods", namespace) or what.get("subresource"):
                continue
            if event["verb"] in ("patch", "update") and who.startswith("system:serviceaccount:perdure-system:"):
                found.setdefault(what["name"], datetime.fromisoformat(event["stageTimestamp"]).timestamp())
    return found


def table(found: Sequence[Assigned], before: float, after: float) -> str:
    """For people."""
    shown = sorted(one.seconds for one in found)
    begun = sorted(one.begun - one.told for one in found)
    lines = [f"{len(found)} assignments right after readiness; load {before:.1f} before, {after:.1f} after"]
    for name, times in (("until the file shows it", shown), ("until the trainer runs", begun)):
        late = times[int(0.9 * (len(times) - 1))]
        lines.append(
            f"  {name}: median {statistics.median(times):.2f} s, nine of ten {late:.2f} s, worst {times[-1]:.2f} s"
        )
    lines.append(f"  nudged: {sum(one.nudged for one in found)}")
    return "\n".join(lines)
