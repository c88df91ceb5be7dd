"""Signals of nodes and pods as rows of a table: how each looks, who sets it, how Perdure reacts.

The operator ships rows (`api.default_signals`); its configuration may change them and add others. Rows are validated
when they are made, because people write them. Nothing here may depend on a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, Self

from pydantic import Field, model_validator

from perdure_operator.api.model import Model

_NAME: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


class SignalSource(StrEnum):
    """Where a signal is seen."""

    CORDON = "Cordon"  # spec.unschedulable
    NODE_DELETION = "NodeDeletion"  # the node object is being deleted, or gone
    SILENCE = "Silence"  # the node's condition Ready is not True
    EVICTION = "Eviction"  # an Eviction object asks the operator to move a pod
    STRAGGLERS = "Stragglers"  # members on the node hold up jobs of three namespaces
    TAINT = "Taint"
    CONDITION = "NodeCondition"
    LABEL = "Label"
    ANNOTATION = "Annotation"
    POD_CONDITION = "PodCondition"
    DEVICE = "DeviceHealth"  # of a device of one of the pod's containers
    JOB = "JobAnnotation"  # perdure.dev/vacate of the job itself


class Reaction(StrEnum):
    """How Perdure reacts to a signal."""

    VACATE = "Vacate"
    VACATE_BY_DEADLINE = "VacateByDeadline"
    VACATE_IF_ROOM = "VacateIfRoom"
    FAULT = "Fault"
    CHECKPOINT_NOW = "CheckpointNow"
    AVOID = "Avoid"
    IGNORE = "Ignore"
    GIVE_UP = "GiveUp"


REACTIONS: Final = {
    Reaction.VACATE: "members leave the node; replacements start elsewhere while the run keeps training, then take "
    "over; no new member trains on the node",
    Reaction.VACATE_BY_DEADLINE: "as Vacate, but the node goes away at a deadline: the wait for replacements and the "
    "time to save end before it",
    Reaction.VACATE_IF_ROOM: "as Vacate, but no member has to leave: the run keeps training until replacements are "
    "Ready elsewhere, without a time limit",
    Reaction.FAULT: "what members computed on the node is suspect: all members stop without a save, and the job "
    "resumes elsewhere from its last commit; the steps since then are lost",
    Reaction.CHECKPOINT_NOW: "no member leaves; the run saves at once and keeps training",
    Reaction.AVOID: "members on the node stay; joiners, spares and replacements of members that need not leave do not "
    "train there, as long as no member has to leave",
    Reaction.IGNORE: "nothing",
    Reaction.GIVE_UP: "members on the node cannot be asked to leave: they are given up after "
    "`failure.lostNodeSeconds`, and the job continues without them",
}
"""Each reaction in words, for the documentation."""

NO_DEADLINE: Final[Mapping[str, Any]] = {"deadlineSeconds": None, "deadlineInValue": False, "deadlineInClaim": False}

OF_PODS: Final = frozenset({SignalSource.POD_CONDITION, SignalSource.DEVICE})
"""Sources seen on a pod of the job; all others are seen on its node, or on the job."""
BAD: Final = {SignalSource.CONDITION: "True", SignalSource.POD_CONDITION: "True", SignalSource.DEVICE: "Unhealthy"}
"""The default value of a row. Other sources match any value by default."""

_CONDITIONS: Final = frozenset({SignalSource.CONDITION, SignalSource.POD_CONDITION})
_KEYED: Final = (
    frozenset({SignalSource.TAINT, SignalSource.LABEL, SignalSource.ANNOTATION}) | _CONDITIONS | {SignalSource.DEVICE}
)
WELL: Final[Mapping[SignalSource, frozenset[str]]] = {
    SignalSource.CONDITION: frozenset({"Ready"}),
    SignalSource.POD_CONDITION: frozenset(
        {"Ready", "ContainersReady", "Initialized", "PodScheduled", "PodReadyToStartContainers"}
    ),
}
"""Conditions that are True on healthy nodes and pods: `*` does not match them."""
_EFFECTS: Final = frozenset({"", "NoSchedule", "PreferNoSchedule", "NoExecute"})
_STATUSES: Final = frozenset({None, "True", "False", "Unknown"})
_BUILT_IN: Final = frozenset(
    {
        SignalSource.CORDON,
        SignalSource.NODE_DELETION,
        SignalSource.SILENCE,
        SignalSource.EVICTION,
        SignalSource.STRAGGLERS,
        SignalSource.JOB,
    }
)
"""Sources with exactly one row, the shipped one: there is nothing to match."""


class SignalRow(Model):
    """One signal."""

    name: str = Field(pattern=_NAME)
    """The row's name, in the configuration and in a job's spec.disruption.signals."""
    source: SignalSource
    """Where the signal is seen."""
    key: str = Field(default="", max_length=317)
    """Key of the taint, label or annotation; type of the condition; resource of the device. `*` matches any characters,
    but never a condition that is True on healthy nodes and pods, such as Ready."""
    value: str | None = None
    """Value of the taint, label or annotation; status of the condition; health of the device. Absent: True for a
    condition, Unhealthy for a device, otherwise any."""
    reasons: tuple[str, ...] = ()
    """The condition has one of these reasons. Absent: any."""
    effect: str = ""
    """Effect of the taint. Absent: any."""
    unless_tolerated: bool = False
    """True: the signal does not count for pods that tolerate the taint."""
    reaction: Reaction
    """How the operator reacts."""
    deadline_seconds: int | None = Field(default=None, ge=1, le=604800)
    """For VacateByDeadline: the node goes away this many seconds after the taint was added or the condition changed; if
    that time is not given, after the operator saw it first."""
    deadline_in_value: bool = False
    """For VacateByDeadline: the value of the label or annotation is the deadline, in seconds since 1970 or as an RFC
    3339 time."""
    deadline_in_claim: bool = False
    """For VacateByDeadline and taints: the deadline is that of the Karpenter NodeClaim of the node. The row acts as
    Vacate if the NodePool has no terminationGracePeriod, or if the operator may not read NodeClaims (the chart's value
    nodeClaims)."""
    enabled: bool = True
    """False: the row has no effect unless a configuration or a job switches it on."""
    says: str = Field(default="", max_length=200)
    """The cause in words, with {node} for the node's name and {pod} for the pod's, for sources that have one. Absent:
    what was seen."""
    set_by: str = ""
    """Who sets it, for the documentation."""
    warning: str = ""
    """How long before the node is gone, for the documentation."""
    url: str = ""
    """Where the signal is documented."""

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        """The message of each mistake says what to do."""
        by_deadline = self.reaction is Reaction.VACATE_BY_DEADLINE
        deadlines = (self.deadline_seconds is not None) + self.deadline_in_value + self.deadline_in_claim
        for wrong, words in (
            (self.source in _KEYED and not self.key, f"key is missing: say which {self.source} it is"),
            (self.source not in _KEYED and self.key, f"key is not for the source {self.source}: remove it"),
            (self.effect and self.source is not SignalSource.TAINT, "effect is for the source Taint: remove it"),
            (
                self.effect not in _EFFECTS,
                f"effect {self.effect!r} is no effect of a taint: say NoSchedule, PreferNoSchedule or NoExecute, "
                "or remove it for all of them",
            ),
            (
                self.source in _CONDITIONS and self.value not in _STATUSES,
                f'value {self.value!r} is no status of a condition: say "True", "False" or "Unknown"',
            ),
            (
                self.source is SignalSource.CONDITION and self._says_well,
                f'condition {self.key} is True on every node that is well: set value "False", or leave it to '
                "node-silence",
            ),
            (
                self.source is SignalSource.POD_CONDITION and self._says_well,
                f'condition {self.key} is True of every pod that is well: set value "False"',
            ),
            (
                self.reasons and self.source not in _CONDITIONS,
                "reasons are for the sources NodeCondition and PodCondition: remove them",
            ),
            ("" in self.reasons, "reasons has an empty word: remove it, or give the condition's reason"),
            (
                self.unless_tolerated and self.source is not SignalSource.TAINT,
                "unlessTolerated is for Taint: remove it",
            ),
            (
                (self.reaction is Reaction.GIVE_UP) != (self.source is SignalSource.SILENCE),
                "reaction GiveUp is for the source Silence, and is its only one: a job's failure.lostNodeSeconds says "
                "how long it is waited for",
            ),
            (
                self.reaction is Reaction.AVOID and self.source in OF_PODS,
                "reaction Avoid is for what a node shows: a pod that shows something is there already",
            ),
            (
                not self.enabled and self.source is SignalSource.SILENCE,
                "enabled cannot be false for the source Silence",
            ),
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
                self.deadline_in_value and self.source not in (SignalSource.LABEL, SignalSource.ANNOTATION),
                "deadlineInValue is for the sources Label and Annotation: use deadlineSeconds",
            ),
            (
                self.deadline_in_claim and self.source is not SignalSource.TAINT,
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
        """How the signal looks, for people."""
        value = self.value if self.value is not None else BAD.get(self.source, "")
        text = f"{self.key}={value}" if value else self.key
        text += f" ({', '.join(self.reasons)})" if self.reasons else ""
        return f"{text}:{self.effect}" if self.effect else text


def changed(shipped: Iterable[SignalRow], given: Iterable[dict[str, Any]]) -> tuple[SignalRow, ...]:
    """Completes the rows of a configuration: a row named like a shipped one changes only the fields that it gives.

    Raises ValidationError for a row that makes no sense, and ValueError if two rows have the same name or match the
    same thing, or if a row adds to a built-in source or changes it.
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
    """Whether the second can never count, because the first that matches wins."""
    alike = (first.source, first.matched) == (second.source, second.matched)
    return alike and first.enabled and second.enabled


def _base(old: SignalRow, given: dict[str, Any]) -> dict[str, Any]:
    """The fields that a changed row keeps. Its deadline goes if it gives another one or another reaction."""
    base = old.model_dump(by_alias=True)
    others = given.get("reaction", old.reaction) != Reaction.VACATE_BY_DEADLINE
    if others or any(given.get(name) for name in NO_DEADLINE):
        base |= NO_DEADLINE
    return base
