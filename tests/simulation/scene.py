"""The scene of a seed: nodes with kubelets, the control plane, the operator's replicas, and users with their jobs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from perdure.wire import LABEL_ROLE, Role
from perdure_operator.api.default_signals import DEFAULT_SIGNALS
from tests.simulation.apiserver import Change
from tests.simulation.autoscaler import PREFIX as LAUNCHED
from tests.simulation.autoscaler import Autoscaler
from tests.simulation.controllers import Budgets, Garbage, NodeLifecycle
from tests.simulation.drains import SHOWN, announce_nothing, cordon
from tests.simulation.evictor import SILENT, Evictor, withdraw_all
from tests.simulation.interface import Behaviour, MemberExit, MemberHost, RunMember
from tests.simulation.kubelet import Kubelet
from tests.simulation.link import CallFaults, Link, WatchFaults
from tests.simulation.objects import BUDGETS, NODES, PODS, Json, Refused, clone, key_of, node_of, stamp
from tests.simulation.operator_process import OperatorProcess
from tests.simulation.pool import Ask, Pool
from tests.simulation.scheduler import Scheduler
from tests.simulation.users import User
from tests.simulation.world import World

NAMESPACE = "team"
OTHERS = "others"
"""Where other people's pods are."""
WATCH_SECONDS = 1.0
REPLICAS = (1, 1, 2, 2, 3)
"""Of the operator."""
JOBS = (1, 1, 1, 2, 2, 3)
NODES_AT_MOST = 5
APPLIED_SECONDS = 10.0
"""So long after the beginning every job is there."""
FOLDER_SHARE = 0.4
VOLUMES: tuple[Json, ...] = (
    {"persistentVolumeClaim": {"claimName": "shared"}},
    {"csi": {"driver": "files.example", "volumeAttributes": {"share": "shared"}}},
)
"""Where folders are."""
ELASTIC_SHARE = 0.4
"""Of jobs that no volume holds to one node."""
LIVE_SHARE = 0.85
"""Of jobs that say they can change their membership in place."""
BALKS_SHARE = 0.12
"""Of those that find out that they cannot when it is tried."""
IMPATIENT_SHARE = 0.2
"""Of jobs that wait for no replacement, or for seconds."""
SIGNALS_SHARE = 0.3
"""The share of jobs that change the table's reaction to a signal."""
ON_CORDON = (None, None, None, "Move", "MoveIfRoom", "Ignore")
"""A job's reaction to a mere cordon; None leaves it out, which is Move."""
ON_REQUEST = (None, None, None, None, "VacateIfRoom", "Ignore")
"""A job's reaction to an eviction request."""
OTHER_RESPONDERS = ("example.com/mover", SILENT)
REACTIONS = ("Vacate", "VacateIfRoom", "Avoid", "CheckpointNow", "Ignore")
"""Not Fault, which costs steps, and may do so."""


class Operators:
    """The Deployment: so many replicas, each restarted a while after it has ended."""

    def __init__(self, world: World, replicas: int, *, skews: list[float]) -> None:
        self._world = world
        self._rng = world.rng("operators")
        self._skews = skews
        self.replicas: list[OperatorProcess] = []
        self.started = 0
        self.on_call: Callable[[str, str, str, str], object] = lambda *_: None
        self.on_answer: Callable[[str, str, str, str, str], object] = lambda *_: None
        self.on_write: Callable[[str, str, str, str, frozenset[str]], object] = lambda *_: None
        for number in range(replicas):
            self.replicas.append(self._new(number))
        world.after(WATCH_SECONDS, self._watch_over)

    def leader(self) -> OperatorProcess | None:
        """The process that believes to lead; the newest of several."""
        return next((one for one in reversed(self.replicas) if one.leading), None)

    def asked(self, name: str) -> float:
        """Seconds for which the answer that this replica got last asks it to wait."""
        return next((one.link.asked for one in self.replicas if one.identity == name), 0.0)

    def _new(self, number: int) -> OperatorProcess:
        self.started += 1
        world, name = self._world, f"operator-{number}.{self.started}"
        rng = world.rng(f"process/{name}")
        link = Link(world.loop, world.server, world.knobs, rng, name=name, fired=world.fired)
        link.on_call = lambda *call: self.on_call(name, *call)
        link.on_answer = lambda *call: self.on_answer(name, *call)
        link.on_write = lambda *call: self.on_write(name, *call)
        skew = self._skews[number % len(self._skews)]
        world.tell(name, "starts", skew=round(skew))
        return OperatorProcess(world.loop, link, world.knobs, rng, skew=skew, identity=name)

    def _watch_over(self) -> None:
        for number, one in enumerate(self.replicas):
            if not one.alive and not one.restarting:
                one.restarting = True
                self._world.tell(one.identity, "is gone")
                self._world.after(self._rng.uniform(0.5, 8.0), self._restart, number)
        self._world.after(WATCH_SECONDS, self._watch_over)

    def _restart(self, number: int) -> None:
        self.replicas[number] = self._new(number)


