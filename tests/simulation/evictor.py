"""The controller that turns EvictionRequests into Evictions and passes them from responder to responder, and other
responders.

Written from KEP-4563: 1.37.0 has no such controller. There is one Eviction for each pod with a request, named after the
pod's uid. Responders take turns by priority; Kubernetes' own comes last and evicts by way of the budget. A responder
that is silent for too long loses its turn, withdrawing all requests cancels the Eviction, and the end of the pod ends
it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.controllers import evict
from tests.simulation.eviction_rules import EVICTOR, EVICTOR_PRIORITY
from tests.simulation.objects import (
    EVICTIONS,
    PODS,
    REQUESTS,
    Json,
    Refused,
    clone,
    condition,
    key_of,
    seconds_of,
    set_condition,
    stamp,
    terminal,
    terminating,
    uid_of,
)
from tests.simulation.world import Debounced, World

BY: Final = "evictor"
PATIENCE: Final = (90.0, 1200.0)
"""Of the controller with a responder: the KEP has 20 minutes, which few histories last; the operator promises one."""
LATE_SECONDS: Final = 60.0
"""The time after the pod's end in which the responder whose turn it is may report completion."""
KEPT_SECONDS: Final = 30.0
"""So long an Eviction stays that is over."""
RETRY_SECONDS: Final = 10.0
OTHERS_SECONDS: Final = (2.0, 30.0)
"""The time that another responder takes for its part."""


class Evictor:
    """All of it, as one process that nothing ever happens to."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng("evictor")
        self._patience = self._rng.choice(PATIENCE)
        self._ended: dict[str, float] = {}
        """By uid of the pod: when it was first seen to have ended."""
        self._next_try: dict[str, float] = {}
        self._soon = Debounced(world, lambda: self._rng.uniform(0.02, 0.5), self._sync)
        world.server.observe(self._on_change, REQUESTS, EVICTIONS, PODS)
        world.after(5.0, self._look)

    def _on_change(self, change: Change) -> None:
        if change.kind != PODS or self._world.server.find(EVICTIONS, key_of(change.raw)[0], uid_of(change.raw)):
            self._soon()

    def _look(self) -> None:
        """Time passes."""
        self._soon()
        self._world.after(5.0, self._look)

    def _sync(self) -> None:
        server = self._world.server
        wanted: dict[tuple[str, str], list[Json]] = {}
        for request in server.all(REQUESTS):
            target = request["spec"]["target"]["pod"]
            wanted.setdefault((key_of(request)[0], target["uid"]), []).append(request)
        for (namespace, uid), requests in wanted.items():
            pod = server.find(PODS, namespace, requests[0]["spec"]["target"]["pod"]["name"])
            there = pod is not None and uid_of(pod) == uid
            if there and server.find(EVICTIONS, namespace, uid) is None and any(map(_wants, requests)):
                self._begin(namespace, requests[0])
        for eviction in server.all(EVICTIONS):
            self._advance(eviction, wanted.get((key_of(eviction)[0], key_of(eviction)[1]), []))

    def _begin(self, namespace: str, request: Json) -> None:
        target = clone(request["spec"]["target"])
        body = {"metadata": {"name": target["pod"]["uid"]}, "spec": {"target": target}}
        try:
            self._world.server.create(EVICTIONS, namespace, body, by=BY)
        except Refused:  # the namespace is being deleted
            return
        self._world.tell(BY, "begins", pod=target["pod"]["name"])

    def _advance(self, eviction: Json, requests: list[Json]) -> None:
        server, now = self._world.server, self._world.now
        target = eviction["spec"]["target"]["pod"]
        pod = server.find(PODS, key_of(eviction)[0], target["name"])
        pod = pod if pod is not None and uid_of(pod) == target["uid"] else None
        if is_over(eviction):
            if now - max(_moments(eviction)) > KEPT_SECONDS:
                server.delete(EVICTIONS, *key_of(eviction), by=BY)
                for request in requests if pod is None else ():
                    server.delete(REQUESTS, *key_of(request), by=BY)
            return
        if pod is None or terminal(pod):
            self._ended.setdefault(target["uid"], now)

        def write(raw: Json) -> None:
            self._write(raw.setdefault("status", {}), target["uid"], pod, requests)

        server.change_status(EVICTIONS, *key_of(eviction), write, by=BY)
        active = _active(server.find(EVICTIONS, *key_of(eviction)) or {})
        if active and active["name"] == EVICTOR and target["uid"] in self._ended:
            self._say(eviction, EVICTOR, "completionTime")
        elif active and pod is not None:
            self._answer(eviction, active["name"], pod)

    def _write(self, status: Json, uid: str, pod: Json | None, requests: list[Json]) -> None:
        """The controller's part of the status, in place."""
        now = self._world.now
        status["observedGeneration"] = 1
        asked = {one["spec"]["requester"]: one for one in sorted(requests, key=_wants)}
        names = sorted({*asked, *(one["name"] for one in status.get("requesters") or ())})
        status["requesters"] = [
            {"name": name, "intent": "Eviction" if name in asked and _wants(asked[name]) else "Withdrawn"}
            for name in names
        ]
        if "targetResponders" not in status:
            _name_responders(status, pod)
        canceled = not any(one["intent"] == "Eviction" for one in status["requesters"])
        turns = status["targetResponders"]
        active = next((one for one in turns if one["state"] == "Active"), None)
        if uid in self._ended:
            if active and not self._may_end(status, active, now - self._ended[uid]):
                return
            reason = "PodDeleted" if pod is None else "PodTerminal"
            set_condition({"status": status}, "TargetEvicted", "True", now, reason=reason)
        elif canceled:
            if active:
                active["state"] = "Canceled"
            set_condition({"status": status}, "Failed", "True", now, reason="CanceledDueToNoRequesters")
        else:
            self._hand_on(status, active)

    def _may_end(self, status: Json, active: Json, since: float) -> bool:
        """The responder whose turn it is as the pod ends reports completion, or is too late."""
        said = _answer_of(status, active["name"])
        if not said.get("completionTime") and since <= LATE_SECONDS:
            return False
        active["state"] = "Completed" if said.get("completionTime") else "Interrupted"
        return True

    def _hand_on(self, status: Json, active: Json | None) -> None:
        turns, now = status["targetResponders"], self._world.now
        if active:
            said = _answer_of(status, active["name"])
            last = seconds_of(said.get("heartbeatTime") or said["startTime"])
            if said.get("completionTime"):
                active["state"] = "Completed"
            elif now - last >= self._patience:
                self._world.fire("turn-missed")
                active["state"] = "Interrupted"
            else:
                return
        following = next((one for one in turns if one["state"] == "Inactive"), None)
        if following:
            following["state"] = "Active"
            _answer_of(status, following["name"])["startTime"] = stamp(now)

    def _answer(self, eviction: Json, name: str, pod: Json) -> None:
        """Of those that are not under test: Kubernetes' own, and those of the template."""
        if name == EVICTOR:
            self._evict(eviction, pod)
        elif name.startswith("example.com/") and uid_of(pod) not in self._next_try:
            self._next_try[uid_of(pod)] = 0.0
            if name != SILENT:
                self._world.after(self._rng.uniform(*OTHERS_SECONDS), self._say, eviction, name, "completionTime")

    def _evict(self, eviction: Json, pod: Json) -> None:
        """By way of the budget; it says every time that it is at it, also while the pod has its grace."""
        if self._world.now < self._next_try.get(uid_of(eviction), 0.0):
            return
        self._next_try[uid_of(eviction)] = self._world.now + RETRY_SECONDS
        with suppress(Refused):
            evict(self._world, *key_of(pod))
        self._say(eviction, EVICTOR, "heartbeatTime")

    def _say(self, eviction: Json, name: str, field: str) -> None:
        server, now = self._world.server, self._world.now
        there = server.find(EVICTIONS, *key_of(eviction))
        if there is None or uid_of(there) != uid_of(eviction) or (_active(there) or {}).get("name") != name:
            return

        def change(raw: Json) -> None:
            _answer_of(raw["status"], name)[field] = stamp(now)

        server.change_status(EVICTIONS, *key_of(eviction), change, by=name)


