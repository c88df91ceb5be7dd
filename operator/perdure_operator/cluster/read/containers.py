"""States of a pod's containers: the trainer's, and which container keeps the pod from being Ready. Pure.

Containers start in this order: init containers one by one, each after the one before succeeded; native sidecars among
them, each once the one before runs; then the trainer and all others. A member's pod restarts only its sidecars. Called
by `parse`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from perdure_operator.api import names
from perdure_operator.cluster.protocol import Json

_ON_ITS_WAY: Final = ("", "ContainerCreating", "PodInitializing")
_TO_BE_CREATED: Final = ("ContainerCreating", "PodInitializing")


@dataclass(frozen=True)
class Stuck:
    """A container that waits, perhaps forever, or that ended and is not restarted."""

    container: str = ""
    """Its name; "" for the trainer."""
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Containers:
    """The containers of one pod."""

    spec: Json
    status: Json

    @property
    def trainer(self) -> Json:
        """The trainer's state; {} until the kubelet reports one. The kubelet lists statuses in its own order."""
        return self._states("containerStatuses").get(trainer(self.spec).get("name", ""), {})

    @property
    def others_run(self) -> bool:
        """Whether a container beside the trainer still runs. The kubelet ends init containers itself."""
        return any("terminated" not in state for _, state in self._others())

    @property
    def initializing(self) -> str:
        """The init container that runs; "" if none does."""
        return next((name for name, _, state in self._init(sidecars=False) if "running" in state), "")

    @property
    def pulling(self) -> bool:
        """Whether the pod has its volumes and its network, and its next container is to be created.

        A container is created as soon as its image is there. A pod that waits for a volume has no network yet.
        """
        conditions: Iterable[Json] = self.status.get("conditions") or []
        is_set_up = any(
            one.get("type") == "PodReadyToStartContainers" and one.get("status") == "True" for one in conditions
        )
        if not is_set_up or self.initializing or self.stuck.reason:
            return False
        states = [
            self.trainer,
            *(state for _, state in self._others()),
            *(one for *_, one in self._init(sidecars=True)),
        ]
        return any((state.get("waiting") or {}).get("reason") in _TO_BE_CREATED for state in states)

    @property
    def init_failed(self) -> tuple[str, Json]:
        """The init container whose failure ended the pod, and its end; ("", {}) if there is none."""
        if self.status.get("phase") != "Failed":
            return "", {}
        ended = ((name, state.get("terminated") or {}) for name, _, state in self._init(sidecars=False))
        return next(((name, end) for name, end in ended if end.get("exitCode")), ("", {}))

    @property
    def stuck(self) -> Stuck:
        """The first stuck container in the order of start; an empty Stuck if there is none."""
        for name, status, state in self._init(sidecars=True):
            if found := _waiting(name, status, state):
                return found
        if found := _waiting("", {}, self.trainer):
            return found
        ended = "terminated" in self.trainer
        for name, state in () if ended else self._others():
            if found := _waiting(name, {}, state) or _ended_for_good(name, state):
                return found
        return Stuck()

    def _init(self, *, sidecars: bool) -> Iterator[tuple[str, Json, Json]]:
        """The init containers in order, each with its status and its state; native sidecars only if wanted."""
        statuses = {one.get("name"): one for one in self.status.get("initContainerStatuses") or []}
        for one in self.spec.get("initContainers") or []:
            status: Json = statuses.get(name := one.get("name", "")) or {}
            if sidecars or one.get("restartPolicy") != "Always":
                yield name, status, status.get("state") or {}

    def _others(self) -> Iterator[tuple[str, Json]]:
        own = trainer(self.spec).get("name")
        yield from ((name, state) for name, state in self._states("containerStatuses").items() if name != own)

    def _states(self, field: str) -> dict[str, Json]:
        statuses: Iterable[Json] = self.status.get(field) or []
        return {one.get("name", ""): one.get("state") or {} for one in statuses}


def trainer(spec: Json) -> Json:
    """The container with the operator's agent; admission may put others before it, as meshes do.

    Only the trainer mounts the assignment's volume. If no container does, it is the first one.
    """
    containers: list[Json] = spec.get("containers") or [{}]
    return next((one for one in containers if _mounts_assignment(one)), containers[0])


def _mounts_assignment(container: Json) -> bool:
    mounts: Iterable[Json] = container.get("volumeMounts") or []
    return any(one.get("name") == names.ASSIGNMENT_VOLUME for one in mounts)


def _waiting(name: str, status: Json, state: Json) -> Stuck | None:
    waiting = state.get("waiting") or {}
    reason, message = waiting.get("reason") or "", waiting.get("message") or ""
    if reason in _ON_ITS_WAY:
        return None
    last = (status.get("lastState") or {}).get("terminated")
    return Stuck(name, reason, f"{message}; it {_end(last)}" if last else message)


def _ended_for_good(name: str, state: Json) -> Stuck | None:
    ended = state.get("terminated")
    return Stuck(name, ended.get("reason") or "Ended", f"it {_end(ended)}") if ended else None


def _end(ended: Json) -> str:
    message = str(ended.get("message") or "").strip()
    return f"ended with exit code {ended.get('exitCode', 0)}" + (f": {message}" if message else "")
