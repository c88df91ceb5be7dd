"""D5, D6: a single death costs no finished step. The survivors have the whole state: an image of it becomes the next
run's first commit, or the lost run's last one if its pod goes.

Checked when a run begins, by the actions of the previous run's trainers; nothing here reads status.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import inf
from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise
from tests.simulation.checks.reading import assignment
from tests.simulation.objects import PODS, Json, key_of, seconds_of
from tests.simulation.world import Fact

KILLED: Final = frozenset({137, 255})
"""How a container ended that was killed, or whose node lost its power."""
LAST_SECONDS: Final = 6.0
"""So shortly before the end of its pod's grace an agent gives up the commit of an image: it has to report its own
end."""
_NO_LOG: Final = (
    *("emptied-root", "stripped-root", "root-edited", "stranger", "keys-revoked"),
    *("storage-down", "storage-faults", "storage-outage", "partition"),
)
"""The state cannot be committed, or was not known to be ahead."""
_DISTURBED: Final = (
    *("frozen-trainer", "hung-agent", "hang", "oom", "code-failure", "self-blame", "exit-without-session"),
    *("node-power", "node-object-deleted", "all-kubelets-silent", "kubelet-silent", "stuck-terminating"),
    *("null-grace", "sidecar-crash", "init-exit", "force-delete-pod", "pod-gc", "preemption", "no-execute"),
    *("announcement", "absurd-outcome", "foreign-outcome", "namespace-deleted", "foreground-job", "orphan-job"),
    *("delete-job", "pool-vanished", "reaper", "autoscaler", "karpenter", "ended-pod-deleted"),
)
"""Then there may be more than one death, or a survivor may be killed before it can leave anything."""


@dataclass
class Life:
    """One run, by its trainers' actions."""

    pods: set[str] = field(default_factory=set)
    images: dict[str, int] = field(default_factory=dict)
    """The step of a pod's image."""
    reached: int = 0


class Deaths(Promise):
    """Checked when a run opens."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._lives: dict[tuple[str, int], Life] = defaultdict(Life)
        """By uid of the job and run."""
        self._killed: set[str] = set()
        """Pods whose container was killed, whose time was over, or that were gone before it ended."""
        self._ended: set[str] = set()
        """Pods whose container ended by itself."""
        self._overtaken: set[tuple[str, int]] = set()
        """By name of the pod and run: those whose image came after the next run had begun (docs/decisions/037)."""
        self._deadlines: dict[str, float] = {}
        """When a deleted pod's grace is over."""
        self._damaged: dict[str, set[int]] = defaultdict(set)
        """By uid of the job: steps of commits that can no longer be read."""
        self._suspect: set[str] = set()
        """Pods that learnt that their state is suspect."""

    def on_change(self, change: Change) -> None:
        if change.kind != PODS:
            return
        self._note(change.raw)
        name = key_of(change.raw)[1]
        if change.event == "DELETED" and name not in self._ended:
            self._killed.add(name)

    def _note(self, pod: Json) -> None:
        name, deadline = key_of(pod)[1], pod["metadata"].get("deletionTimestamp")
        if assignment(pod).get("suspect"):
            self._suspect.add(name)
        if deadline:
            self._deadlines[name] = seconds_of(deadline)

    def on_fact(self, fact: Fact) -> None:
        facts = fact.facts
        match fact.what:
            case "kills":
                self._killed.add(facts["pod"])
            case "container-ended":
                in_time = self._case.now < self._deadlines.get(fact.who, inf) - LAST_SECONDS
                (self._ended if in_time and facts["code"] not in KILLED else self._killed).add(fact.who)
            case "trainer-started":
                self._lives[facts["uid"], int(facts["run"])].pods.add(fact.who)
            case "took-over":  # it holds the older run's progress
                life = self._lives[facts["uid"], int(facts["run"])]
                life.pods.add(fact.who)
                life.reached = max(life.reached, int(facts["step"]))
            case "step":
                life = self._lives[facts["uid"], int(facts["run"])]
                life.reached = max(life.reached, int(facts["step"]))
            case "imaged":
                self._lives[facts["uid"], int(facts["run"])].images[fact.who] = int(facts["step"])
            case "not-rescued":
                self._overtaken.add((fact.who, int(facts["run"])))
            case "damaged":
                self._damaged[facts["uid"]].add(int(facts["step"]))
            case "opened":
                self._judge(facts["uid"], int(facts["run"]), int(facts["step"]))

    def _judge(self, uid: str, run: int, step: int) -> None:
        before = [known for known in self._lives if known[0] == uid and known[1] < run and self._lives[known].reached]
        if not before or self._case.fired(*_NO_LOG):
            return
        last = max(before)
        life, new = self._lives[last], self._lives[uid, run]
        lost = life.reached - step
        if lost <= 0 or life.pods & self._suspect:
            return
        if life.reached in self._damaged[uid]:
            return  # a state that is already in a commit need not be kept
        words = f"run {run} goes on from step {step}, and run {last[1]} had come to step {life.reached}"
        for pod in sorted(pod for pod, of in life.images.items() if of == life.reached and pod not in self._killed):
            if pod in new.pods or (pod in self._ended and (pod, last[1]) not in self._overtaken):
                self._case.fail("D6", f"{words}: {pod} has left an image of it, and was not killed")
        dead = life.pods & self._killed
        if len(dead) == 1 < len(life.pods) and not self._case.fired(*_DISTURBED):
            self._case.fail("D5", f"{words}: {', '.join(sorted(dead))} alone has died of {len(life.pods)}")
