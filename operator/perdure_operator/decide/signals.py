"""Which pods have to leave, and why: what they and their nodes show, and who asks for their eviction.

The table of signals (`api.default_signals`) says which marks count, and how the job reacts to each.

`not-ready` and `unreachable` are no announcements: no member on such a node can be asked to save (see `leaving`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from perdure_operator.api import default_signals, names
from perdure_operator.api.signal_rows import Reaction, SignalRow, SignalSource
from perdure_operator.api.spec import DisruptionPolicy
from perdure_operator.decide.draft import later
from perdure_operator.state import vacate_request
from perdure_operator.state.newest_answer import NewestAnswer
from perdure_operator.state.signal_table import SignalTable, table
from perdure_operator.state.snapshot import EvictionView, NodeView, PodView, Snapshot, Taint, Toleration

AUTOSCALER_TAINT: Final = default_signals.AUTOSCALER_TAINT
KARPENTER_TAINT: Final = default_signals.KARPENTER_TAINT
CORDON: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")

_CREDIBLE_YEARS: Final = (1970, 9000)
_ASKED: Final = frozenset({"Active", "Interrupted", "Completed"})
_KEPT: Final = 64
"""How many characters of the annotation perdure.dev/save count: status keeps them."""
_REQUESTERS: Final = 3
"""How many of them a message names."""
_LEAVE: Final = frozenset({Reaction.VACATE, Reaction.VACATE_BY_DEADLINE, Reaction.VACATE_IF_ROOM, Reaction.FAULT})


@dataclass(frozen=True)
class Signal:
    """One announcement that a pod has to leave."""

    pod: str
    cause: str
    """The cause in words, with names."""
    node: str = ""
    """The node that the pod has to leave; "" if the signal is about the pod itself."""
    urgent: bool = False
    """True: members are asked at once, without a quiet second."""
    deadline: datetime | None = None
    """When the pod will be taken away, if that is known."""
    if_room: bool = False
    """True: the pod need not leave before another takes its place."""
    fault: bool = False
    """True: the results of the pod's computation are suspect."""


@dataclass(frozen=True)
class _Shown:
    """One mark that a node or a pod shows, and the row of the table that it matches."""

    row: SignalRow
    words: str
    value: str = ""
    since: datetime | None = None
    ends: datetime | None = None
    """When its node goes away, if the node's claim shows that."""
    pod_has: int | None = None
    """After how many seconds Kubernetes kills the pod, if it evicts the pod on its own."""


def table_of(snapshot: Snapshot) -> SignalTable:
    """The table in force for this job. Every pod needs it in every round, so it is looked up once for a snapshot."""
    return _table(snapshot.signals, snapshot.spec.disruption)


@NewestAnswer
def _table(configured: tuple[SignalRow, ...], policy: DisruptionPolicy) -> SignalTable:
    return table(configured, policy.reactions)


@NewestAnswer
def _evictions(seen: tuple[EvictionView, ...]) -> Mapping[str, Sequence[EvictionView]]:
    """The evictions of each pod, by its uid, because a drain asks for hundreds at once."""
    by_pod = defaultdict[str, list[EvictionView]](list)
    for one in seen:
        by_pod[one.pod].append(one)
    return dict(by_pod)


def signal_of_node(snapshot: Snapshot, node: NodeView | None, pod: PodView) -> Signal | None:
    """Why the pod has to leave this node; None if it may stay."""
    evictions = asked_for(snapshot, pod)
    if _unmarked(snapshot, node) and not (pod.conditions or pod.devices or evictions):
        return None
    in_force = table_of(snapshot)
    of_node = [one for one in _of_node(snapshot, in_force, node, pod) if one.row.reaction in _LEAVE]
    of_pod = (*_of_pod(snapshot, in_force, pod), *_requested(in_force, pod, evictions))
    shown = of_node + [one for one in of_pod if one.row.reaction in _LEAVE]
    if not shown:
        return None
    must = [one for one in shown if one.row.reaction is not Reaction.VACATE_IF_ROOM]
    faults = [one for one in shown if one.row.reaction is Reaction.FAULT]
    deadlines = [at for one in must if (at := _deadline(snapshot, one))]
    return Signal(
        pod=pod.name,
        cause=(faults or must or shown)[0].words,
        node=pod.node if of_node else "",
        deadline=min((at for at in deadlines if at > snapshot.now), default=min(deadlines, default=None)),
        if_room=not must,
        fault=bool(faults),
    )