class Scene:
    """Everything that a history plays with."""

    def __init__(
        self, world: World, run_member: RunMember, pool: Pool | None = None, *, evictions: bool = False
    ) -> None:
        self.world = world
        world.server.evictions = evictions
        rng = world.rng("scene")
        self.kubelets: dict[str, Kubelet] = {}
        self.pool = pool
        self._run_member = run_member
        self._cpu = rng.choice((4, 6, 8))
        machines = rng.randint(3, NODES_AT_MOST)
        for number in range(pool.machines if pool else machines):
            self.add_node(f"node-{number}")
        self.budgets = Budgets(world)
        self.garbage = Garbage(world)
        self.evictor = Evictor(world) if evictions else None
        self.scheduler = Scheduler(world, in_turn=pool is None)
        world.server.observe(self._on_change, PODS, NODES)
        self.lifecycle = NodeLifecycle(world, self.kubelets)
        skews = [rng.uniform(-0.3, 0.3) for _ in range(3)]
        self.operators = Operators(world, rng.choice(REPLICAS), skews=skews)
        self.skews = skews
        jobs = rng.choice(JOBS)
        self.users = [self._user(number) for number in range(len(pool.asks) if pool else jobs)]
        self.autoscaler = Autoscaler(world, pool, self.add_node) if pool else None
        if pool:
            world.server.policy.hard = self._quota(pool)
        for user in self.users:
            world.after(rng.uniform(0.0, APPLIED_SECONDS), user.apply)

    def _user(self, number: int) -> User:
        rng, name = self.world.rng(f"job/{number}"), f"job{number}"
        behaviour = Behaviour(
            goal=rng.choice((150, 300, 1000)),
            step_seconds=rng.choice((1.0, 1.0, 2.0)),
            save_seconds=rng.choice((0.5, 2.0, 8.0)),
            warm_seconds=rng.choice((0.3, 1.0, 4.0)),
            import_seconds=rng.choice((0.5, 3.0)),
            every_steps=rng.choice((10, 30, 100)),
        )
        live = self.world.rng(f"live/{number}").random()
        behaviour.live, behaviour.balks = live < LIVE_SHARE, live < BALKS_SHARE
        container = {
            "name": "trainer",
            "image": "trainer:1",
            "command": ["python"],
            "args": ["train.py"],
            "resources": {"requests": {"cpu": "1"}},
        }
        spec: Json = {
            "replicas": rng.randint(1, 4),
            "processesPerReplica": rng.choice((1, 1, 2)),
            "checkpoint": {"uri": f"s3://bucket/{name}", "keep": 3},
            "disruption": {"exitTimeoutSeconds": rng.choice((20, 45, 60))},
            "failure": {
                "maxCodeFailures": rng.choice((3, 100)),
                "maxInfrastructureFailures": 100,
                "lostNodeSeconds": rng.choice((10, 30, 60)),
                "massOutageSeconds": self.world.rng(f"outage/{number}").choice((60, 90, 600)),
            },
            "suspend": False,
            "template": {
                "spec": {"terminationGracePeriodSeconds": rng.choice((15, 30, 60)), "containers": [container]}
            },
        }
        root = self.world.rng(f"root/{number}")
        if self.pool:
            _ask_for(self.pool, self.pool.asks[number], spec)
            behaviour.goal, behaviour.step_seconds = self.pool.asks[number].goal, 1.0
        elif root.random() < FOLDER_SHARE:
            _on_a_volume(spec, name, root.choice(VOLUMES))
        elif (rng := self.world.rng(f"elastic/{number}")).random() < ELASTIC_SHARE:
            spec["elastic"] = _elastic(rng)
        _declare_batch(spec, self.world.rng(f"batch/{number}"))
        _choose_signals(spec, self.world.rng(f"signals/{number}"))
        if (rng := self.world.rng(f"replacing/{number}")).random() < IMPATIENT_SHARE:
            spec["disruption"]["replacementTimeoutSeconds"] = rng.choice((0, 0, 5))
        if word := self.world.rng(f"cordon/{number}").choice(ON_CORDON):
            spec["disruption"]["onCordon"] = word
        if self.evictor:
            _choose_responders(spec, self.world.rng(f"responders/{number}"))
        body = {
            "apiVersion": "perdure.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": name},
            "spec": spec,
        }
        return User(self.world, NAMESPACE, name, body, behaviour)

    def add_node(self, name: str) -> None:
        """One more machine."""
        self.kubelets[name] = Kubelet(self.world, name, self._run)
        self.register(name)

    def register(self, name: str) -> None:
        """As a kubelet does at its start."""
        labels = {"kubernetes.io/hostname": name}
        body: Json = {"metadata": {"name": name, "labels": labels}, "spec": {}}
        server = self.world.server
        server.create(NODES, "", body, by=f"kubelet/{name}")

        allocatable = self.pool.allocatable if self.pool else {"cpu": str(self._cpu)}

        def ready(raw: Json) -> None:
            one = {"type": "Ready", "status": "True", "lastTransitionTime": stamp(self.world.now)}
            raw["status"] = {"allocatable": allocatable, "conditions": [one]}

        server.change_status(NODES, "", name, ready, by=f"kubelet/{name}")

    async def _run(self, host: MemberHost) -> MemberExit:
        """Pods of users' own, that no operator has made, just run."""
        if host.pod["metadata"].get("ownerReferences"):
            return await self._run_member(host)
        host.mark_ready()
        await host.sigterm.wait()
        return MemberExit(0)

    def _on_change(self, change: Change) -> None:
        if change.kind == PODS and node_of(change.raw):
            kubelet = self.kubelets.get(node_of(change.raw))
            if kubelet is not None and not change.by.startswith("kubelet"):
                kubelet.sync(change.raw, gone=change.event == "DELETED")
        elif change.kind == NODES and change.event == "DELETED":
            self.world.after(1.0, self._off, change.raw["metadata"]["name"])

    def _off(self, name: str) -> None:
        """Deleting a node object ends the machine."""
        if self.world.node(name) is None:
            self.kubelets[name].die()

    def heal(self) -> None:
        """Nothing goes wrong from now on; existing damage stays."""
        world = self.world
        world.tell("world", "heals")
        world.knobs.calls, world.knobs.watches = CallFaults(), WatchFaults()
        world.knobs.lagging.clear()
        world.server.policy.heal()
        bucket = world.bucket
        bucket.down, bucket.error_rate, bucket.lost_answer_rate, bucket.slow_seconds = False, 0.0, 0.0, 0.0
        bucket.refused.clear()
        world.network.cut.clear()
        world.network.without_storage.clear()
        self.budgets.slow = 0.0
        self.scheduler.paused = False
        for one in self.operators.replicas:
            one.link.cut = False
        for behaviour in world.behaviours.values():
            behaviour.crash_per_step = behaviour.hang_per_step = 0.0
            behaviour.oom_at_step = None
            behaviour.exits_without_session = False
            behaviour.init_fails = behaviour.init_pull_fails = 0.0
        for name, kubelet in self.kubelets.items():
            self._heal_node(name, kubelet)
        announce_nothing(world)
        withdraw_all(world)
        self._remove_strangers()
        if self.autoscaler and self.pool:
            self.autoscaler.limit = self.pool.limit
            self.world.server.policy.hard = self._quota(self.pool)
        for user in self.users:
            self._heal_job(user)
            if "hang" in world.fired:  # a hanging rank hangs until it is ended
                self._end_trainers(user)

    def _quota(self, pool: Pool) -> dict[str, dict[str, float]]:
        return {} if pool.quota is None else {NAMESPACE: {pool.resource: float(pool.quota)}}

    def _heal_node(self, name: str, kubelet: Kubelet) -> None:
        node = self.world.node(name)
        if name.startswith(LAUNCHED) and (node is None or node["metadata"].get("deletionTimestamp")):
            _free(kubelet)  # the launcher of machines removes them
            return
        if node is not None and node["metadata"].get("deletionTimestamp"):
            self.world.server.change(NODES, "", name, lambda raw: raw["metadata"].pop("finalizers"), by="cloud")
            node = None
        if node is None:
            self.register(name)
        cordon(self.world, name, False)

        def clear(raw: Json) -> None:
            raw["spec"].pop("taints", None)

        self.world.server.change(NODES, "", name, clear, by="admin")
        _free(kubelet)
        if not kubelet.alive:
            kubelet.boot()
        kubelet.reconnect()
        kubelet.report("True")

    def _remove_strangers(self) -> None:
        """Objects of other people that stand in the place of a job's own."""
        server = self.world.server
        for raw in server.all(PODS, OTHERS):
            server.delete(PODS, *key_of(raw), by="user")
        for raw in server.all(BUDGETS, NAMESPACE):
            if not raw["metadata"].get("labels") and not raw["metadata"].get("ownerReferences"):
                server.delete(BUDGETS, *key_of(raw), by="user")

    def _end_trainers(self, user: User) -> None:
        for pod in user.pods():
            if node_of(pod) in self.kubelets:
                self.kubelets[node_of(pod)].kill_pod(pod)

    def _heal_job(self, user: User) -> None:
        job = user.job
        if job is None or job["metadata"].get("deletionTimestamp"):
            self.world.after(30.0, user.apply)
            return
        spec = user.body["spec"]
        user.edit(suspend=False, replicas=spec["replicas"], checkpoint=spec["checkpoint"])
        if self.pool and job["spec"].get("elastic") != spec.get("elastic"):
            user.edit(elastic=spec.get("elastic"))
        user.template(lambda raw: _restore(raw, user.body["spec"]["template"]), "template restored")


