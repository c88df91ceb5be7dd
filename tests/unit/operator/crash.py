"""An operator that dies after its k-th write, and its successor: for a cluster in memory and for a real one.

The scene is the straight path: a job starts, a node is cordoned, the members save and move. After any write of the
first operator, the second one, which knows only the cluster, must come to the same end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from perdure.wire import (
    ANNOTATION_ASSIGNMENT,
    LABEL_ROLE,
    CommitRef,
    ExitKind,
    Outcome,
    Role,
    Train,
    read_assignment,
    write_outcome,
)
from perdure_operator.api.status import TrainingJobStatus
from perdure_operator.cluster.protocol import (
    BUDGETS,
    JOBS,
    NODES,
    PODS,
    ClusterApi,
    Json,
    OnChange,
    Operation,
    Resource,
)
from perdure_operator.cluster.read import parse
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.observe import Observer
from perdure_operator.cluster.write.act import Actor
from perdure_operator.decide import decide
from tests.support.raw import job

NAME = "digits"


class Crash(BaseException):
    """The process is gone: nothing of the operator's may catch this."""


@dataclass
class DyingApi:
    """Passes everything on and raises Crash after write number `dies_after` has been carried out, until `revive`."""

    api: ClusterApi
    dies_after: int | None = None
    writes: list[str] = field(default_factory=list)
    dead: bool = False

    def revive(self) -> None:
        """Another process uses it from now on."""
        self.dead = False

    def server_time(self) -> datetime:
        return self.api.server_time()

    def pages(
        self, resource: Resource, namespace: str | None = None, *, selector: str = ""
    ) -> AsyncIterator[Sequence[Json]]:
        return self.api.pages(resource, namespace, selector=selector)

    async def follow(
        self, resource: Resource, namespace: str, name: str, *, version: str, seconds: float, on_change: OnChange
    ) -> None:
        await self.api.follow(resource, namespace, name, version=version, seconds=seconds, on_change=on_change)

    async def list(self, resource: Resource, namespace: str | None = None, *, selector: str = "") -> list[Json]:
        return await self.api.list(resource, namespace, selector=selector)

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        return await self.api.get(resource, namespace, name)

    async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        self._require_life()
        raw = await self.api.create(resource, namespace, body, dry_run=dry_run)
        if not dry_run:
            self._written(f"create {resource.plural}")
        return raw

    async def patch(self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> Json:
        self._require_life()
        raw = await self.api.patch(resource, namespace, name, operations)
        self._written(f"patch {resource.plural}")
        return raw

    async def serves(self, resource: Resource) -> bool:
        return await self.api.serves(resource)

    async def patch_status(
        self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]
    ) -> Json:
        self._require_life()
        raw = await self.api.patch_status(resource, namespace, name, operations)
        self._written(f"patch {resource.plural}/status")
        return raw

    async def replace(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        self._require_life()
        raw = await self.api.replace(resource, namespace, name, body)
        self._written(f"replace {resource.plural}")
        return raw

    async def replace_status(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        self._require_life()
        raw = await self.api.replace_status(resource, namespace, name, body)
        self._written("status")
        return raw

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, version: str = "", grace: int | None = None
    ) -> None:
        self._require_life()
        await self.api.delete(resource, namespace, name, uid=uid, version=version, grace=grace)
        self._written(f"delete {resource.plural}")

    def _require_life(self) -> None:
        if self.dead:
            raise Crash("a write after death")

    def _written(self, what: str) -> None:
        self.writes.append(what)
        self.dead = len(self.writes) == self.dies_after
        if self.dead:
            raise Crash(what)


class World(Protocol):
    """What kubelets, the scheduler and users do to a cluster."""

    @property
    def api(self) -> ClusterApi:
        """With all rights."""

    @property
    def operator(self) -> ClusterApi:
        """With the operator's rights."""

    async def bind(self, namespace: str, pod: str, node: str) -> None:
        """The scheduler's work."""


@dataclass
class Scene:
    """The straight path with an operator that may die once."""

    world: World
    namespace: str
    dies_after: int | None = None
    standbys: bool = False
    """Whether a new member is awaited while the old ones train."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        self.api = DyingApi(self.world.operator, self.dies_after)
        self.crashed = False
        self._fresh()

    async def play(self) -> None:
        """Start, cordon, save, move."""
        nodes = [f"{self.namespace}-n{number}" for number in range(3)]
        for node in nodes:
            await self._node(node)
        spec: Json = {"disruption": {"replacementTimeoutSeconds": 30}} if self.standbys else {}
        await self.world.api.create(JOBS, self.namespace, job(NAME, **spec))
        await self.operate()
        await self._kubelets_start(nodes[:2])
        await self.operate()
        await self._cordon(nodes[0])
        await self.operate()
        await self._wait(2)
        if self.standbys:
            await self._kubelets_start(nodes[2:])
            await self.operate()
            await self._members_save(step=7, of=nodes[0])
        else:
            await self._members_save(step=7)
            await self.operate()
            await self._kubelets_start(nodes[1:])
        await self.operate()

    async def end_state(self) -> dict[str, Any]:
        """What must not depend on a crash: everything but uids, times and member numbers."""
        raw = await self.world.api.get(JOBS, self.namespace, NAME)
        status = TrainingJobStatus.model_validate(raw["status"])
        pods = await self.world.api.list(PODS, self.namespace)
        budgets = await self.world.api.list(BUDGETS, self.namespace)
        current = status.current
        planned = [(member.name, member.uid) for member in current.plan.members] if current else []
        return {
            "phase": status.phase,
            "run": status.run,
            "step": status.step,
            "steps lost": status.steps_lost,
            "failures": (status.failures.code, status.failures.infrastructure),
            "lost": status.lost,
            "intent": current.intent if current else None,
            "ranks": sorted(_rank(pod) for pod in pods),
            "roles": [pod["metadata"]["labels"][LABEL_ROLE] for pod in pods],
            "pods are the plan's": sorted(planned)
            == sorted((pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in pods),
            "budgets": [budget["spec"]["minAvailable"] for budget in budgets],
        }

    async def operate(self) -> None:
        """Rounds until there is nothing to write; after a crash with a fresh operator."""
        try:
            await self._rounds()
        except Crash:
            self.crashed = True
            self._fresh()
            await self._rounds()

    def _fresh(self) -> None:
        self.api.revive()
        cache = Cache()
        self._observer = Observer(self.api, cache, namespace=self.namespace, clock=lambda: self.now)
        self._actor = Actor(self.api, cache, instance="test", clock=lambda: self.now)

    async def _rounds(self) -> None:
        key = (self.namespace, NAME)
        await self._observer.sync()
        for _ in range(30):
            self._observer.distrust(key)
            seen = await self._observer.observe(key)
            if seen is None:
                return
            plan = decide(seen)
            if plan.status is None and not plan.actions:
                return
            await self._actor.act(seen, plan, self._observer.memory(seen.uid))
        raise AssertionError(f"still writing: {self.api.writes[-10:]}")

    async def _wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        await self.operate()

    async def _node(self, name: str) -> None:
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}}
        raw = await self.world.api.create(NODES, "", body)
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        await self.world.api.replace_status(NODES, "", name, raw | {"status": status})

    async def _cordon(self, node: str) -> None:
        raw = await self.world.api.get(NODES, None, node)
        raw["spec"]["unschedulable"] = True
        await self.world.api.replace(NODES, "", node, raw)

    async def _kubelets_start(self, nodes: Sequence[str]) -> None:
        for index, raw in enumerate(await self.world.api.list(PODS, self.namespace)):
            if not raw["spec"].get("nodeName"):
                name = raw["metadata"]["name"]
                await self.world.bind(self.namespace, name, nodes[index % len(nodes)])
                await self._report(name, _running(index))

    async def _members_save(self, step: int, of: str = "") -> None:
        listed = await self.world.api.list(PODS, self.namespace)
        members = [pod for pod in listed if pod["metadata"]["labels"][LABEL_ROLE] == Role.MEMBER]
        pods = [pod for pod in members if of in ("", pod["spec"]["nodeName"])]
        for rank, raw in enumerate(sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))):
            outcome = Outcome(ExitKind.CHECKPOINTED, run=1, rank=rank, step=step, commit=CommitRef(3, step), opened=1)
            await self._report(raw["metadata"]["name"], _ended(write_outcome(outcome)))

    async def _report(self, name: str, status: Json) -> None:
        raw = await self.world.api.get(PODS, self.namespace, name)
        body = raw | {"apiVersion": "v1", "kind": "Pod", "status": status}
        await self.world.api.replace_status(PODS, self.namespace, name, body)


async def the_end_does_not_depend_on_a_crash(
    world: World, namespaces: Sequence[str], *, standbys: bool = False, every: int = 1
) -> None:
    """One undisturbed play, then one for each write the operator makes in it, or for one of so many."""
    undisturbed = Scene(world, f"{namespaces[0]}", standbys=standbys)
    await undisturbed.play()
    expected = await undisturbed.end_state()
    assert expected["pods are the plan's"], expected
    assert expected["ranks"] == [0, 1]
    writes = undisturbed.api.writes

    async def crash_after(number: int) -> None:
        scene = Scene(world, namespaces[number], dies_after=number, standbys=standbys)
        await scene.play()
        assert scene.crashed
        assert await scene.end_state() == expected, f"after a crash behind write {number}: {writes[number - 1]}"

    await asyncio.gather(*(crash_after(number) for number in range(1, len(writes) + 1, every)))


def _rank(pod: Json) -> int:
    assignment = read_assignment(parse.meta(pod)["annotations"][ANNOTATION_ASSIGNMENT])
    return assignment.rank if isinstance(assignment, Train) else -1


def _running(index: int) -> Json:
    ip = f"10.9.0.{index + 1}"
    state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    ready = [{"type": "Ready", "status": "True"}]
    return {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": ready, **_container(state)}


def _ended(message: str) -> Json:
    times = {"startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z"}
    state = {"terminated": {"exitCode": 0, "reason": "Completed", "message": message, **times}}
    return {"phase": "Succeeded", "conditions": [{"type": "Ready", "status": "False"}], **_container(state)}


def _container(state: Json) -> Json:
    status = {"name": "trainer", "image": "i", "imageID": "i", "ready": "running" in state, "restartCount": 0}
    return {"containerStatuses": [status | {"state": state}]}
