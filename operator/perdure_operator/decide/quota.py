"""What a ResourceQuota's refusal says about the room in it. Pure.

The API server names what was requested, what is used and what is limited, by the resources that are short.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from kubernetes.utils.quantity import parse_quantity

_REFUSAL: Final = re.compile(r"exceeded quota: .*?\bused: (?P<used>\S+?), limited: (?P<limited>\S+)")


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
        amount = _amount(quantity)
        if amount is None:
            return {}
        amounts[name] = amount
    return amounts


def _amount(quantity: str) -> Decimal | None:
    """A Kubernetes quantity as a number; None if it is none."""
    try:
        amount: Decimal = parse_quantity(quantity)
    except (ValueError, ArithmeticError):
        return None
    return amount if amount.is_finite() else None
