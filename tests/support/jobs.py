"""Jobs in any state, in words: `job().running(world=2).cordon("n1")`.

States are reached by deciding and applying, never by writing a status down: a builder cannot invent what could not be.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from perdure.wire import (
    Assignment,
    CommitRef,
    ErrorKind,
    ExitKind,
    Failure,
    Leave,
    Outcome,
    Train,
    read_assignment,
    write_outcome,
)
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.spec import CheckpointPolicy, DisruptionPolicy, TrainingJobSpec
from perdure_operator.api.status import Condition, Intent, MemberOutcome, RunPlan, TrainingJobStatus
from perdure_operator.decide import decide
from perdure_operator.decide.facts import terminated
from perdure_operator.state.decision import Action, Assign, CreatePod, Decision, DeletePod
from perdure_operator.state.snapshot import NodeView, PodView, Refusal, RefusalKind, Snapshot, Taint, Terminated
from tests.support import world

START = datetime(2026, 8, 1, 12, 0, 0, tzinfo=UTC)
UID = "ab12cd34-0000-4000-8000-000000000001"
ROUNDS = 5
"""Invariant I10: deciding again after acting comes to rest within so many rounds."""


CHECKPOINT = CheckpointPolicy(uri="s3://b/digits")
ALL_LEAVE = DisruptionPolicy(replacement_timeout_seconds=0)
PATIENT = DisruptionPolicy()

_ENDS = re.compile(r"(?:until|at|from) (\d\d:\d\d:\d\d)Z")
_UNTIL = re.compile(r"(until|at|from) \d\d:\d\d:\d\dZ|; no time limit")


@dataclass(frozen=True)
class Job:
    """A job and the cluster around it."""

    snapshot: Snapshot
    history: tuple[Decision, ...] = ()

    # what happens around the operator

    def having(self, **fields: Any) -> Job:
        """With these fields of the snapshot."""
        return replace(self, snapshot=world.change(self.snapshot, **fields))

    def spec(self, **fields: Any) -> Job:
        """The user edits the job."""
        spec = TrainingJobSpec.model_validate({**dict(self.snapshot.spec), **fields})
        return self.having(spec=spec, generation=self.snapshot.generation + 1)

    def status(self, **fields: Any) -> Job:
        """With these fields of the status: for what an older operator may have left."""
        return self.having(status=self.snapshot.status.model_copy(update=fields))

    def after(self, seconds: float) -> Job:
        """Time passes."""
        return self.having(now=self.snapshot.now + timedelta(seconds=seconds))

    def node(self, name: str, **fields: Any) -> Job:
        """A node changes."""
        return replace(self, snapshot=world.change_node(self.snapshot, name, **fields))

    def cordon(self, *names: str) -> Job:
        """`kubectl cordon`."""
        job = self
        for name in names:
            job = job.node(name, cordoned=True)
        return job

    def uncordon(self, name: str) -> Job:
        """`kubectl uncordon`."""
        return self.node(name, cordoned=False)

    def taint(self, name: str, key: str, effect: str = "NoSchedule") -> Job:
        """`kubectl taint`."""
        return self.node(name, taints=(Taint(key=key, effect=effect),))

    def pod(self, member: int | str, **fields: Any) -> Job:
        """A pod changes."""
        return replace(self, snapshot=world.change_pod(self.snapshot, self.name(member), **fields))

    def deleted(self, member: int | str, grace: float = 120) -> Job:
        """`kubectl delete pod`: it has `grace` seconds."""
        deadline = self.snapshot.now + timedelta(seconds=grace)
        return replace(self, snapshot=world.delete(self.snapshot, self.name(member), deadline))

    def missing(self, member: int | str) -> Job:
        """The pod's object is away, and this process never saw it go."""
        return replace(self, snapshot=world.remove(self.snapshot, self.name(member)))

    def ready(self) -> Job:
        """Every pod with a node that is not over gets warm."""
        job = self
        for index, pod in enumerate(self.snapshot.pods):
            if pod.node and not terminated(pod):
                job = job.pod(pod.name, ready=True, phase="Running", ip=f"10.0.0.{index + 1}")
        return job

    def exited(self, member: int | str, message: str = "", *, code: int = 1, reason: str = "Error") -> Job:
        """Container 0 ends with this termination message."""
        ended = Terminated(exit_code=code, reason=reason, message=message, finished_at=self.snapshot.now)
        return self.pod(member, terminated=ended, phase="Succeeded" if code == 0 else "Failed", ready=False)

    def ended(self, member: int | str, outcome: ExitKind, **fields: Any) -> Job:
        """The agent leaves an outcome; `commit` is (seq, step), `error` is (kind, name, tail)."""
        plan = self.run_plan
        told = Outcome(
            outcome=outcome,
            run=fields.pop("run", plan.run if plan else 0),
            rank=0,
            commit=CommitRef(*fields.pop("commit")) if "commit" in fields else None,
            error=_failure(*fields.pop("error")) if "error" in fields else None,
            **fields,
        )
        return self.exited(
            member, write_outcome(told), code=0 if outcome in (ExitKind.COMPLETED, "checkpointed") else 1
        )

    def all_ended(self, outcome: ExitKind, **fields: Any) -> Job:
        """Every member of the run ends in the same way."""
        job, current = self, self.now.current
        members = {member.name for member in current.plan.members} if current else set()
        for pod in self.living():
            if pod.name in members:
                job = job.ended(pod.name, outcome, **fields)
        return job

    def refused(
        self,
        *members: int | str,
        message: str = 'exceeded quota: "q"',
        kind: RefusalKind = RefusalKind.REFUSED,
        seconds: float | None = None,
    ) -> Job:
        """The API server does not let these pods be created, or changed; `seconds`: so long that counts."""
        until = None if seconds is None else self.snapshot.now + timedelta(seconds=seconds)
        refusals = [Refusal(pod=self.name(one), kind=kind, message=message, until=until) for one in members]
        return self.having(refusals=tuple(refusals))

    # what the operator does

    def plan(self) -> Decision:
        """What it would do now."""
        decision = decide(self.snapshot)
        if decision.status is not None:
            assert_explained(decision.status, self.snapshot.now)
        return decision

    def step(self, writes: int | None = None) -> Job:
        """One round, cut off after some writes if asked for."""
        plan = self.plan()
        return replace(self, snapshot=world.apply(self.snapshot, plan, writes=writes), history=(*self.history, plan))

    def settle(self) -> Job:
        """Rounds until there is nothing to do at this moment."""
        job = self
        for _ in range(ROUNDS):
            plan = job.plan()
            if plan.status is None and not plan.actions:
                return job
            job = job.step()
        raise AssertionError(f"no rest after {ROUNDS} rounds: {job.plan().actions} {job.plan().reasons}")

    def starting(self, world: int = 2) -> Job:
        """Members are created and not Ready."""
        return self.spec(replicas=world).settle()

    def running(self, world: int = 2) -> Job:
        """Members train."""
        return self.starting(world).ready().settle()

    def leaving(self, node: str = "n1") -> Job:
        """Members were asked to leave because a node is cordoned, and the quiet second is over."""
        return self.cordon(node).settle().after(1).settle()

    # what one asks

    @property
    def now(self) -> TrainingJobStatus:
        """The status."""
        return self.snapshot.status

    @property
    def run_plan(self) -> RunPlan | None:
        """The plan of the run that is on."""
        return plan_of(self.now)

    @property
    def intent(self) -> Intent | None:
        """Why the run that is on has to end."""
        return intent_of(self.now)

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the run that is on, or of the next one."""
        return members_of(self.now)

    @property
    def outcomes(self) -> tuple[MemberOutcome, ...]:
        """How members of the run that is on ended so far."""
        return self.now.current.outcomes if self.now.current else ()

    def next_member(self) -> str:
        """The name of the first member of the next run, "" if there is none."""
        return next(iter(self.now.next.members if self.now.next else ()), "")

    def spares(self) -> tuple[str, ...]:
        """The names of the standbys beside the run."""
        return self.now.spares.names if self.now.spares else ()

    def name(self, member: int | str) -> str:
        """The name of a member by its number."""
        return member if isinstance(member, str) else f"digits-ab12-{member}"

    def living(self) -> list[PodView]:
        """Pods that are not over."""
        return [pod for pod in self.snapshot.pods if not terminated(pod)]

    def names(self) -> list[str]:
        """Numbers of the pods that exist, as text."""
        return [pod.name.rpartition("-")[2] for pod in self.snapshot.pods if not pod.gone]

    def assignment(self, member: int | str) -> Assignment:
        """What the pod's annotation says."""
        pod = next(pod for pod in self.snapshot.pods if pod.name == self.name(member))
        return read_assignment(pod.assignment)

    def condition(self, kind: ConditionType) -> Condition:
        """A condition that must be there."""
        found = self.now.find(kind)
        assert found is not None, f"no condition {kind} in {self.now.conditions}"
        return found


