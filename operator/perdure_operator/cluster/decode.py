"""What the API server sends as values that cannot hurt: an object its owner has made absurd costs only itself.

Where a schema lets unknown fields through, Kubernetes stores 10,000 nested levels; Python's parser, comparisons and
copies give up at some hundred, and one such object would end the operator for everybody. Nothing that the operator
reads is nested deeper than `LEVELS`, so what lies below is left out, and said. An object without a name or with a list
where a map belongs is left out or mended in the same way. Nothing is raised here but ValueError.
Called by `kube` for answers and by `loop.guard` for kopf's.
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
"""A pod has 15; unknown fields of a job's template go no deeper in any schema of Kubernetes."""

LEFT_OUT: Final = "perdure.dev/left-out"
"""Key beside metadata and spec: paths of what was left out. The API server stores none can be forged."""

_PARSED_LEVELS: Final = LEVELS + 50
"""Levels of a whole answer that are parsed: more than of an object, so that each object's own limit is what is said."""

_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]')
_MAPS: Final = ("metadata", "spec", "status")
_NESTED: Final = frozenset((dict, list))

logger = logging.getLogger(__name__)


def document(text: str | bytes) -> Any:
    """The JSON value, nested no deeper than can be parsed; ValueError where it is none."""
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(_shallow(text if isinstance(text, str) else text.decode()))


def known_part(raw: Any, kind: str = "") -> Json | None:
    """The object without what cannot be read, changed in place; None for what has no name. `kind` is for the log."""
    if not isinstance(raw, dict) or not isinstance(raw.get("metadata"), dict) or not _named(raw["metadata"]):
        _say(f"{kind or 'an object'}: the API server sent one without a name or a uid: it is ignored")
        return None
    raw["metadata"].pop("managedFields", None)  # half of an object's size, and nobody here reads it
    ignored = [*_mend(raw), *_cut(raw)]
    if ignored:
        raw[LEFT_OUT] = ignored
        metadata = raw["metadata"]
        where = "/".join(part for part in (str(metadata.get("namespace") or ""), metadata["name"]) if part)
        _say(
            f"{str(raw.get('kind') or kind).lower()} {where}: ignoring {', '.join(ignored)}: remove it from the object"
        )
    return raw


def known_items(page: Any, kind: str = "") -> list[Json]:
    """The objects of one page of a LIST."""
    items = page.get("items") if isinstance(page, dict) else None
    known = (known_part(one, kind) for one in (items if isinstance(items, list) else []))
    return [one for one in known if one is not None]


def left_out(raw: Json) -> tuple[str, ...]:
    """Paths of what the object had and `known_part` left out."""
    return tuple(raw.get(LEFT_OUT, ()))


def _shallow(text: str) -> str:
    """With null for everything below the limit. It counts brackets: only a parser without a stack gets that far."""
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
    """Put the empty value where the wrong type is; kopf and `parse` rely on these types."""
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
    """Null and absent are the same thing in Kubernetes: nobody has to be told."""
    told = parent[name] is not None
    if value is None:
        del parent[name]
    else:
        parent[name] = value
    if told:
        yield f"{path} (not of its type)"


def _strings(values: Any) -> bool:
    return isinstance(values, dict) and all(isinstance(value, str) for value in values.values())


def _cut(raw: Json) -> list[str]:
    """Leave out what is nested too deep: the usual answer, nothing, has to be quick."""
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
    """Put null where the limit is crossed, and return the first such path, or what of it says enough."""
    level: list[tuple[tuple[str, ...], Any]] = [((name,), raw[name])]
    for _ in range(LEVELS - 1):
        level = [((*path, str(key)), child) for path, parent in level for key, child in _nested(parent)]
    crossing = [(path, parent, key) for path, parent in level for key, _ in _nested(parent)]
    for _, parent, key in crossing:
        parent[key] = None
    return f"{'.'.join(crossing[0][0][:6])}... (nested deeper than {LEVELS} levels)"


def _nested(parent: Any) -> list[tuple[Any, Any]]:
    """Maps and lists in a map or a list, with their keys."""
    entries = parent.items() if isinstance(parent, dict) else enumerate(parent)
    return [(key, child) for key, child in entries if type(child) in _NESTED]


@lru_cache(maxsize=1000)
def _say(message: str) -> None:
    """Once: a watch and each resync bring the same object again and again."""
    logger.warning("%s", message)
