"""One node's kubelet: starts containers, keeps their files, reports their state, ends them.

It knows only what it sees: while its node is cut off, containers go on and the API server hears nothing. Members run
behind `interface`; a SIGKILL is the cancellation of a member's task.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final

from tests.simulation.interface import Behaviour, Bucket, MemberExit, Network, RunMember
from tests.simulation.objects import (
    NODES,
    PODS,
    Json,
    clone,
    key_of,
    seconds_of,
    set_condition,
    stamp,
    terminal,
    terminating,
    trainer_of,
    uid_of,
)
from tests.simulation.world import World

ANNOTATIONS_FILE: Final = "metadata.annotations['"
WARM_TICK: Final = 1.0
MISSED_SHARE: Final = 0.05
"""Of updates of a pod that has just become Ready, or has just been changed: its files follow with the next sync."""
BUSY_SECONDS: Final = 3.0
CHANGED_SECONDS: Final = 1.0
"""A changed pod is synced after so long: by then its containers and probes are in their new state."""
SYNC_SECONDS: Final = 0.2
_OOM: Final = "OOMKilled"
_INITIALIZING: Final[Json] = {"waiting": {"reason": "PodInitializing"}}
REJECTED: Final = (
    (
        "OutOfcpu",
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000, used: 4000, capacity: 4000",
    ),
    ("UnexpectedAdmissionError", "Pod was rejected: Allocate failed due to no healthy devices present"),
    ("NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed"),
    ("NodeShutdown", "Pod was rejected as the node is shutting down."),
    ("TopologyAffinityError", "Pod was rejected: Resources cannot be allocated with Topology locality"),
)
"""status.reason and status.message of pods that a kubelet does not admit."""
EVICTED: Final = (
    ("Evicted", "The node was low on resource: memory. Threshold quantity: 100Mi, available: 71Mi."),
    ("Preempting", "Preempted in order to admit critical pod"),
    ("Terminated", "Pod was terminated in response to imminent node shutdown."),
)
"""Those of pods that a kubelet ends."""
LATE_ADDRESS_SHARE: Final = 0.06
"""Of pods whose address is reported later than that they run."""


class Host:
    """See interface.MemberHost."""

    def __init__(self, world: World, pod: Json, ip: str, content: str) -> None:
        self.pod = pod
        self.ip = ip
        self.behaviour: Behaviour = _behaviour(world, pod)
        self.bucket: Bucket = world.bucket
        self.network: Network = world.network
        self.rng: random.Random = world.rng_of_pod(pod["metadata"]["name"])
        self.sigterm = asyncio.Event()
        self.ready = asyncio.Event()
        self._world = world
        self._who = pod["metadata"]["name"]
        self._content = content
        self._read = content
        self._changed = asyncio.Event()
        self.hung = False
        """PID 1 is stopped."""

    def read_assignment(self) -> str:
        self._read = self._content
        self._changed.clear()
        return self._content

    async def assignment_changed(self) -> None:
        while self._content == self._read:
            self._changed.clear()
            await self._changed.wait()

    def write(self, content: str) -> None:
        """The kubelet has swapped the file."""
        if not self.hung:
            self._content = content
            self._changed.set()

    def ask_to_end(self) -> None:
        """SIGTERM, or the preStop hook."""
        if not self.hung:
            self.sigterm.set()

    def mark_ready(self) -> None:
        self.ready.set()

    def monotonic(self) -> float:
        return self._world.now

    def tell(self, what: str, **facts: Any) -> None:
        self._world.tell(self._who, what, **facts)


class Kubelet:
    """A node."""

    def __init__(self, world: World, name: str, run_member: RunMember) -> None:
        self.world = world
        self.name = name
        self.run_member = run_member
        self.rng = world.rng(f"kubelet/{name}")
        self.connected = True
        self.alive = True
        self.silent_since: float | None = None
        self.pull_fails = 0.0
        """Probability of a failed image pull."""
        self.slow_pull = 0.0
        """Up to so many seconds more until an image is there."""
        self.late_address = LATE_ADDRESS_SHARE
        """Probability that a pod has no address for its first seconds."""
        self.file_delay = 0.0
        """Up to so many seconds more until a file follows its annotation."""
        self.missed = MISSED_SHARE
        """Probability that a file is not renewed before the pod is synced again."""
        self._files = world.rng(f"kubelet/{name}/files")
        self.before = world.rng(f"kubelet/{name}/before")
        """For containers that run before trainers."""
        self.stuck = 0.0
        """Probability that a pod stays Terminating on this node until it is set free."""
        self.skew = 0.0
        """So many seconds its clock is ahead of the API server's; nodes' clocks may be minutes off."""
        self.rejects = 0.0
        """Probability that a pod that comes to this node is not admitted."""
        self._admission = world.rng(f"kubelet/{name}/admission")
        self._arrival = 0.0
        """A watch keeps its order."""
        self._workers: dict[str, Worker] = {}

    @property
    def clock(self) -> float:
        """The time that this machine's clock shows."""
        return self.world.now + self.skew

    @property
    def hears(self) -> bool:
        """Whether the API server and this kubelet reach each other."""
        return self.connected and self.alive

    def until_synced(self, seconds: float, busy_until: float) -> float:
        """Until a file is renewed: an update that comes while the pod is synced, as it is when it has just become
        Ready or was changed otherwise, waits for the periodic sync."""
        if self.world.now > busy_until or self._files.random() >= self.missed:
            return seconds
        self.world.fire("file-missed")
        return self._files.uniform(60.0, 90.0)

    def sync(self, pod: Json, *, gone: bool = False) -> None:
        """A pod of this node has changed; the kubelet learns of it a moment later."""
        now = self.world.now
        self._arrival = max(self._arrival, now + self.rng.uniform(0.005, 0.12))
        self.world.after(self._arrival - now, self._sync, pod, gone)

    def _sync(self, pod: Json, gone: bool) -> None:
        if not self.hears:
            return
        worker = self._workers.get(uid_of(pod))
        if worker is not None:
            worker.see(pod, gone)
        elif not gone:
            self._begin(pod)

    def _begin(self, pod: Json) -> None:
        there = self.world.server.find(PODS, *key_of(pod))
        if there is None or uid_of(there) != uid_of(pod):
            return
        if terminating(there):  # containers that have not begun never begin
            self.world.server.finish_delete(PODS, there, by=f"kubelet/{self.name}")
        if terminating(there) or terminal(there):
            return
        if self._admission.random() < self.rejects:
            self._reject(there)
            return
        worker = self._workers[uid_of(there)] = Worker(self, there)
        worker.start()

    def _reject(self, pod: Json) -> None:
        """A pod that is not admitted has failed, without a container."""
        reason, message = self._admission.choice(REJECTED)
        self.world.fire("rejected")
        self.world.tell("node", "rejects", pod=pod["metadata"]["name"], uid=uid_of(pod), reason=reason)

        def change(raw: Json) -> None:
            raw["status"] = {**(raw.get("status") or {}), "phase": "Failed", "reason": reason, "message": message}

        self.world.server.change_status(PODS, *key_of(pod), change, by=f"kubelet/{self.name}")

    def end_one(self, rng: random.Random) -> bool:
        """It ends a running pod for want of memory, for a more important one, or before a shutdown; False where none
        runs."""
        running = [one for one in self._workers.values() if one.running]
        if running:
            chosen, why = rng.choice(running), rng.choice(EVICTED)
            self.world.tell("node", "kills", pod=chosen.pod["metadata"]["name"], reason=why[0])
            chosen.kill(why=why)
        return bool(running)

    def readmit_one(self, rng: random.Random) -> bool:
        """It has restarted, and does not admit a pod that runs here; False if none runs."""
        running = [one for one in self._workers.values() if one.running]
        if running:
            chosen, why = rng.choice(running), rng.choice(REJECTED)
            self.world.tell("node", "kills", pod=chosen.pod["metadata"]["name"], reason=why[0])
            chosen.kill(why=why, forgets=True)
        return bool(running)

    def relist(self) -> None:
        """After a time without the API server: look at everything again, and report."""
        if not self.hears:
            return
        there = {uid_of(pod): pod for pod in self.world.pods_on(self.name)}
        for uid, worker in list(self._workers.items()):
            if uid in there:
                worker.see(there[uid], gone=False)
                worker.push()
            else:
                worker.see(worker.pod, gone=True)
        for uid, pod in there.items():
            if uid not in self._workers:
                self._begin(pod)

    def disconnect(self) -> None:
        self.connected = False
        self.silent_since = self.world.now if self.silent_since is None else self.silent_since

    def reconnect(self) -> None:
        self.connected = True
        self._recover()

    def die(self) -> None:
        """Power off: every container is gone, without a report."""
        self.alive = False
        self.silent_since = self.world.now if self.silent_since is None else self.silent_since
        for worker in self._workers.values():
            worker.power_off()
        self._workers = {uid: worker for uid, worker in self._workers.items() if worker.created}

    def boot(self) -> None:
        """Power on again: earlier containers are dead, and their pods are reported as failed."""
        self.alive = True
        self._recover()

    def _recover(self) -> None:
        if self.hears:
            self.silent_since = None
            self.world.after(self.rng.uniform(0.2, 3.0), self.relist)

    def free(self) -> None:
        """Stuck containers end."""
        self.stuck = 0.0
        for worker in list(self._workers.values()):
            worker.set_free()
            worker.seem(ready=True)

    def end_hung(self) -> None:
        """SIGKILL for every container whose PID 1 is stopped: nothing else ends one whose processes have ended."""
        for worker in self._workers.values():
            if worker.hung:
                worker.kill()

    def kill_pod(self, pod: Json, message: str = "") -> None:
        """SIGKILL for that container, where it runs here."""
        worker = self._workers.get(uid_of(pod))
        if worker is not None and worker.running:
            self.world.tell("node", "kills", pod=pod["metadata"]["name"])
            worker.kill(message)

    def holds(self, uid: str) -> bool:
        """Whether the pod is one that does not go away, or not before its grace is over."""
        return uid in self._workers and (self._workers[uid].stuck or self._workers[uid].hung)

    def hangs(self, uid: str) -> bool:
        """Whether PID 1 of the pod is stopped."""
        return uid in self._workers and self._workers[uid].hung

    def forget(self, uid: str) -> None:
        self._workers.pop(uid, None)

    def kill_one(self, rng: random.Random, message: str = "") -> bool:
        """SIGKILL for a running container, from outside; False where none runs."""
        running = [one for one in self._workers.values() if one.running]
        if running:
            chosen = rng.choice(running)
            self.world.tell("node", "kills", pod=chosen.pod["metadata"]["name"])
            chosen.kill(message)
        return bool(running)

    def hang_one(self, rng: random.Random) -> bool:
        """PID 1 of a running container is stopped; False where none runs."""
        running = [one for one in self._workers.values() if one.running]
        if running:
            chosen = rng.choice(running)
            self.world.tell("node", "hangs", pod=chosen.pod["metadata"]["name"])
            chosen.hang()
        return bool(running)

    def unready_one(self, rng: random.Random) -> Worker | None:
        """A running container's pod loses its readiness, and nothing else; None if none runs."""
        running = [one for one in self._workers.values() if one.running]
        if not running:
            return None
        chosen = rng.choice(running)
        self.world.tell("node", "finds unready", pod=chosen.pod["metadata"]["name"])
        chosen.seem(ready=False)
        return chosen

    def hang_pod(self, pod: Json) -> None:
        """PID 1 of that container is stopped, where it runs here."""
        worker = self._workers.get(uid_of(pod))
        if worker is not None and worker.running:
            self.world.tell("node", "hangs", pod=pod["metadata"]["name"])
            worker.hang()

    def report(self, ready: str, *, reason: str = "KubeletReady") -> None:
        """The node's own condition."""

        def change(raw: Json) -> None:
            set_condition(raw, "Ready", ready, self.clock, reason=reason)

        if self.world.node(self.name) is not None:
            self.world.server.change_status(NODES, "", self.name, change, by=f"kubelet/{self.name}")