def assert_explained(status: TrainingJobStatus, now: datetime) -> None:
    """Invariant I9: a job that waits says until when, or what ends the wait instead, and what to do."""
    running = status.find(ConditionType.RUNNING)
    if running is None or running.status == "True" or status.finished_at:
        return
    assert _UNTIL.search(running.message), f"{running.reason} says no end: {running.message}"
    for end in _ENDS.findall(running.message):
        assert end >= f"{now:%H:%M:%S}", f"{running.reason} names an end that is over: {running.message}"
    assert "; to do: " in running.message, f"{running.reason} says no remedy: {running.message}"


def job(**spec: Any) -> Job:
    """A new job of two members, three empty nodes, nothing created yet.

    It does not wait for standbys, unless a test gives `disruption=PATIENT`.
    """
    return Job(
        Snapshot(
            now=START,
            namespace="default",
            name="digits",
            uid=UID,
            generation=1,
            spec=TrainingJobSpec(**{"replicas": 2, "checkpoint": CHECKPOINT, "disruption": ALL_LEAVE, **spec}),
            pods_complete=True,
            nodes=tuple(NodeView(name=f"n{number}") for number in (1, 2, 3)),
            nodes_complete=True,
            template_hash="t1",
        )
    )


def plan_of(status: TrainingJobStatus) -> RunPlan | None:
    """The plan of the run that is on."""
    return status.current.plan if status.current else None


