"""What a node or a pod can announce, as rows of a table: what it looks like, who sets it, what Perdure does about it.

The operator ships rows (`api.default_signals`); its configuration may change them, and add others. A value here is
checked when it is made, because a person writes it. Nothing here may depend on a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, Self

from pydantic import Field, model_validator

from perdure_operator.api.model import Model

_NAME: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


class Source(StrEnum):
    """Where an announcement is seen."""

    CORDON = "Cordon"  # spec.unschedulable
    NODE_DELETION = "NodeDeletion"  # the node object is going, or gone
    SILENCE = "Silence"  # the node's condition Ready is not True
    EVICTION = "Eviction"  # the operator is asked, by an object, to let a pod go
    TAINT = "Taint"
    CONDITION = "NodeCondition"
    LABEL = "Label"
    ANNOTATION = "Annotation"
    POD_CONDITION = "PodCondition"
    DEVICE = "DeviceHealth"  # of a device that a container of the pod has
    JOB = "JobAnnotation"  # perdure.dev/vacate of the job itself


class Reaction(StrEnum):
    """What Perdure does about an announcement."""

    VACATE = "Vacate"
    VACATE_BY_DEADLINE = "VacateByDeadline"
    VACATE_IF_ROOM = "VacateIfRoom"
    FAULT = "Fault"
    CHECKPOINT_NOW = "CheckpointNow"
    AVOID = "Avoid"
    IGNORE = "Ignore"
    GIVE_UP = "GiveUp"


REACTIONS: Final = {
    Reaction.VACATE: "members leave the node: replacements start elsewhere while the run trains on, then it goes over "
    "to them; no new member trains there",
    Reaction.VACATE_BY_DEADLINE: "as Vacate, and at the deadline the node is gone: the wait for replacements and the "
    "time to save end before it",
    Reaction.VACATE_IF_ROOM: "as Vacate, but nobody has to leave: the run trains on where it is until replacements are "
    "Ready elsewhere, without a time limit",
    Reaction.FAULT: "what members there have computed is suspect: all members stop without a save, and the job goes on "
    "elsewhere from its last commit; the steps since then are lost",
    Reaction.CHECKPOINT_NOW: "nobody leaves: the run saves at once, and trains on",
    Reaction.AVOID: "members that train there stay, and nobody new trains there, as long as nobody has to: who makes a "
    "run larger, a spare, whoever takes the place of a member that need not leave",
    Reaction.IGNORE: "nothing",
    Reaction.GIVE_UP: "nobody there can be asked: members are given up after `failure.lostNodeSeconds`, and the job "
    "goes on without them",
}
"""In words, for people."""

NO_DEADLINE: Final[Mapping[str, Any]] = {"deadlineSeconds": None, "deadlineInValue": False, "deadlineInClaim": False}

OF_PODS: Final = frozenset({Source.POD_CONDITION, Source.DEVICE})
"""Seen at a pod of the job itself; all others at its node."""
BAD: Final = {Source.CONDITION: "True", Source.POD_CONDITION: "True", Source.DEVICE: "Unhealthy"}
"""The value of a row that names none; of the other sources it is any."""

_CONDITIONS: Final = frozenset({Source.CONDITION, Source.POD_CONDITION})
_KEYED: Final = frozenset({Source.TAINT, Source.LABEL, Source.ANNOTATION}) | _CONDITIONS | {Source.DEVICE}
WELL: Final[Mapping[Source, frozenset[str]]] = {
    Source.CONDITION: frozenset({"Ready"}),
    Source.POD_CONDITION: frozenset(
        {"Ready", "ContainersReady", "Initialized", "PodScheduled", "PodReadyToStartContainers"}
    ),
}
"""Conditions that are True of whatever is well: no `*` stands for them."""
_EFFECTS: Final = frozenset({"", "NoSchedule", "PreferNoSchedule", "NoExecute"})
_STATUSES: Final = frozenset({None, "True", "False", "Unknown"})
_BUILT_IN: Final = frozenset({Source.CORDON, Source.NODE_DELETION, Source.SILENCE, Source.EVICTION, Source.JOB})
"""One row each, the shipped one: there is nothing to match."""


class SignalRow(Model):
    """One announcement."""

    name: str = Field(pattern=_NAME)
    """By which it is changed, and by which a job's spec.disruption.signals calls it."""
    source: Source
    """Where it is seen."""
    key: str = Field(default="", max_length=317)
    """Of the taint, label or annotation, or the condition's type, or the device's resource; `*` stands for any
    characters, but never for a condition that is True of whatever is well, such as Ready."""
    value: str | None = None
    """Of the taint, label or annotation, or the condition's status, or the device's health; absent: any, of a condition
    True, of a device Unhealthy."""
    reasons: tuple[str, ...] = ()
    """Of the condition, one of these words; absent: any."""
    effect: str = ""
    """Of the taint; absent: any."""
    unless_tolerated: bool = False
    """True: it does not count for pods that tolerate the taint."""
    reaction: Reaction
    """What is done about it."""
    deadline_seconds: int | None = Field(default=None, ge=1, le=604800)
    """For VacateByDeadline: so long after the taint was added, or the condition has changed, the node is gone; counted
    from the first sight where that is not told."""
    deadline_in_value: bool = False
    """For VacateByDeadline: the value of the label or annotation is the deadline, in seconds since 1970 or as an RFC
    3339 time."""
    deadline_in_claim: bool = False
    """For VacateByDeadline, of a taint: the deadline is that of the NodeClaim to which Karpenter's node belongs. Where
    the NodePool has no terminationGracePeriod, or the operator may not look (the chart's value nodeClaims), there is
    none, and it is as Vacate."""
    enabled: bool = True
    """False: it is in the table for whoever wants it, and does nothing."""
    says: str = Field(default="", max_length=200)
    """The cause in words, with {node} for the node's name and {pod} for the pod's, of sources that are seen at one;
    absent: what was seen."""
    set_by: str = ""
    """Who sets it, for the documentation."""
    warning: str = ""
    """How long before the node is gone, for the documentation."""
    url: str = ""
    """Where it is described."""

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        """The message of each mistake says what to do."""
        by_deadline = self.reaction is Reaction.VACATE_BY_DEADLINE
        deadlines = (self.deadline_seconds is not None) + self.deadline_in_value + self.deadline_in_claim
        for wrong, words in (
            (self.source in _KEYED and not self.key, f"key is missing: say which {self.source} it is"),
            (self.source not in _KEYED and self.key, f"key is not for the source {self.source}: remove it"),
            (self.effect and self.source is not Source.TAINT, "effect is for the source Taint: remove it"),
            (
                self.effect not in _EFFECTS,
                f"effect {self.effect!r} is none that a taint can have: say NoSchedule, PreferNoSchedule or NoExecute, "
                "or remove it for all of them",
            ),
            (
                self.source in _CONDITIONS and self.value not in _STATUSES,
                f'value {self.value!r} is no status of a condition: say "True", "False" or "Unknown"',
            ),
            (
                self.source is Source.CONDITION and self._says_well,
                f'condition {self.key} is True on every node that is well: set value "False", or leave it to '
                "node-silence",
            ),
            (
                self.source is Source.POD_CONDITION and self._says_well,
                f'condition {self.key} is True of every pod that is well: set value "False"',
            ),
            (
                self.reasons and self.source not in _CONDITIONS,
                "reasons are for the sources NodeCondition and PodCondition: remove them",
            ),
            ("" in self.reasons, "reasons has an empty word: remove it, or give the condition's reason"),
            (self.unless_tolerated and self.source is not Source.TAINT, "unlessTolerated is for Taint: remove it"),
            (
                (self.reaction is Reaction.GIVE_UP) != (self.source is Source.SILENCE),
                "reaction GiveUp is for the source Silence, and is its only one: a job's failure.lostNodeSeconds says "
                "how long it is waited for",
            ),
            (
                self.reaction is Reaction.AVOID and self.source in OF_PODS,
                "reaction Avoid is for what a node shows: a pod that shows something is there already",
            ),
            (not self.enabled and self.source is Source.SILENCE, "enabled cannot be false for the source Silence"),
            (
                by_deadline and deadlines != 1,
                "reaction VacateByDeadline needs a deadline: set one of deadlineSeconds, deadlineInValue and "
                "deadlineInClaim",
            ),
            (
                not by_deadline and deadlines > 0,
                "deadlineSeconds, deadlineInValue and deadlineInClaim are for the reaction VacateByDeadline: "
                "remove them",
            ),
            (
                self.deadline_in_value and self.source not in (Source.LABEL, Source.ANNOTATION),
                "deadlineInValue is for the sources Label and Annotation: use deadlineSeconds",
            ),
            (
                self.deadline_in_claim and self.source is not Source.TAINT,
                "deadlineInClaim is for the source Taint: use deadlineSeconds",
            ),
            (
                self.deadline_in_value and self.value is not None,
                "value is the deadline where deadlineInValue is set: remove one of them",
            ),
        ):
            if wrong:
                raise ValueError(words)
        return self

    @property
    def _says_well(self) -> bool:
        return self.value in (None, "True") and self.key in WELL[self.source]

    @property
    def matched(self) -> str:
        """What it looks like, for people."""
        value = self.value if self.value is not None else BAD.get(self.source, "")
        text = f"{self.key}={value}" if value else self.key
        text += f" ({', '.join(self.reasons)})" if self.reasons else ""
        return f"{text}:{self.effect}" if self.effect else text


