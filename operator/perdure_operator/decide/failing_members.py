"""Whether new members fail on their own, so that the run had better train on without them. Questions only.

A run that stopped would need the same members. What they lack may be room that its end makes: the scheduler names the
resources, and a ResourceQuota's refusal names what was requested, what is used and what is limited.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from typing import Final

from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import Disruption
from perdure_operator.decide.draft import Draft, Waiting
from perdure_operator.decide.facts import CAN_WAIT, leavers, own

_CANNOT_START: Final = frozenset(
    {
        Reason.POD_REFUSED,
        Reason.TEMPLATE_INVALID,
        Reason.CHECKING_TEMPLATE,
        Reason.REPLACING_MEMBERS,
        Reason.IMAGE_PULL_FAILED,
        Reason.AGENT_MISSING,
        Reason.CONTAINER_NOT_CREATED,
        Reason.CONTAINER_ENDED,
        Reason.EXIT_SAVE,
        Reason.DELETING_MEMBERS,
        Reason.MEMBER_STUCK,
    }
)
"""What keeps new members from their ranks, and would keep them from the next run as well if all members left. Room is
another matter: members that leave make some."""
_NODE_HIDES: Final = frozenset({Reason.NODE_UNREACHABLE, Reason.MASS_OUTAGE})

_LACKS: Final = ("Insufficient ", "Too many pods", "free ports", "anti-affinity", "topology spread", "claim", "volume")
"""The scheduler's words for resources that members free when they leave."""

_REFUSAL: Final = re.compile(r"exceeded quota: .*?\bused: (?P<used>\S+?), limited: (?P<limited>\S+)")
_QUANTITY: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)([numkMGTPE]?|[KMGTPE]i)")
"""A number and a suffix, as in https://pkg.go.dev/k8s.io/apimachinery/pkg/api/resource#Quantity."""
_FACTORS: Final = {
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("n", "u", "m", "", "k", *"MGTPE"), start=-3)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}


def spares_the_run(draft: Draft) -> bool:
    """Whether the run trains on while new members fail on their own: it is known to be the run that trains."""
    upcoming = draft.status.next
    return new_members_fail(draft) and not (_resizes(draft) and upcoming and upcoming.attempts)


def new_members_fail(draft: Draft) -> bool:
    """Whether new members of this move fail on their own, and no member is taken away at a known time.

    If the run stopped, it would need the members that fail, are refused, or have no pod yet. For another size no member
    has to leave: then the run stops only if its end makes the room that new members lack.
    """
    intent, upcoming = draft.intent, draft.status.next
    series = upcoming.replacements if upcoming else None
    if intent is None or intent.disruption not in CAN_WAIT or intent.deadline_seen:
        return False
    if _resizes(draft) and intent.ready_by is None:
        return False  # it grows
    if series is not None and series.nodes:
        return True
    held = draft.standbys_wait or draft.waiting
    if held is not None and held.reason is Reason.QUOTA_EXCEEDED:
        return not makes_room(held.message)
    if _resizes(draft):
        unplaced = held.message if held and held.reason is Reason.UNSCHEDULABLE else ""
        return not any(word in unplaced for word in _LACKS)
    unmade = set(draft.next_members) - set(own(draft.snapshot))
    return bool(unmade) or (held is not None and (held.reason in _CANNOT_START or _a_leaver_is_hidden(draft, held)))


def _a_leaver_is_hidden(draft: Draft, held: Waiting) -> bool:
    """Whether the move waits for a deleted leaver whose node is not Ready, as the next run would if all left."""
    dark = {one.node for one in draft.status.unready}
    return held.reason in _NODE_HIDES and any(pod.deleting and pod.node in dark for pod in leavers(draft))


def _resizes(draft: Draft) -> bool:
    return draft.intent is not None and draft.intent.disruption is Disruption.SIZE_CHANGE


def makes_room(message: str) -> bool:
    """Whether as many new members are admitted as members leave: no more is used than the quota allows.

    False if the message does not say so in the API server's words.
    """
    found = _REFUSAL.search(message)
    used, limited = (_amounts(found[name]) for name in ("used", "limited")) if found else ({}, {})
    return bool(limited) and all(name in used and used[name] <= limit for name, limit in limited.items())


def _amounts(text: str) -> dict[str, Decimal]:
    """`pods=2,requests.memory=1Gi`; {} if any of it is no quantity."""
    amounts = {}
    for entry in text.split(","):
        name, _, quantity = entry.partition("=")
        amount = amount_of(quantity)
        if amount is None:
            return {}
        amounts[name] = amount
    return amounts


@lru_cache(maxsize=4096)
def amount_of(quantity: str) -> Decimal | None:
    """A Kubernetes quantity as a number; None if it is none."""
    found = _QUANTITY.fullmatch(quantity)
    if found is None:
        return None
    number, suffix = found.groups()
    return Decimal(number) * _FACTORS[suffix]
