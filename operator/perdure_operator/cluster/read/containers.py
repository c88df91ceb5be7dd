"""What a pod's containers tell: the trainer's state, and which of all keeps the pod from being Ready. Pure.

They start in this order: init containers one after the other, each when the one before has ended well; native sidecars
among them, each when the one before is at work; then the trainer and whatever stands beside it. A member's pod starts
none of them a second time, but for its sidecars. Called by `parse`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from perdure_operator.api import names
from perdure_operator.cluster.protocol import Json

_ON_ITS_WAY: Final = ("", "ContainerCreating", "PodInitializing")


@dataclass(frozen=True)
class Stuck:
    """A container that waits for what may never come, or has ended and is not started again."""

    container: str = ""
    """Its name, "" for the trainer."""
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Containers:
    """Of one pod."""

    spec: Json
    status: Json

    @property
    def trainer(self) -> Json:
        """The trainer's state, {} while the kubelet has told none. It lists statuses in an order of its own."""
        return self._states("containerStatuses").get(trainer(self.spec).get("name", ""), {})

    @property
    def others_run(self) -> bool:
        """Whether a container beside the trainer has not ended; init containers are the kubelet's to end."""
        return any("terminated" not in state for _, state in self._others())

    @property
    def initializing(self) -> str:
        """The init container that is at work."""
        return next((name for name, _, state in self._init(sidecars=False) if "running" in state), "")

    @property
    def init_failed(self) -> tuple[str, Json]:
        """The init container whose end has been the pod's, and how it ended; ("", {}) where there is none."""
        if self.status.get("phase") != "Failed":
            return "", {}
        ended = ((name, state.get("terminated") or {}) for name, _, state in self._init(sidecars=False))
        return next(((name, end) for name, end in ended if end.get("exitCode")), ("", {}))

    @property
    def stuck(self) -> Stuck:
        """The first one, in the order in which they start."""
        for name, status, state in self._init(sidecars=True):
            if found := _waiting(name, status, state):
                return found
        if found := _waiting("", {}, self.trainer):
            return found
        ended = "terminated" in self.trainer
        for name, state in () if ended else self._others():
            if found := _waiting(name, {}, state) or _over(name, state):
                return found
        return Stuck()

    def _init(self, *, sidecars: bool) -> Iterator[tuple[str, Json, Json]]:
        """The init containers in their order, each with what is told of it and its state; with the native sidecars."""
        told = {one.get("name"): one for one in self.status.get("initContainerStatuses") or []}
        for one in self.spec.get("initContainers") or []:
            status: Json = told.get(name := one.get("name", "")) or {}
            if sidecars or one.get("restartPolicy") != "Always":
                yield name, status, status.get("state") or {}

    def _others(self) -> Iterator[tuple[str, Json]]:
        own = trainer(self.spec).get("name")
        yield from ((name, state) for name, state in self._states("containerStatuses").items() if name != own)

    def _states(self, field: str) -> dict[str, Json]:
        told: Iterable[Json] = self.status.get(field) or []
        return {one.get("name", ""): one.get("state") or {} for one in told}


def trainer(spec: Json) -> Json:
    """The container that the operator has put its agent in: admission may put others before it, as meshes do.

    It is known by what no other container has, the folder in which it is told what to do; the first one where none has.
    """
    containers: list[Json] = spec.get("containers") or [{}]
    return next((one for one in containers if _is_told(one)), containers[0])


def _is_told(container: Json) -> bool:
    mounts: Iterable[Json] = container.get("volumeMounts") or []
    return any(one.get("name") == names.ASSIGNMENT_VOLUME for one in mounts)


def _waiting(name: str, status: Json, state: Json) -> Stuck | None:
    waiting = state.get("waiting") or {}
    reason, message = waiting.get("reason") or "", waiting.get("message") or ""
    if reason in _ON_ITS_WAY:
        return None
    last = (status.get("lastState") or {}).get("terminated")
    return Stuck(name, reason, f"{message}; it {_end(last)}" if last else message)


def _over(name: str, state: Json) -> Stuck | None:
    ended = state.get("terminated")
    return Stuck(name, ended.get("reason") or "Ended", f"it {_end(ended)}") if ended else None


def _end(ended: Json) -> str:
    told = str(ended.get("message") or "").strip()
    return f"ended with exit code {ended.get('exitCode', 0)}" + (f": {told}" if told else "")
