"""Checks what admission made of a member's pod, as its dry run shows it. Pure.

Webhooks and policies may add containers, and move and rename ours, which is found by its mount. Everything that the
agent needs has to stay. Called by `writes`.
"""

from __future__ import annotations

from collections.abc import Iterator

from perdure import wire
from perdure_operator.api import names
from perdure_operator.cluster.protocol import Json
from perdure_operator.cluster.read.containers import trainer as trainer_of

AGENT = ["perdure", "run", "--"]


def missing_parts(admitted: Json) -> str:
    """What this pod lacks to be a member, in words; "" for nothing."""
    lacks = ", ".join(_lacks(admitted.get("spec") or {}))
    return f"admission (a webhook or a policy) leaves a member without {lacks}: exclude the job's pods" if lacks else ""


def lost_token(admitted: Json) -> str:
    """What this pod lacks to send reports, as text; "" if nothing. Members train without reports."""
    if names.REPORT_VOLUME in _mounted(admitted.get("spec") or {}):
        return ""
    return f"admission (a webhook or a policy) leaves a member without the volume {names.REPORT_VOLUME}"


def _mounted(spec: Json) -> set[str | None]:
    """The names of the trainer's volumes."""
    mounted = {one.get("name") for one in trainer_of(spec).get("volumeMounts") or []}
    return mounted & {one.get("name") for one in spec.get("volumes") or []}


def _lacks(spec: Json) -> Iterator[str]:
    trainer = trainer_of(spec)
    if names.ASSIGNMENT_VOLUME not in _mounted(spec):
        yield f"the volume {names.ASSIGNMENT_VOLUME}, which shows its assignment"
    words = [*(trainer.get("command") or []), *(trainer.get("args") or [])]
    if not any(words[at : at + len(AGENT)] == AGENT for at in range(len(words))):
        yield f"its agent: the command does not have {' '.join(AGENT)!r} any more"
    if trainer.get("terminationMessagePath") != wire.TERMINATION_LOG:
        yield f"terminationMessagePath {wire.TERMINATION_LOG}, where it tells how it has ended"
