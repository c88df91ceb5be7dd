"""Which members of the current run stay for the next one, which leave, and how many new ones join. Questions only.

A member stays in its pod if it can go on training there. Lost members neither stay nor leave. Only this file decides
which members leave when a run gets smaller and none has to: as many whole nodes as possible are emptied first. An
autoscaler can remove a node without pods, and another job may need a whole node; half a node helps neither.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from perdure_operator.api.names import member_number
from perdure_operator.api.status import Assigned, CurrentRun
from perdure_operator.decide.draft import Draft, later
from perdure_operator.decide.facts import made_from_another, own, stands_still, still_running, waited_enough
from perdure_operator.decide.signals import signals_of_nodes
from perdure_operator.decide.sizing import ends_for_size, wanted_size

BEGINNING_SECONDS: Final = 30
"""How long after its plan a run in the pods of a lost run has most likely begun.

Such a start took 7 to 22 s on the small cluster of the tests. No benchmark measures it. A run that reports `Opened`
ends the wait. One that begins later may lose its holders of uncommitted steps, and these steps are trained again.
"""


@dataclass(frozen=True)
class Succession:
    """What becomes of the current run's members in the next run."""

    stays: tuple[Assigned, ...] = ()
    """Members that go on, in the order of their ranks."""
    leaves: tuple[Assigned, ...] = ()
    """Members that live and are not in the next run."""
    joins: int = 0
    """How many new members the next run needs."""


@dataclass(frozen=True)
class Candidate:
    """A member that could stay as well."""

    name: str
    node: str
    """"" where it is not known."""
    warm: bool
    """Whether it is Ready."""
    came: tuple[bool, int]
    """Whether it has the class of members that make a run larger, and its pod's number: numbers only rise."""


def joiner_classes(draft: Draft, new: Sequence[str]) -> dict[str, str]:
    """The PriorityClass of new members that make the run larger; replacements have the template's.

    A standby that exists and has the template's class counts as a replacement, whatever it was made for.
    """
    current, elastic = draft.current, draft.snapshot.spec.elastic
    named = elastic.joiner_priority_class_name if elastic else None
    if not new or named is None or current is None or (current.intent and current.intent.leave):
        return {}
    pods, replacements = own(draft.snapshot), len(current.plan.members) - len(succession(draft).stays)
    there = sum(name in pods and pods[name].priority_class != named for name in draft.next_members)
    return dict.fromkeys(new[max(replacements - there, 0) :], named)


def only_grows(draft: Draft) -> bool:
    """Whether all new members make the current run larger, and none takes the place of another."""
    current = draft.current
    if current is None or (current.intent and current.intent.leave):
        return False
    return len(succession(draft).stays) == len(current.plan.members)


def succession(draft: Draft) -> Succession:
    """The succession as of now; no member stays if there is no run, or all were asked to leave."""
    current, wanted = draft.current, wanted_size(draft.snapshot)
    if current is None or (current.intent and current.intent.leave):
        return Succession(joins=wanted.members)
    pods, ended = own(draft.snapshot), {one.name for one in current.outcomes}
    alive = [one for one in current.plan.members if one.name in pods and one.name not in ended]
    alike = current.plan.world * wanted.members == wanted.world * len(current.plan.members)
    here = [pods[one.name] for one in alive]
    if_room = {signal.pod: signal.if_room for signal in signals_of_nodes(draft.snapshot, here)}
    unfit = {name for name in if_room if not if_room[name]}
    unfit |= {pod.name for pod in here if pod.deleting or made_from_another(draft, pod)}
    fit = [one for one in alive if alike and one.name not in unfit]
    stays = keep(draft, [one for one in fit if one.name not in if_room], wanted.members)
    if stands_still(draft) or waited_enough(draft) or ends_for_size(draft, current):
        stays += keep(draft, [one for one in fit if one.name in if_room], wanted.members - len(stays))
    names = {one.name for one in stays}
    leaves = tuple(one for one in alive if one.name not in names)
    return Succession(tuple(one for one in fit if one.name in names), leaves, wanted.members - len(stays))


def keep(draft: Draft, members: Sequence[Assigned], size: int) -> tuple[Assigned, ...]:
    """The members to keep: at most `size` of these, in the order of their ranks."""
    if len(members) <= size:
        return tuple(members)
    pods, count, holders = own(draft.snapshot), len(members) - size, _holders(draft)
    elastic = draft.snapshot.spec.elastic
    joiners = elastic.joiner_priority_class_name if elastic else None
    known = [
        Candidate(one.name, one.node, pod.ready, (pod.priority_class == joiners, member_number(one.name)))
        for one in members
        for pod in [pods[one.name]]
    ]
    new = [one for one in known if holders and one.name not in holders]
    leave = victims(new, min(count, len(new)))
    leave |= victims([one for one in known if one not in new], count - len(leave))
    return tuple(one for one in members if one.name not in leave)


def victims(candidates: Sequence[Candidate], count: int) -> frozenset[str]:
    """The names of `count` of them: whole nodes first, then members that are not warm, then those that came last."""
    emptied = set(_whole_nodes(candidates, count))
    rest = (one for one in candidates if one not in emptied)
    others = sorted(rest, key=lambda one: (not one.warm, one.came), reverse=True)
    return frozenset(one.name for one in (*emptied, *others[: max(count - len(emptied), 0)]))


def _whole_nodes(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """The members of as many nodes as `count` can empty: nodes with the fewest members, then those that came last."""
    by_node = defaultdict[str, list[Candidate]](list)
    for one in candidates:
        by_node[one.node].append(one)
    by_node.pop("", None)
    chosen: list[Candidate] = []
    last = sorted(by_node.values(), key=lambda those: max(one.came for one in those), reverse=True)
    for members in sorted(last, key=len):
        if len(chosen) + len(members) <= count:
            chosen += members
    return chosen


def state_leaves_until(draft: Draft) -> datetime | None:
    """When the next run may be planned, if every member that holds a lost run's uncommitted state is leaving; None if
    a holder stays, or there is none.

    Each leaving holder's agent commits the state before its pod ends. A run of other members would not wait for that.
    """
    current, holders = draft.current, _holders(draft)
    if current is None or not any(pod.name in holders for pod in still_running(draft)):
        return None
    stays = any(one.name in holders for one in succession(draft).stays)
    return None if stays else _begun_by(draft, current)


def _holders(draft: Draft) -> frozenset[str]:
    """The members that were in a lost run, if the run that continues in their pods may not have begun yet.

    Only they hold the steps of the lost run that are in no commit.
    """
    current = draft.current
    if current is None or draft.status.opened >= current.run or draft.now >= _begun_by(draft, current):
        return frozenset()
    plan, came = current.plan, current.plan.joins
    if came is None or all(run < plan.takes_over for run in plan.lost):
        return frozenset()
    return frozenset(member.name for member in plan.members if member.rank not in came)


def _begun_by(draft: Draft, current: CurrentRun) -> datetime:
    return later(current.plan.assigned_time or draft.now, BEGINNING_SECONDS)