def avoided(snapshot: Snapshot, node: NodeView | None, pod: PodView) -> Signal | None:
    """Why no new member should train on this node, while one that trains there stays; None if it may."""
    if _unmarked(snapshot, node):
        return None
    shown = (one for one in _of_node(snapshot, table_of(snapshot), node, pod) if one.row.reaction is Reaction.AVOID)
    first = next(shown, None)
    return Signal(pod.name, first.words, pod.node, if_room=True) if first else None


def saves_wanted(snapshot: Snapshot, pods: Iterable[PodView]) -> dict[str, str]:
    """Why a run with these pods saves and trains on: the words, by node or pod, and row; or by the job's annotation."""
    in_force, nodes, found = table_of(snapshot), {node.name: node for node in snapshot.nodes}, dict[str, str]()
    if snapshot.save:
        found[users_save(snapshot.save)] = "a user asks for it"
    for pod in pods:
        node = nodes.get(pod.node)
        if not _unmarked(snapshot, node):
            of_node = _of_node(snapshot, in_force, node, pod)
            found |= {f"{pod.node} {one.row.name}": one.words for one in _saves(of_node)}
        of_pod = (*_of_pod(snapshot, in_force, pod), *_requested(in_force, pod, asked_for(snapshot, pod)))
        found |= {f"{pod.name} {one.row.name}": one.words for one in _saves(of_pod)}
    return found


def users_save(value: str) -> str:
    """How status shows the request that is this value of the annotation perdure.dev/save."""
    return f"{default_signals.SAVE_ANNOTATION} {value[:_KEPT]}"


def _saves(shown: Iterable[_Shown]) -> Iterator[_Shown]:
    return (one for one in shown if one.row.reaction is Reaction.CHECKPOINT_NOW)


def signals_of_nodes(snapshot: Snapshot, pods: Iterable[PodView]) -> list[Signal]:
    """One signal for each of these pods that has to leave its node, in the order of the nodes' names."""
    nodes = {node.name: node for node in snapshot.nodes}
    here = sorted(pods, key=lambda pod: (pod.node, pod.name))
    found = [signal_of_node(snapshot, nodes.get(pod.node), pod) for pod in here]
    return [signal for signal in found if signal]


def deadlines_ahead(snapshot: Snapshot, pods: Iterable[PodView]) -> list[datetime]:
    """When these pods go away, without deadlines that have passed.

    A pod that outlives its deadline may live as long as any other: the announcement is stale, or a clock is wrong.
    """
    deadlines = (signal.deadline for signal in signals_of_nodes(snapshot, pods))
    return [at for at in deadlines if at and at > snapshot.now]


def signals_of_deletions(snapshot: Snapshot, pods: Iterable[PodView]) -> list[Signal]:
    """One signal for each of these pods that is being deleted, in their order.

    It has only its grace to save. Most often its node is being drained: the cause then names the node.
    """
    nodes = {node.name: node for node in snapshot.nodes}
    found = [_of_deletion(snapshot, nodes.get(pod.node), pod) for pod in pods]
    return [signal for signal in found if signal]


def _of_deletion(snapshot: Snapshot, node: NodeView | None, pod: PodView) -> Signal | None:
    if not pod.deleting:
        return None
    drained = signal_of_node(snapshot, node, pod)
    place = drained.cause if drained else f"node {pod.node}" if pod.node else ""
    cause = place if pod.name in place else f"{pod.name} ({place})" if place else pod.name
    return Signal(pod.name, cause, urgent=True, deadline=pod.deletion_deadline)


def asked_for(snapshot: Snapshot, pod: PodView) -> list[EvictionView]:
    """The Evictions of this pod that are still wanted, and in which it is, or was, the operator's turn to respond.

    They count after that turn, too: the job's budget refuses the eviction that follows for as long as the pod trains.
    """
    mine = _evictions(snapshot.evictions).get(pod.uid, ()) if snapshot.evictions else ()
    return [one for one in mine if one.state in _ASKED and not one.over and not one.withdrawn]


def leave_when_evicted(snapshot: Snapshot) -> bool:
    """Whether the job's members leave when an Eviction asks for it."""
    row = table_of(snapshot).find(SignalSource.EVICTION)
    return row is not None and row.reaction in _LEAVE


def rows_shown(in_force: SignalTable, node: NodeView) -> list[tuple[SignalRow, str]]:
    """Every row that the node's state matches, for a pod without tolerations, with the cause in words for people."""
    silent = in_force.find(SignalSource.SILENCE) if node.exists and not node.ready else None
    shown = [(one.row, one.words) for one in _shown(in_force, node, None)]
    return shown + ([(silent, f"node {node.name} is not Ready")] if silent else [])


