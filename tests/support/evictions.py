"""Evictions as the API of Kubernetes 1.37.0 accepts them from the controller that Kubernetes does not have yet.

By `k8s.io/api/lifecycle/v1alpha1` and its validation, v0.37.0; a real API server refuses invalid ones here, see
tests/api/test_operator_evictions.py.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

Json = dict[str, Any]

OPERATOR = "perdure.dev/operator"
EVICTOR = "imperative-eviction.k8s.io/evictor"
"""Kubernetes' own: it comes last, and deletes the pod by way of its budget."""
REQUESTER = "example.com/maintenance"


def eviction(namespace: str, pod: str, uid: str, name: str = "") -> Json:
    """Before the controller has said whose turn it is."""
    return {
        "apiVersion": "lifecycle.k8s.io/v1alpha1",
        "kind": "Eviction",
        "metadata": {"name": name or f"evict-{pod}", "namespace": namespace, "labels": {OPERATOR: "responder"}},
        "spec": {"target": {"pod": {"name": pod, "uid": uid}}},
    }


def request(namespace: str, pod: str, uid: str, *, intent: str = "Eviction") -> Json:
    """What a requester makes."""
    return {
        "apiVersion": "lifecycle.k8s.io/v1alpha1",
        "kind": "EvictionRequest",
        "metadata": {"name": f"request-{pod}", "namespace": namespace},
        "spec": {"target": {"pod": {"name": pod, "uid": uid}}, "requester": REQUESTER, "intent": intent},
    }


def turn_of_the_operator(started: datetime, *, requester: str = REQUESTER) -> Json:
    """The status with which the controller hands it to the operator."""
    return {
        "observedGeneration": 1,
        "requesters": [{"name": requester, "intent": "Eviction"}],
        "targetResponders": [
            {"name": OPERATOR, "priority": 10000, "state": "Active"},
            {"name": EVICTOR, "priority": 100, "state": "Inactive"},
        ],
        "responders": [{"name": OPERATOR, "startTime": stamp(started)}, {"name": EVICTOR}],
    }


def canceled(status: Json, now: datetime) -> Json:
    """Every requester has withdrawn, and the controller has seen it."""
    why = {"status": "True", "reason": "CanceledDueToNoRequesters", "message": "", "lastTransitionTime": stamp(now)}
    return status | {
        "requesters": [one | {"intent": "Withdrawn"} for one in status["requesters"]],
        "targetResponders": [
            one | {"state": "Canceled" if one["state"] == "Active" else one["state"]}
            for one in status["targetResponders"]
        ],
        "conditions": [{"type": "Failed", **why}],
    }


def evicted(status: Json, now: datetime) -> Json:
    """The pod has ended, and the controller has seen it."""
    why = {"status": "True", "reason": "PodTerminal", "message": "", "lastTransitionTime": stamp(now)}
    done = {one["name"] for one in status["responders"] if one.get("completionTime")}
    turns = [
        one | {"state": "Completed" if one["name"] in done else one["state"]} for one in status["targetResponders"]
    ]
    return status | {"targetResponders": turns, "conditions": [{"type": "TargetEvicted", **why}]}


def handed_on(status: Json, now: datetime, state: str) -> Json:
    """The operator's turn is over (`state`), and it is that of Kubernetes' own."""
    turns = {OPERATOR: state, EVICTOR: "Active"}
    return status | {
        "targetResponders": [one | {"state": turns[one["name"]]} for one in status["targetResponders"]],
        "responders": [
            one | ({"startTime": stamp(now)} if one["name"] == EVICTOR else {}) for one in status["responders"]
        ],
    }


def answer_of(raw: Json) -> Json:
    """What the operator has said."""
    found: Json = next((one for one in raw["status"]["responders"] if one["name"] == OPERATOR), {})
    return found


def stamp(moment: datetime) -> str:
    """A metav1.Time."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