def _free(kubelet: Kubelet) -> None:
    """Nothing keeps its pods from coming up or ending."""
    kubelet.pull_fails = kubelet.file_delay = kubelet.rejects = 0.0
    kubelet.free()
    kubelet.end_hung()


def _on_a_volume(spec: Json, name: str, volume: Json) -> None:
    """The checkpoints of this job are in a folder of a volume."""
    spec["checkpoint"]["uri"] = f"file:///ckpt/{name}"
    pod = spec["template"]["spec"]
    pod["volumes"] = [{"name": "ckpt", **clone(volume)}]
    pod["containers"][0]["volumeMounts"] = [{"name": "ckpt", "mountPath": "/ckpt"}]


def _ask_for(pool: Pool, ask: Ask, spec: Json) -> None:
    """What this job requests of a pool that it shares."""
    spec["replicas"], spec["startTimeoutSeconds"] = ask.replicas, ask.patience
    if ask.elastic:
        spec["elastic"] = clone(ask.elastic)
    pod = spec["template"]["spec"]
    pod["containers"][0]["resources"] = pool.requests(ask.units)
    if ask.priority:
        pod["priorityClassName"] = ask.priority


def _elastic(rng: random.Random) -> Json:
    """Sizes up to the largest number that any user requests."""
    sizes = rng.choice((None, None, [1, 2, 4], [2, 3, 4], [2, 4]))
    least = sizes[0] if sizes else rng.choice((1, 2, 3))
    growing = {"growAfterSeconds": rng.choice((0, 3, 10)), "growTimeoutSeconds": rng.choice((30, 60, 900))}
    spares = rng.choice((0, 0, 1, 2))
    given = {"minReplicas": least, "maxReplicas": 4, **growing} | ({"sizes": sizes} if sizes else {})
    return given | ({"spares": spares} if spares else {})