def rows_shown_by_pod(in_force: SignalTable, pod: PodView) -> list[tuple[SignalRow, str]]:
    """Every row that the pod's own state matches, with the cause in words for people."""
    return [(one.row, one.words) for one in _shown_by_pod(in_force, pod)]


def tolerates(pod: PodView, taint: Taint) -> bool:
    """Whether the pod may be put under the taint; a toleration for some seconds counts, one for none does not."""
    found = (one for one in pod.tolerations if _matches(one, taint))
    return any(one.toleration_seconds is None or one.toleration_seconds > 0 for one in found)


def _unmarked(snapshot: Snapshot, node: NodeView | None) -> bool:
    """Whether no signal can be about this node: it shows no mark, and no annotation asks members to leave."""
    return (node is None or _shows_nothing(node)) and not snapshot.vacate


def _shows_nothing(node: NodeView) -> bool:
    """True for most nodes, most of the time."""
    going = node.deleting or not node.exists or node.cordoned
    return not (going or node.slows_jobs or node.taints or node.conditions or node.labels or node.annotations)


def _of_node(snapshot: Snapshot, in_force: SignalTable, node: NodeView | None, pod: PodView) -> Iterator[_Shown]:
    """What the pod's node shows, and whether a person wants the job off it."""
    if node is not None:
        yield from _shown(in_force, node, pod)
    yield from _asked_of_node(snapshot, in_force, pod)


def _of_pod(snapshot: Snapshot, in_force: SignalTable, pod: PodView) -> Iterator[_Shown]:
    """What the pod itself shows, and whether a person wants it moved."""
    yield from _asked_of_pod(snapshot, in_force, pod)
    yield from _shown_by_pod(in_force, pod)


def _shown(in_force: SignalTable, node: NodeView, pod: PodView | None) -> Iterator[_Shown]:
    """What the node shows, a deletion first; each mark yields only the first row that it matches."""
    if (not node.exists or node.deleting) and (row := in_force.find(SignalSource.NODE_DELETION)):
        yield _node_shows(row, node.name, "is being deleted" if node.exists else "was deleted")
    if node.exists:
        yield from _taints_shown(in_force, node, pod)
        yield from _marks_shown(in_force, node)
        if node.cordoned and (row := in_force.find(SignalSource.CORDON)):
            yield _node_shows(row, node.name, "is cordoned")
        if node.slows_jobs and (row := in_force.find(SignalSource.STRAGGLERS)):
            yield _node_shows(row, node.name, "holds up jobs of several namespaces")


def _taints_shown(in_force: SignalTable, node: NodeView, pod: PodView | None) -> Iterator[_Shown]:
    for taint in node.taints:
        row = in_force.find(SignalSource.TAINT, taint.key, taint.value, effect=taint.effect)
        if row is None:
            continue
        tolerated = _toleration_of(pod, taint) if pod and row.unless_tolerated else None
        stays = tolerated and (tolerated.toleration_seconds is None or taint.effect != default_signals.NO_EXECUTE)
        if not stays:
            shown = _node_shows(row, node.name, f"has the taint {taint.key}:{taint.effect}", taint.value, taint.added)
            ends = node.claim_ends if row.deadline_in_claim else None
            yield replace(shown, ends=ends, pod_has=_seconds_left(pod, tolerated) if pod and tolerated else None)


def _toleration_of(pod: PodView, taint: Taint) -> Toleration | None:
    """The toleration that counts: Kubernetes takes the first that matches the taint."""
    return next((one for one in pod.tolerations if _matches(one, taint)), None)


def _seconds_left(pod: PodView, tolerated: Toleration) -> int | None:
    """From the taint to the end of the pod's grace; None if the pod is deleted at once: its deletion then shows."""
    seconds = tolerated.toleration_seconds or 0
    return seconds + pod.grace if seconds > 0 else None


def _marks_shown(in_force: SignalTable, node: NodeView) -> Iterator[_Shown]:
    for condition in node.conditions:
        if row := in_force.find(SignalSource.CONDITION, condition.type, condition.status, reason=condition.reason):
            why = f" ({condition.reason})" if row.reasons else ""
            words = f"has the condition {condition.type}={condition.status}{why}"
            yield _node_shows(row, node.name, words, condition.status, condition.since)
    for source, marks in ((SignalSource.LABEL, node.labels), (SignalSource.ANNOTATION, node.annotations)):
        for key, value in sorted(marks.items()):
            if row := in_force.find(source, key, value):
                yield _node_shows(row, node.name, f"has the {source.value.lower()} {key}={value}", value)


