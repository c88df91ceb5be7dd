"""Strips API objects of what could not be parsed safely, so that a malformed object harms no other.

Kubernetes stores up to 10,000 nested levels in unknown fields. Python's parser, comparisons and copies fail at some
hundred, so one such object would end the operator. Nothing that the operator reads is nested deeper than `LEVELS`;
deeper values are removed and logged. Objects without a name are dropped, and fields of a wrong type are emptied.
Raises only ValueError. Called by `kube` for answers and by `loop.guard` for kopf's.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from perdure_operator.cluster.protocol import Json

LEVELS: Final = 100
"""A pod has 15 levels; no Kubernetes schema nests deeper than this."""

LEFT_OUT: Final = "perdure.dev/left-out"
"""Key beside metadata and spec: paths of what was removed. The API server stores no such key, so none is forged."""

_PARSED_LEVELS: Final = LEVELS + 50
"""Levels of a whole answer that are parsed: more than of an object, so that each object's own limit is logged."""

_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]')
_MAPS: Final = ("metadata", "spec", "status")
_NESTED: Final = frozenset((dict, list))

logger = logging.getLogger(__name__)


def document(text: str | bytes) -> Any:
    """The JSON value, cut where it is nested too deep to parse; raises ValueError if it is not JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(_shallow(text if isinstance(text, str) else text.decode()))


def known_part(raw: Any, kind: str = "") -> Json | None:
    """The object without unreadable parts, changed in place; None if it has no name or uid. `kind` is for the log."""
    if not isinstance(raw, dict) or not isinstance(raw.get("metadata"), dict) or not _named(raw["metadata"]):
        _warn_once(f"{kind or 'an object'}: the API server sent one without a name or a uid: it is ignored")
        return None
    raw["metadata"].pop("managedFields", None)  # half of an object's size, and unused
    ignored = [*_mend(raw), *_cut(raw)]
    if ignored:
        raw[LEFT_OUT] = ignored
        metadata = raw["metadata"]
        where = "/".join(part for part in (str(metadata.get("namespace") or ""), metadata["name"]) if part)
        _warn_once(
            f"{str(raw.get('kind') or kind).lower()} {where}: ignoring {', '.join(ignored)}: remove it from the object"
        )
    return raw


def known_items(page: Any, kind: str = "") -> list[Json]:
    """The readable objects of one page of a LIST."""
    items = page.get("items") if isinstance(page, dict) else None
    known = (known_part(one, kind) for one in (items if isinstance(items, list) else []))
    return [one for one in known if one is not None]


def left_out(raw: Json) -> tuple[str, ...]:
    """Paths that `known_part` removed from the object."""
    return tuple(raw.get(LEFT_OUT, ()))


def _shallow(text: str) -> str:
    """The text with null for everything below the limit. It counts brackets, which needs no stack."""
    kept, depth, start = [], 0, 0
    for found in _TOKEN.finditer(text):
        bracket, at = found.group(), found.start()
        if bracket in "[{":
            depth += 1
            if depth == _PARSED_LEVELS + 1:
                kept += [text[start:at], "null"]
                start = len(text)
        elif bracket in "]}":
            if depth == _PARSED_LEVELS + 1:
                start = at + 1
            depth -= 1
    return "".join([*kept, text[start:]])


def _named(metadata: Json) -> bool:
    return all(isinstance(metadata.get(field), str) and metadata[field] for field in ("name", "uid"))


def _mend(raw: Json) -> Iterator[str]:
    """Empty fields of a wrong type and yield their paths. kopf and `parse` rely on these types."""
    for name in _MAPS:
        if name in raw and not isinstance(raw[name], dict):
            yield from _emptied(raw, name, name, {})
    metadata = raw["metadata"]
    for name in ("labels", "annotations"):
        values = metadata.get(name)
        if name in metadata and not _strings(values):
            known = values.items() if isinstance(values, dict) else ()
            yield from _emptied(metadata, name, f"metadata.{name}", {k: v for k, v in known if isinstance(v, str)})
    for name, kind in (("ownerReferences", dict), ("finalizers", str)):
        values = metadata.get(name)
        if name in metadata and not (isinstance(values, list) and all(isinstance(value, kind) for value in values)):
            yield from _emptied(metadata, name, f"metadata.{name}", [])
    for name in ("namespace", "resourceVersion", "creationTimestamp", "deletionTimestamp"):
        if name in metadata and not isinstance(metadata[name], str):
            yield from _emptied(metadata, name, f"metadata.{name}", None)


def _emptied(parent: Json, name: str, path: str, value: Any) -> Iterator[str]:
    """Set the field to `value`, or remove it for None. Null means absent in Kubernetes, so it is not reported."""
    wrong = parent[name] is not None
    if value is None:
        del parent[name]
    else:
        parent[name] = value
    if wrong:
        yield f"{path} (not of its type)"


def _strings(values: Any) -> bool:
    return isinstance(values, dict) and all(isinstance(value, str) for value in values.values())


def _cut(raw: Json) -> list[str]:
    """Remove what is nested too deep, and return the paths. The usual case, nothing, has to be quick."""
    return [_trimmed(raw, name) for name in list(raw) if _too_deep(raw[name])] if _too_deep(raw) else []


def _too_deep(value: Any) -> bool:
    level = [value] if type(value) in _NESTED else []
    for _ in range(LEVELS):
        if not level:
            return False
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) in _NESTED
        ]
    return bool(level)


def _trimmed(raw: Json, name: str) -> str:
    """Put null where the limit is crossed, and return the beginning of the first such path."""
    level: list[tuple[tuple[str, ...], Any]] = [((name,), raw[name])]
    for _ in range(LEVELS - 1):
        level = [((*path, str(key)), child) for path, parent in level for key, child in _nested(parent)]
    crossing = [(path, parent, key) for path, parent in level for key, _ in _nested(parent)]
    for _, parent, key in crossing:
        parent[key] = None
    return f"{'.'.join(crossing[0][0][:6])}... (nested deeper than {LEVELS} levels)"


def _nested(parent: Any) -> list[tuple[Any, Any]]:
    """The maps and lists in a map or a list, with their keys."""
    entries = parent.items() if isinstance(parent, dict) else enumerate(parent)
    return [(key, child) for key, child in entries if type(child) in _NESTED]


@lru_cache(maxsize=1000)
def _warn_once(message: str) -> None:
    """Log a message once: a watch and each resync bring the same object again and again."""
    logger.warning("%s", message)