def _choose_signals(spec: Json, rng: random.Random) -> None:
    """A third of the jobs have their own say about some rows of the table, those that are off among them."""
    rows = [one.name for one in DEFAULT_SIGNALS if one.source in SHOWN]
    if rng.random() < SIGNALS_SHARE:
        chosen = {name: rng.choice(REACTIONS) for name in rng.sample(rows, len(rows) // 2)}
        spec["disruption"]["signals"] = chosen


def _choose_responders(spec: Json, rng: random.Random) -> None:
    """Some jobs name others who answer before the operator, or after it, and some do not move for requests to evict."""
    named = [{"name": name, "priority": rng.choice((5000, 20000))} for name in OTHER_RESPONDERS if rng.random() < 0.15]
    if named:
        spec["template"]["spec"]["evictionResponders"] = named
    if word := rng.choice(ON_REQUEST):
        spec["disruption"]["signals"] = {**(spec["disruption"].get("signals") or {}), "eviction-request": word}


def _declare_batch(spec: Json, rng: random.Random) -> None:
    """Half of the jobs that name no sizes say which batch they share, and the smallest size divides it."""
    elastic = spec.get("elastic")
    if elastic and not elastic.get("sizes") and rng.random() < 0.5:
        elastic["globalBatchSize"] = elastic["minReplicas"] * spec["processesPerReplica"] * rng.choice((1, 2, 4))


def _restore(raw: Json, template: Json) -> None:
    raw.clear()
    raw.update(clone(template))


def foreign_pod(world: World, user: User, name: str, *, alone: bool) -> None:
    """A user's own pod that carries a job's labels, or with `alone` the one by which a NetworkPolicy selects."""
    job = user.job
    if job is None:
        return
    labels = {"perdure.dev/job": user.key[1]}
    if not alone:
        labels |= {LABEL_ROLE: Role.MEMBER.value, "perdure.dev/job-uid": job["metadata"]["uid"]}
    body: dict[str, Any] = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "c"}], "terminationGracePeriodSeconds": 5},
    }
    try:
        world.server.create(PODS, user.key[0], body, by="user")
    except Refused:
        return