def _shown_by_pod(in_force: SignalTable, pod: PodView) -> Iterator[_Shown]:
    for one in pod.conditions:
        if row := in_force.find(SignalSource.POD_CONDITION, one.type, one.status, reason=one.reason):
            why = f" ({one.reason})" if row.reasons else ""
            words = f"{pod.name} has the condition {one.type}={one.status}{why}"
            yield _pod_shows(row, pod, words, one.status, one.since)
    for device in pod.devices:
        if row := in_force.find(SignalSource.DEVICE, device.resource, device.health):
            words = f"{pod.name}: {device.resource} {device.id} is {device.health}"
            yield _pod_shows(row, pod, words, device.health)


def _requested(in_force: SignalTable, pod: PodView, evictions: Iterable[EvictionView]) -> Iterator[_Shown]:
    for eviction in evictions:
        if row := in_force.find(SignalSource.EVICTION):
            by = eviction.requesters
            others = [f"{len(by) - _REQUESTERS} others"] if len(by) > _REQUESTERS else []
            asking = f", asked for by {', '.join([*by[:_REQUESTERS], *others])}" if by else ""
            yield _pod_shows(row, pod, f"{pod.name} is to be evicted{asking}", "", eviction.started)


def _asked_of_node(snapshot: Snapshot, in_force: SignalTable, pod: PodView) -> Iterator[_Shown]:
    """A person wants the job off this node."""
    row = _by_hand(snapshot, in_force)
    if row and pod.node in vacate_request.places(snapshot.vacate):
        yield _Shown(row, f"the job's annotation {default_signals.VACATE_ANNOTATION} names node {pod.node}")


def _asked_of_pod(snapshot: Snapshot, in_force: SignalTable, pod: PodView) -> Iterator[_Shown]:
    """A person wants this pod moved, or all pods that existed when the person asked."""
    row, everybody = _by_hand(snapshot, in_force), snapshot.status.vacate
    if row and pod.name in vacate_request.places(snapshot.vacate):
        yield _Shown(row, f"the job's annotation {default_signals.VACATE_ANNOTATION} names {pod.name}")
    elif (
        row
        and everybody
        and vacate_request.moves_all(snapshot.vacate)
        and names.member_number(pod.name) < everybody.below
    ):
        yield _Shown(row, f"the job has the annotation {default_signals.VACATE_ANNOTATION}")


def _by_hand(snapshot: Snapshot, in_force: SignalTable) -> SignalRow | None:
    return in_force.find(SignalSource.JOB) if snapshot.vacate and not snapshot.deleting else None


def _pod_shows(row: SignalRow, pod: PodView, words: str, value: str, since: datetime | None = None) -> _Shown:
    said = row.says.replace("{pod}", pod.name).replace("{node}", pod.node)
    return _Shown(row, said or words, value, since)


def _node_shows(row: SignalRow, node: str, words: str, value: str = "", since: datetime | None = None) -> _Shown:
    said = row.says.replace("{node}", node) if row.says else f"node {node} {words}"
    return _Shown(row, said, value, since)


def _deadline(snapshot: Snapshot, shown: _Shown) -> datetime | None:
    """When the node goes away; counted from the first sight of the mark if its beginning is not known."""
    if shown.row.deadline_in_value:
        return _believed(_time(shown.value))
    if shown.row.deadline_in_claim:
        return _believed(shown.ends)
    seconds = [one for one in (shown.row.deadline_seconds, shown.pod_has) if one is not None]
    if not seconds:
        return None
    intent = snapshot.status.current.intent if snapshot.status.current else None
    seen, shown_at = (intent.deadline_seen if intent else None) or snapshot.now, _believed(shown.since)
    # Another machine's clock wrote it. It is wrong if it lies ahead, or had passed when it was first seen.
    began = shown_at if shown_at and shown_at <= snapshot.now and later(shown_at, min(seconds)) > seen else seen
    return later(began, min(seconds))


def _believed(shown_at: datetime | None) -> datetime | None:
    return shown_at if shown_at and _credible(shown_at) else None


def _credible(moment: datetime) -> bool:
    """Whether a node can go away then: some write "never" as a year that no arithmetic can handle."""
    return _CREDIBLE_YEARS[0] <= moment.year <= _CREDIBLE_YEARS[1]


def _time(text: str) -> datetime | None:
    """Seconds since 1970, or RFC 3339; None for anything else."""
    try:
        if text.isdigit():
            return datetime.fromtimestamp(int(text), UTC)
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else None
    except (ValueError, OverflowError, OSError):
        return None


def _matches(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value