SILENT: Final = "example.com/silent"
"""A responder without a process."""


def is_over(eviction: Json) -> bool:
    """Evicted, or given up."""
    return any((condition(eviction, kind) or {}).get("status") == "True" for kind in ("TargetEvicted", "Failed"))


def withdraw_all(world: World) -> None:
    """All requests are withdrawn."""
    for request in world.server.all(REQUESTS):
        withdraw(world, request)


def withdraw(world: World, request: Json) -> None:
    """As its requester does, or as a requester that deleted it."""
    if world.server.find(REQUESTS, *key_of(request)) is not None:
        world.server.change(
            REQUESTS, *key_of(request), lambda raw: raw["spec"].update(intent="Withdrawn"), by="requester"
        )


def _name_responders(status: Json, pod: Json | None) -> None:
    """Those of the pod, by priority, and Kubernetes' own."""
    named = clone((pod or {}).get("spec", {}).get("evictionResponders") or [])
    named.append({"name": EVICTOR, "priority": EVICTOR_PRIORITY})
    named.sort(key=lambda one: (-one["priority"], one["name"]))
    status["targetResponders"] = [one | {"state": "Inactive"} for one in named]
    status["responders"] = [{"name": one["name"]} for one in named]


def _active(eviction: Json) -> Json | None:
    turns = (eviction.get("status") or {}).get("targetResponders") or ()
    return next((one for one in turns if one["state"] == "Active"), None)


def _answer_of(status: Json, name: str) -> Json:
    found: Json = next(one for one in status["responders"] if one["name"] == name)
    return found


def _wants(request: Json) -> bool:
    return bool(request["spec"].get("intent") == "Eviction" and not terminating(request))


def _moments(eviction: Json) -> list[float]:
    """When its conditions changed."""
    return [seconds_of(one["lastTransitionTime"]) for one in eviction["status"]["conditions"]]
