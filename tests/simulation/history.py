"""One seeded history: random faults, an operator that dies between writes, and the invariants checked at every step."""

from __future__ import annotations

import random

from perdure.contract import Role, Train, read_assignment
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import RunPlan, TrainingJobStatus
from perdure_operator.decide import decide
from perdure_operator.state.decision import CreatePod, Decision
from tests.simulation.cluster import EXCEPTION, SIGKILL, Cluster
from tests.unit.decide import world
from tests.unit.decide.builders import ROUNDS, Job, members_of, plan_of

ANNOUNCED = ("cordon", "uncordon", "delete", "suspend", "resume", "resize", "taint")
SUDDEN = ("kill", "raise", "silence", "vanish", "node_down", "node_up", "node_gone")


class History:
    """Faults for some minutes, then none, until the job comes to its end."""

    def __init__(self, job: Job, seed: int, *, faults: tuple[str, ...], crashes: bool = True) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a history has to be repeatable
        self.cluster = Cluster(job.snapshot)
        self.faults = faults
        self.crashes = crashes
        self.created: set[str] = set()
        self.plans: dict[int, RunPlan] = {}
        self.said: list[str] = []
        self._due: int | None = 0
        self._last = self.cluster.snapshot

    def play(self, seconds: int, until: int) -> TrainingJobStatus:
        """Faults for `seconds`, then peace until the job is finished; fails where that takes longer than `until`."""
        while self.cluster.tick < until:
            if self.cluster.tick < seconds:
                if self.random.random() < 0.08:
                    getattr(self, "_" + self.random.choice(self.faults))()
            elif self.cluster.tick == seconds:
                self._heal()
            self._operate(troubled=self.crashes and self.cluster.tick < seconds)
            if self.cluster.snapshot.status.finished_at:
                return self.cluster.snapshot.status
            self.cluster.advance()
        raise AssertionError(f"not finished after {until} s: {self.explain()}")

    def explain(self) -> str:
        """For a failure's message."""
        status = self.cluster.snapshot.status
        return f"{status.phase} {[(c.type, c.reason, c.message) for c in status.conditions]} after {self.said[-12:]}"

    # the operator

    def _operate(self, *, troubled: bool) -> None:
        """As in the loop: only when something has changed or the time it asked for has come."""
        if not self._is_due():
            return
        for _ in range(ROUNDS + 1):
            before = self.cluster.snapshot
            plan = decide(before)
            if plan.status is None and not plan.actions:
                wanted = plan.requeue_after
                self._due = None if wanted is None else self.cluster.tick + max(round(wanted + 0.49), 1)
                self._last = self.cluster.snapshot
                self._check_waiting()
                return
            cut = self.random.randint(0, len(plan.actions) + 1) if troubled and self.random.random() < 0.25 else None
            self._act(plan, cut)
            if cut is not None:
                self.said.append(f"{self.cluster.tick} operator died after {cut} writes")
                self.cluster.forget()
                self._due = self.cluster.tick + self.random.randint(1, 20)
                self._last = self.cluster.snapshot
                return
        raise AssertionError(f"I10: no rest after {ROUNDS} rounds: {plan.actions} {plan.reasons} {self.explain()}")

    def _is_due(self) -> bool:
        if self._due is not None and self.cluster.tick >= self._due:
            return True
        now = self.cluster.snapshot.model_copy(update={"now": self._last.now})
        return now != self._last and not (self._due is not None and self.said and "died" in self.said[-1])

    def _act(self, plan: Decision, writes: int | None) -> None:
        before = self.cluster.snapshot
        known = {pod.name for pod in before.pods}
        after = world.apply(before, plan, writes=writes)
        new = {pod.name for pod in after.pods} - known
        assert not new & self.created, f"I12: {new & self.created} created again"
        wanted = {action.name for action in plan.actions if isinstance(action, CreatePod)}
        assert new <= wanted <= set(members_of(plan.status or before.status)), "a pod without a name in status"
        self.created |= new
        self.cluster.snapshot = after
        self._check_status(before.status, after.status)
        self._check_budget()

    # invariants

    def _check_status(self, old: TrainingJobStatus, new: TrainingJobStatus) -> None:
        for budget in ("code", "infrastructure"):
            assert getattr(new.failures, budget) >= getattr(old.failures, budget), "I11"
        assert new.run >= old.run
        assert new.next_member >= old.next_member, "I12"
        plan = plan_of(new)
        if plan is not None:
            assert self.plans.setdefault(plan.run, plan) == plan, "I13"
            assert len(plan.members) >= 1, "I8"
        assert len(members_of(new)) <= 4, "I8"

    def _check_budget(self) -> None:
        snapshot = self.cluster.snapshot
        labelled = [pod for pod in snapshot.pods if pod.role == Role.MEMBER and not pod.gone]
        if labelled and not snapshot.status.finished_at:
            assert snapshot.budget is not None, "I5: members without a budget"
            assert snapshot.budget.min_available >= len(labelled), "I5: a member could be evicted"
        for pod in labelled:
            said = read_assignment(pod.assignment)
            if isinstance(said, Train):
                assert said.run in self.plans, "an assignment without a plan in status"

    def _check_waiting(self) -> None:
        running = self.cluster.snapshot.status.find(ConditionType.RUNNING)
        assert running is not None, "I9"
        assert running.status == "True" or (running.reason and running.message), "I9"
        assert self.cluster.training_at_once <= 1, "I3"

    # faults

    def _some_node(self) -> str:
        return self.random.choice([node.name for node in self.cluster.snapshot.nodes])

    def _node(self, **fields: object) -> None:
        name = self._some_node()
        self.said.append(f"{self.cluster.tick} {name} {fields}")
        self.cluster.snapshot = world.change_node(self.cluster.snapshot, name, **fields)

    def _cordon(self) -> None:
        self._node(cordoned=True)

    def _uncordon(self) -> None:
        self._node(cordoned=False)

    def _taint(self) -> None:
        self._node(deleting=True)

    def _node_down(self) -> None:
        self._node(ready=False)

    def _node_up(self) -> None:
        self._node(ready=True, exists=True, deleting=False)

    def _node_gone(self) -> None:
        self._node(exists=False, ready=False)

    def _suspend(self) -> None:
        self._spec(suspend=True)

    def _resume(self) -> None:
        self._spec(suspend=False)

    def _resize(self) -> None:
        self._spec(replicas=self.random.choice([1, 2, 3, 4]))

    def _spec(self, **fields: object) -> None:
        self.said.append(f"{self.cluster.tick} {fields}")
        self.cluster.snapshot = Job(self.cluster.snapshot).spec(**fields).snapshot

    def _victim(self) -> str | None:
        alive = [pod.name for pod in self.cluster.alive() if pod.ready and not pod.deleting]
        name = self.random.choice(alive) if alive else None
        self.said.append(f"{self.cluster.tick} hit {name}")
        return name

    def _delete(self) -> None:
        if name := self._victim():
            seconds = self.random.choice([10, 30, 120])
            self.cluster.snapshot = Job(self.cluster.snapshot).deleted(name, grace=seconds).snapshot

    def _kill(self) -> None:
        if name := self._victim():
            self.cluster.crash(name, SIGKILL)

    def _raise(self) -> None:
        if name := self._victim():
            self.cluster.crash(name, EXCEPTION)

    def _silence(self) -> None:
        if name := self._victim():
            self.cluster.crash(name, None)

    def _vanish(self) -> None:
        if name := self._victim():
            self.cluster.vanish(name)

    def _heal(self) -> None:
        for node in self.cluster.snapshot.nodes:
            well = {"ready": True, "exists": True, "deleting": False, "cordoned": False}
            self.cluster.snapshot = world.change_node(self.cluster.snapshot, node.name, **well)
        self._spec(suspend=False)


def committed(history: History) -> int:
    """The step of the last commit in the log."""
    return max((entry.step for entry in history.cluster.log if entry.kind != "opened"), default=0)