def changed(shipped: Iterable[SignalRow], given: Iterable[dict[str, Any]]) -> tuple[SignalRow, ...]:
    """Rows that a person has written, complete: one with the name of a shipped row changes what it names of that row.

    Raises ValidationError, or ValueError where two have one name or match the same, or a built-in source gets another
    row.
    """
    known, rows = {row.name: row for row in shipped}, dict[str, SignalRow]()
    for one in given:
        name = one.get("name")
        old = known.get(name) if isinstance(name, str) else None
        row = SignalRow.model_validate({**(_base(old, one) if old else {}), **one})
        if row.name in rows:
            raise ValueError(f"name {row.name} is there twice: keep one of them")
        if old is not None and old.source in _BUILT_IN and row.source is not old.source:
            raise ValueError(
                f"source of {row.name} is {old.source}: remove it, and give a row of your own another name"
            )
        if row.source in _BUILT_IN and (old is None or old.source is not row.source):
            mine = next(other.name for other in known.values() if other.source is row.source)
            raise ValueError(f"source {row.source} has one row: give it by its name, {mine}")
        if twin := next((other for other in rows.values() if _shadows(other, row)), None):
            raise ValueError(f"{row.name} matches what {twin.name} matches, which comes first: remove one of them")
        rows[row.name] = row
    return tuple(rows.values())


def _shadows(first: SignalRow, second: SignalRow) -> bool:
    """Whether the second would never count, as the first that matches does."""
    alike = (first.source, first.matched) == (second.source, second.matched)
    return alike and first.enabled and second.enabled


def _base(old: SignalRow, given: dict[str, Any]) -> dict[str, Any]:
    """What a changed row keeps: a deadline goes with the reaction that has one."""
    base = old.model_dump(by_alias=True)
    others = given.get("reaction", old.reaction) != Reaction.VACATE_BY_DEADLINE
    if others or any(given.get(name) for name in NO_DEADLINE):
        base |= NO_DEADLINE
    return base
