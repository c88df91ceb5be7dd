"""What a ResourceQuota's refusal says about the room in it. Pure.

The API server names what was requested, what is used and what is limited, by the resources that are short.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_REFUSAL: Final = re.compile(r"exceeded quota: .*?\bused: (?P<used>\S+?), limited: (?P<limited>\S+)")
_QUANTITY: Final = re.compile(
    r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?:[eE](?P<exponent>[+-]?\d{1,3})|(?P<suffix>[numkMGTPE]i?)?)"
)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}


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
    number, suffix = Decimal(found["number"]), found["suffix"] or ""
    if suffix in _BINARY:
        return number * _BINARY[suffix]
    if suffix not in _DECIMAL:
        return None
    return number.scaleb(_DECIMAL[suffix] + int(found["exponent"] or 0))
