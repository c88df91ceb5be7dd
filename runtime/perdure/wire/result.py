"""A script's result, `session.result`: a small JSON object that ends up in the job's status.

The trainer checks it when it is set, the agent passes it on in the outcome, and the operator reads it from any
container, so it checks it again. Pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from perdure.wire.reading import ContractError

RESULT_BYTES: Final = 1024
"""As compact ASCII JSON. A pod's last words have 4,096 bytes in all, and the result goes into the job's status."""
_LEVELS: Final = 8
_LARGEST: Final = 2**63 - 1
"""What Kubernetes keeps as a whole number."""


def write_result(result: Any) -> str:
    """The result as compact JSON. ContractError, with the place and the remedy, if it is not a valid result."""
    if not isinstance(result, Mapping):
        raise ContractError(f"it is a {type(result).__name__}: give a mapping, such as {{'accuracy': 0.93}}")
    _check(result, "", _LEVELS)
    text = json.dumps(dict(result), separators=(",", ":"), allow_nan=False)
    if len(text) > RESULT_BYTES:
        raise ContractError(
            f"it has {len(text)} bytes as JSON, at most {RESULT_BYTES} are kept: give the few figures that matter, and "
            f"keep the rest in session.state or in a file"
        )
    return text


def read_result(value: Any) -> dict[str, Any] | None:
    """The result in an outcome or a report; None where there is none, or one that no trainer of ours has written."""
    try:
        found: dict[str, Any] | None = json.loads(write_result(value))
    except (ContractError, RecursionError):
        return None
    return found


def _check(value: Any, place: str, levels: int) -> None:
    where = f"{place or 'it'} is"
    match value:
        case None | bool() | str():
            return
        case int() if abs(value) > _LARGEST:
            raise ContractError(f"{where} a number of more than 64 bits: give it as a string")
        case float() if not math.isfinite(value):
            raise ContractError(f"{where} {value}, which JSON does not have: leave it out, or give it as a string")
        case int() | float():
            return
        case Mapping() | list() | tuple():
            if not levels:
                raise ContractError(f"{where} nested more than {_LEVELS} levels deep")
            for name, one in value.items() if isinstance(value, Mapping) else enumerate(value):
                if isinstance(value, Mapping) and type(name) is not str:
                    raise ContractError(f"a name in {place or 'it'} is {name!r}: give names as strings")
                _check(one, f"{place}[{name!r}]", levels - 1)
        case _:
            kind = type(value).__name__
            raise ContractError(f"{where} a {kind}: give numbers, strings, lists and mappings; of a tensor its .item()")
