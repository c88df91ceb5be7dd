"""What a simulated kubelet gives a member, and what it gets back when the member ends.

The world (API server, nodes, kubelets, faults) is on one side, the real agent and log code in `member` on the other.
Neither side imports the other: they share this file. Everything runs in one event loop with virtual time, on which
`asyncio.sleep` and timeouts cost nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

Json = dict[str, Any]


@dataclass(frozen=True)
class MemberExit:
    """How container 0 ended."""

    exit_code: int
    reason: str = "Completed"
    """The container runtime's reason: Completed, Error, OOMKilled ..."""
    termination_message: str = ""
    """The agent's text in /dev/termination-log."""


@dataclass
class Behaviour:
    """How a job's script behaves: chosen by the history's seed, the same for every member of the job."""

    goal: int = 200
    """Steps to train."""
    step_seconds: float = 1.0
    save_seconds: float = 2.0
    """How long staging and upload of one checkpoint take."""
    warm_seconds: float = 1.0
    """From the start of the container until the agent has read its first assignment."""
    import_seconds: float = 3.0
    every_steps: int = 20
    crash_per_step: float = 0.0
    """Probability that a rank raises an exception in a step."""
    hang_per_step: float = 0.0
    """Probability that a rank hangs in a step forever."""
    oom_at_step: int | None = None
    """The kernel kills a rank at this step, each time."""
    blames_itself: bool = False
    """A rank that has lost a peer raises an exception of its own, as scripts without a Session do."""
    live: bool = False
    """Whether the script can change its membership in place, as far as its Session says when it attaches."""
    balks: bool = False
    """Whether that turns out to be wrong when it is tried."""
    init_fails: float = 0.0
    """Probability that a container that goes before the trainer ends badly."""
    init_pull_fails: float = 0.0
    """Of each attempt to pull the image of one."""
    exits_without_session: bool = False
    """The process ends with status 0 before a Session attaches."""


@dataclass
class Bucket:
    """The object storage of a history, shared by all members; member's store wraps it and obeys the faults."""

    objects: dict[str, bytes] = field(default_factory=dict)
    """By full key: uri + "/" + key below the job's root."""
    down: bool = False
    """No call is answered."""
    error_rate: float = 0.0
    """Of calls that fail without an effect."""
    lost_answer_rate: float = 0.0
    """Of writes that happen and whose answer never comes."""
    slow_seconds: float = 0.0
    """At most this long per call."""
    refused: set[str] = field(default_factory=set)
    """Roots whose keys have no right to anything."""


class Network(Protocol):
    """Who reaches whom now."""

    def reachable(self, here: str, there: str) -> bool:
        """Whether a packet from the pod with IP `here` arrives at the pod with IP `there`."""
        ...

    def storage_reachable(self, here: str) -> bool:
        """Whether the object storage can be reached from that pod."""
        ...

    @property
    def shared(self) -> dict[Any, Any]:
        """One dictionary for the whole history: members keep listeners and messages under keys of their own."""
        ...


class MemberHost(Protocol):
    """One container's surroundings."""

    pod: Json
    """The pod as the API server stored it when the container was created: names, env, spec."""
    ip: str
    behaviour: Behaviour
    bucket: Bucket
    network: Network
    rng: random.Random
    sigterm: asyncio.Event
    """Set when the kubelet has asked the container to end. SIGKILL is a cancellation of the member's task."""
    hung: bool
    """PID 1 is stopped: it notices nothing any more, while its processes go on."""

    def read_assignment(self) -> str:
        """The content of the downward-API file now; never newer than when the pod began to terminate."""
        ...

    async def assignment_changed(self) -> None:
        """Return when the content differs from the one that was read last through `read_assignment`."""
        ...

    def mark_ready(self) -> None:
        """The startup probe passes from now on."""
        ...

    def monotonic(self) -> float:
        """This node's own clock: seconds since the node's start, virtual."""
        ...

    def tell(self, what: str, **facts: Any) -> None:
        """For the trace and the checks, never seen by the code under test. Facts that checks rely on:

        "trainer-started" {run, rank, uid}, "step" {run, rank, step, uid}, "trainer-ended" {run, rank, uid, how},
        "opened" {run, uid, step}, "committed" {run, uid, step, seq, final}; uid is the job's.
        """
        ...


RunMember = Callable[[MemberHost], Awaitable[MemberExit]]
