"""What a ResourceQuota's refusal says about the room in it. Pure.

The API server names what was requested, what is used and what is limited, by the resources that are short.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_REFUSAL: Final = re.compile(r"exceeded quota: .*?\bused: (?P<used>\S+?), limited: (?P<limited>\S+)")
_QUANTITY: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)([numkMGTPE]?|[KMGTPE]i)")
"""A number and a suffix, as in https://pkg.go.dev/k8s.io/apimachinery/pkg/api/resource#Quantity."""
_FACTORS: Final = {
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("n", "u", "m", "", "k", *"MGTPE"), start=-3)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}


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
    found = _QUANTITY.fullmatch(quantity)
    if found is None:
        return None
    number, suffix = found.groups()
    return Decimal(number) * _FACTORS[suffix]