def intent_of(status: TrainingJobStatus) -> Intent | None:
    """Why the run that is on has to end."""
    return status.current.intent if status.current else None


def members_of(status: TrainingJobStatus) -> tuple[str, ...]:
    """The names of the run that is on, or of the next one."""
    plan = plan_of(status)
    if plan:
        return tuple(member.name for member in plan.members)
    return status.next.members if status.next else ()


def written(plan: Decision) -> tuple[Action, ...]:
    """What the plan writes, without whose idea it was and why."""
    return tuple(action.model_copy(update={"policy": "", "why": ""}) for action in plan.actions)


def creates(plan: Decision) -> list[str]:
    """Names of the pods the plan creates."""
    return [action.name for action in plan.actions if isinstance(action, CreatePod)]


def deletes(plan: Decision) -> list[str]:
    """Names of the pods the plan deletes."""
    return [action.name for action in plan.actions if isinstance(action, DeletePod)]


def assigns(plan: Decision) -> dict[str, Assignment]:
    """What the plan tells which pod."""
    return {action.name: read_assignment(action.new) for action in plan.actions if isinstance(action, Assign)}


def leaves(plan: Decision) -> dict[str, Leave]:
    """Whom the plan asks to leave."""
    return {name: said for name, said in assigns(plan).items() if isinstance(said, Leave)}


def trains(plan: Decision) -> dict[str, Train]:
    """Whom the plan gives ranks."""
    return {name: said for name, said in assigns(plan).items() if isinstance(said, Train)}


def raised(name: str = "ValueError", tail: str = "Traceback ...\nValueError: no") -> tuple[ErrorKind, str, str]:
    """The error of an exception."""
    return ErrorKind.EXCEPTION, name, tail


def killed(name: str = "SIGKILL") -> tuple[ErrorKind, str, str]:
    """The error of a signal."""
    return ErrorKind.SIGNAL, name, ""


def _failure(kind: ErrorKind, name: str, tail: str) -> Failure:
    return Failure(kind, name, tail)