class Worker:
    """One pod on its node."""

    def __init__(self, kubelet: Kubelet, pod: Json) -> None:
        self.kubelet = kubelet
        self.pod = pod
        self._world = kubelet.world
        self._uid = uid_of(pod)
        self._host: Host | None = None
        self._task: asyncio.Task[MemberExit] | None = None
        self._life: asyncio.Task[None] | None = None
        self._status: Json | None = None
        self._terminating = False
        self._ended = False
        self._sidecars = len(pod["spec"]["containers"]) > 1
        self.stuck = False
        self._gone = False
        self._message = ""
        self._why = ("", "")
        """status.reason and status.message, where the kubelet ends the whole pod."""
        self._forgets = False
        """Its containers are no longer reported."""
        self._before: list[Json] = []
        """The statuses of the containers before the trainer, in order."""
        self._unready = False
        """Whatever its probe says."""
        self._ip = ""
        """As far as it was reported."""
        self._is_set_up = False
        """Volumes and network are there; reported only for a slow image, because nothing else waits for it."""
        self._started = ""
        """When its trainer's container has started, by this machine's clock."""
        self._undead = False
        """Its processes hang in the kernel: no signal ends them."""
        self._wanted_file = _file_content(pod)
        self._annotations = pod["metadata"].get("annotations")
        self._busy_until = float("-inf")
        """Until when its last change, or its becoming Ready, has it synced."""
        self._shown_file = self._wanted_file
        self._wanted_at = 0.0

    def start(self) -> None:
        self._life = self._world.spawn(self._live())

    # the API server's view

    def see(self, pod: Json, gone: bool) -> None:
        self._gone = self._gone or gone
        if not gone:
            self.pod = pod
        if gone or terminating(pod):
            self._terminate()
            return
        content, touched = _file_content(pod), pod["metadata"].get("annotations")
        if content != self._wanted_file:
            self._wanted_file, self._wanted_at = content, self._world.now
            rng = self.kubelet.rng
            delay = rng.uniform(0.1, 0.3) + (rng.random() * self.kubelet.file_delay)
            self._world.after(self.kubelet.until_synced(delay, self._busy_until), self._write, content)
        elif touched != self._annotations:
            self._world.after(self.kubelet.until_synced(SYNC_SECONDS, self._busy_until), self._write, content)
        if touched != self._annotations:
            self._busy_until = max(self._busy_until, self._world.now + CHANGED_SECONDS)
        self._annotations = touched

    def _write(self, content: str) -> None:
        """The kubelet does not look after the volumes of a pod that it ends."""
        if self._host is not None and not self._terminating and content == self._wanted_file:
            if content != self._shown_file:
                seconds = self._world.now - self._wanted_at
                self._world.tell(self.pod["metadata"]["name"], "file-shown", seconds=seconds)
            self._shown_file = content
            self._host.write(content)

    def _terminate(self) -> None:
        if self._gone:
            grace = float(self.pod["metadata"].get("deletionGracePeriodSeconds", 2))
        else:
            left = seconds_of(self.pod["metadata"]["deletionTimestamp"]) - self._world.now
            grace = max(min(left, float(self.pod["metadata"]["deletionGracePeriodSeconds"])), 0.0)
        self._world.after(max(grace, 0.2), self._kill)
        if self._terminating:
            return
        self._terminating = True
        if self.kubelet.rng.random() < self.kubelet.stuck:
            self._world.fire("stuck-terminating")
            self.stuck = True
            self._undead = self.kubelet.rng.random() < 0.5
        if self._ended or self._host is None:
            self._end_life()
            self.finish()
            return
        self._host.ask_to_end()

    def _end_life(self) -> None:
        """A container that has not been created never is."""
        if self._task is None and self._life is not None and not self._ended:
            self._life.cancel()
            self._ended = True

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def created(self) -> bool:
        """Whether there is, or was, a container."""
        return self._host is not None

    def kill(self, message: str = "", *, why: tuple[str, str] = ("", ""), forgets: bool = False) -> None:
        """From outside; `message` is the container's earlier text, `why` the pod's reported reason."""
        self._message, self._why, self._forgets = message, why, forgets
        self._kill()

    def hang(self) -> None:
        """PID 1 does nothing any more, until SIGKILL."""
        if self._host is not None:
            self._host.hung = True

    def seem(self, *, ready: bool) -> None:
        """Its reported readiness, if it has any."""
        if self._unready == ready:
            self._unready = not ready
            self.push()

    @property
    def hung(self) -> bool:
        return self.running and self._host is not None and self._host.hung

    def _kill(self) -> None:
        if self._task is not None and not self._task.done() and not self._undead:
            self._task.cancel()

    def set_free(self) -> None:
        """The obstacle is gone."""
        if self._undead:
            self._undead = False
            self._kill()
        self.stuck = False
        self.finish()

    def power_off(self) -> None:
        self._undead = False
        if self._life is not None:
            self._life.cancel()
        self._kill()
        if not self._ended and self._host is not None:
            self._ended = True
            self._report_end(MemberExit(255, "Unknown"), self.kubelet.clock)
        self._ended = True

    # the container's life

    async def _live(self) -> None:
        rng = self.kubelet.rng
        await asyncio.sleep(rng.uniform(0.05, 0.3))
        for number, one in enumerate(self.pod["spec"].get("initContainers") or ()):
            if not await self._go_before(number, one):
                return
        await self._pull()
        if self._terminating:
            return
        ip = self._world.address(self.kubelet.name)
        host = Host(self._world, self.pod, ip, self._wanted_file)
        self._host = host
        if rng.random() < self.kubelet.late_address:
            self._world.after(rng.uniform(1.0, 8.0), self._show_address, ip)
        else:
            self._ip = ip
        self._started = stamp(self.kubelet.clock)
        self._show("Running", {"running": {"startedAt": self._started}}, ready=False, ip=self._ip)
        self._task = asyncio.ensure_future(_run(self.kubelet.run_member, host))
        watcher = self._world.spawn(self._await_ready(host))
        try:
            ended = await self._task
        except asyncio.CancelledError:
            ended = MemberExit(137, "Error", self._message)
        while self._undead:  # noqa: ASYNC110 - nobody sees the kernel let go
            await asyncio.sleep(1.0)
        watcher.cancel()
        if not self._ended:
            self._ended, at = True, self.kubelet.clock
            await asyncio.sleep(rng.uniform(0.02, 0.3))
            self._report_end(ended, at)
            self.finish()

    async def _go_before(self, number: int, container: Json) -> bool:
        """An init container or a native sidecar; False where its end is the pod's."""
        if not number:
            names = (one["name"] for one in self.pod["spec"]["initContainers"])
            self._before = [{"name": name, "ready": False, "state": _INITIALIZING} for name in names]
        rng, behaviour, told = self.kubelet.before, _behaviour(self._world, self.pod), self._before[number]
        while rng.random() < behaviour.init_pull_fails:
            self._world.fire("init-pull")
            reason = rng.choice(("ErrImagePull", "ImagePullBackOff"))
            self._show_before(number, {"waiting": {"reason": reason, "message": "rpc error: code = NotFound"}})
            await asyncio.sleep(rng.uniform(1.0, 10.0))
        stays = container.get("restartPolicy") == "Always"
        while stays and rng.random() < behaviour.init_fails:
            self._world.fire("sidecar-crash")
            told["lastState"] = {"terminated": {"exitCode": 1, "reason": "Error"}}
            self._show_before(number, {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}})
            await asyncio.sleep(rng.uniform(2.0, 10.0))
        self._show_before(number, {"running": {"startedAt": stamp(self.kubelet.clock)}})
        if not stays:
            await asyncio.sleep(rng.uniform(0.2, 4.0))
            if rng.random() < behaviour.init_fails:
                return self._fail_before(number, *rng.choice(((1, "Error"), (1, "Error"), (137, "Error"), (137, _OOM))))
            self._show_before(number, {"terminated": {"exitCode": 0, "reason": "Completed"}})
        told["ready"] = True
        return True

    def _fail_before(self, number: int, code: int, reason: str) -> bool:
        self._world.fire("init-exit" if code == 1 else "init-kill")
        self._world.tell(self.pod["metadata"]["name"], "init-ended", code=code, reason=reason)
        self._ended = True
        self._before[number]["state"] = {}
        self._end_sidecars(self.kubelet.clock)
        ended = {"exitCode": code, "reason": reason, "finishedAt": stamp(self.kubelet.clock)}
        self._show_before(number, {"terminated": ended}, "Failed")
        self.finish()
        return False

    def _end_sidecars(self, at: float) -> None:
        """Native sidecars are ended once the pod is over, and most do not end well."""
        for one in self._before:
            if "running" in one["state"]:
                one["state"] = {"terminated": {"exitCode": 143, "reason": "Error", "finishedAt": stamp(at)}}

    def _show_before(self, number: int, state: Json, phase: str = "Pending") -> None:
        self._before[number]["state"] = state
        self._show(phase, _INITIALIZING, ready=False)

    async def _pull(self) -> None:
        rng = self.kubelet.rng
        while rng.random() < self.kubelet.pull_fails:
            self._world.fire("image-pull")
            waiting = {"reason": "ErrImagePull", "message": "rpc error: code = NotFound"}
            self._show("Pending", {"waiting": waiting}, ready=False)
            await asyncio.sleep(rng.uniform(1.0, 10.0))
        if self.kubelet.slow_pull:
            self._world.fire("slow-pull")
            self._show("Pending", {"waiting": {"reason": "ContainerCreating"}}, ready=False, is_set_up=True)
            await asyncio.sleep(self.kubelet.before.uniform(0.0, self.kubelet.slow_pull))
        await asyncio.sleep(rng.uniform(0.05, 0.6))

    async def _await_ready(self, host: Host) -> None:
        await host.ready.wait()
        await asyncio.sleep(self.kubelet.rng.uniform(0.0, WARM_TICK))
        if not self._ended and self._status is not None:
            running = self._status["containerStatuses"][0]["state"]
            self._busy_until = self._world.now + BUSY_SECONDS
            self._show("Running", running, ready=True, ip=self._ip)

    def _show_address(self, ip: str) -> None:
        self._ip = ip
        if self._status is not None and not self._ended:
            self._status["podIP"] = ip
            self.push()

    def _report_end(self, ended: MemberExit, at: float) -> None:
        state = {
            "terminated": {
                "exitCode": ended.exit_code,
                "reason": ended.reason if ended.exit_code == 0 or ended.reason != "Completed" else "Error",
                "message": ended.termination_message[:4096],
                "startedAt": self._started,
                "finishedAt": stamp(at),
            }
        }
        over = "Succeeded" if ended.exit_code == 0 else "Failed"
        phase = "Running" if self._sidecars and not self._terminating else over
        self._world.tell(self.pod["metadata"]["name"], "container-ended", code=ended.exit_code, reason=ended.reason)
        self._end_sidecars(at)
        self._show(phase, state, ready=False, ip=self._host.ip if self._host else "")

    def finish(self) -> None:
        """The last thing a kubelet does with a pod that is being deleted."""
        if not self._terminating or not self._ended:
            return
        if self._sidecars and self._status is not None and self._status["phase"] == "Running":
            self._status["phase"] = "Failed"
            self.push()
        if self.stuck:
            return
        self._world.after(self.kubelet.rng.uniform(0.05, 0.8), self._remove)

    def _remove(self) -> None:
        if not self.kubelet.hears:
            return  # relist comes back to it
        self._world.server.finish_delete(PODS, self.pod, by=f"kubelet/{self.kubelet.name}")
        self.kubelet.forget(self._uid)

    # reports

    def _show(self, phase: str, state: Json, *, ready: bool, ip: str = "", is_set_up: bool = False) -> None:
        own = trainer_of(self.pod).get("name", "")
        names = (one.get("name", "") for one in self.pod["spec"]["containers"])
        others = [{"name": name, "ready": True, "state": {"running": {}}} for name in names if name != own]
        trainer = {"name": own, "ready": ready, "state": state}
        self._status = {"phase": phase, "podIP": ip, "containerStatuses": [trainer, *others], "ready": ready}
        if self._before:
            self._status["initContainerStatuses"] = self._before
        if phase == "Failed" and self._why[0]:
            self._status["reason"], self._status["message"] = self._why
            if self._forgets:
                self._status["containerStatuses"] = []
        self._is_set_up = self._is_set_up or is_set_up
        self.push()

    def push(self) -> None:
        """Tell the API server, where it can be reached."""
        if not self.kubelet.hears:
            return
        if self._status is None:
            self.finish()  # it was deleted before there was anything to report
            return
        there = self._world.server.find(PODS, *key_of(self.pod))
        if there is None or uid_of(there) != self._uid:
            return
        wanted, now = clone(self._status), self.kubelet.clock
        ready = wanted.pop("ready") and not self._unready

        def change(raw: Json) -> None:
            raw["status"] = {**(raw.get("status") or {}), **wanted}
            set_condition(raw, "Ready", "True" if ready else "False", now)
            if self._is_set_up:
                set_condition(raw, "PodReadyToStartContainers", "True", now)

        self._world.server.change_status(PODS, *key_of(self.pod), change, by=f"kubelet/{self.kubelet.name}")
        if self._terminating:
            self.finish()


async def _run(run_member: RunMember, host: Host) -> MemberExit:
    return await run_member(host)


def _file_content(pod: Json) -> str:
    """The content of container 0's downward-API volume."""
    annotations = pod["metadata"].get("annotations") or {}
    for volume in pod["spec"].get("volumes") or ():
        for item in (volume.get("downwardAPI") or {}).get("items") or ():
            path = (item.get("fieldRef") or {}).get("fieldPath", "")
            if path.startswith(ANNOTATIONS_FILE):
                return str(annotations.get(path.removeprefix(ANNOTATIONS_FILE).removesuffix("']"), ""))
    return ""


def _behaviour(world: World, pod: Json) -> Behaviour:
    owners = pod["metadata"].get("ownerReferences") or [{}]
    job = f"{pod['metadata']['namespace']}/{owners[0].get('name', '')}"
    return world.behaviours.get(job) or Behaviour()
