"""The keys as the Secret holds them: one JSON document. Pure.

No error of this module has a part of the document in it: that would be a key in the log. Called by `loop.keys`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

from perdure_operator.serving.certificate import Pair
from perdure_operator.serving.reports.rotation import Authority, Keys, Serving

VERSION: Final = 1


class UnreadableKeys(Exception):
    """The document is not one that `write_keys` has made."""


def write_keys(keys: Keys) -> str:
    """The document."""
    authorities = [
        {
            "name": one.name,
            "ends": _text(one.ends),
            "trustedSince": _text(one.trusted_since),
            "signedUntil": _text(one.signed_until),
            **_pair_fields(one.pair),
        }
        for one in keys.authorities
    ]
    document: dict[str, Any] = {"v": VERSION, "authorities": authorities}
    if (serving := keys.serving) is not None:
        document["serving"] = {
            "authority": serving.authority,
            "host": serving.host,
            "ends": _text(serving.ends),
            **_pair_fields(serving.pair),
        }
    return json.dumps(document)


def read_keys(text: str) -> Keys:
    """The keys in a document. Raises UnreadableKeys."""
    try:
        document = json.loads(text)
        if document["v"] != VERSION:
            raise UnreadableKeys(f"its version is not {VERSION}")
        authorities = tuple(_authority(one) for one in document["authorities"])
        serving = _serving(document["serving"]) if "serving" in document else None
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        raise UnreadableKeys("it is no document of the operator's keys") from None
    return Keys(authorities, serving)


def _authority(raw: Any) -> Authority:
    trusted, signed = (raw[name] and _time(raw[name]) for name in ("trustedSince", "signedUntil"))
    return Authority(_string(raw["name"]), _pair(raw), _time(raw["ends"]), trusted, signed)


def _serving(raw: Any) -> Serving:
    return Serving(_string(raw["authority"]), _string(raw["host"]), _pair(raw), _time(raw["ends"]))


def _pair(raw: Any) -> Pair:
    return Pair(_string(raw["certificate"]), _string(raw["key"]))


def _pair_fields(pair: Pair) -> dict[str, str]:
    return {"certificate": pair.certificate, "key": pair.key}


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _text(time: datetime | None) -> str | None:
    return time.isoformat() if time else None


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
