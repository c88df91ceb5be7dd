"""A decision in words: the job's stage, what it waits for and until when, each write with the policy that wants it.

Pure, and nothing is decided here. Called by the command line (`perdure-operator explain`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final, assert_never

from perdure.wire import ContractError, Leave, Standby, Train, read_assignment
from perdure_operator.api.names import ANNOTATION_AUTOSCALER
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import TrainingJobStatus
from perdure_operator.decide import stage_of
from perdure_operator.decide.draft import WAITING
from perdure_operator.state.decision import (
    Action,
    Answer,
    Assign,
    CheckTemplate,
    CreatePod,
    Decision,
    DeleteBudget,
    DeleteJob,
    DeletePod,
    DropTemplate,
    KeepTemplate,
    Mark,
    SetBudget,
)
from perdure_operator.state.snapshot import Snapshot

Json = dict[str, Any]

_NOTHING: Final = "nothing to do"


def explain(snapshot: Snapshot, decision: Decision) -> str:
    """What the operator does in this round, and why."""
    after = decision.status or snapshot.status
    sections = [
        [f"Job {snapshot.namespace}/{snapshot.name} at {snapshot.now:%Y-%m-%d %H:%M:%SZ}"],
        [f"Stage: {_stage(snapshot.status, after)}"],
        [_running(after)],
        _section("Why", _why(decision)),
        _section("Writes to status", _writes(snapshot.status, after)),
        _section("Then does", (f"{number}. {_in_words(action)}" for number, action in enumerate(decision.actions, 1))),
        _section("Tells", (f"{event.type} {event.reason}: {event.message}" for event in decision.events)),
        _again(snapshot, decision),
    ]
    return "\n".join(line for section in sections for line in section) + "\n"


def _section(title: str, entries: Iterator[str] | tuple[str, ...]) -> list[str]:
    lines = [f"  {line}" for entry in entries for line in entry.splitlines()]
    return [f"{title}:", *lines] if lines else []


def _stage(before: TrainingJobStatus, after: TrainingJobStatus) -> str:
    old, new = stage_of(before), stage_of(after)
    return new.value if old is new else f"{old.value} -> {new.value}"


def _running(status: TrainingJobStatus) -> str:
    """The one sentence that answers most questions: it names the deadline, or says that there is none."""
    running = status.find(ConditionType.RUNNING)
    if running is None:
        return "Running: not known yet"
    head = "Running" if running.status == "True" else "Waiting"
    return f"{head}: {running.reason}: {running.message}"


def _why(decision: Decision) -> tuple[str, ...]:
    """Without what the lines on the wait and on events say anyway."""
    said = {event.message for event in decision.events}
    reasons = [reason for reason in decision.reasons if reason not in said and not reason.startswith(WAITING)]
    return tuple(reasons) or (() if decision.events or decision.status or decision.actions else (_NOTHING,))


def _writes(before: TrainingJobStatus, after: TrainingJobStatus) -> Iterator[str]:
    """What changes; the condition Running has its own line above."""
    known = {condition.type: condition for condition in before.conditions}
    for new in after.conditions:
        if new.type != ConditionType.RUNNING and known.get(new.type) != new:
            yield f"condition {new.type}: {new.status}, {new.reason}: {new.message}"
    yield from _changes("", _document(before), _document(after))


def _document(status: TrainingJobStatus) -> Json:
    return status.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"conditions"})


def _changes(path: str, old: Json, new: Json) -> Iterator[str]:
    for name in new | old:
        was, now = old.get(name), new.get(name)
        if isinstance(was, dict) and isinstance(now, dict):
            yield from _changes(f"{path}{name}.", was, now)
        elif was != now:
            yield f"{path}{name}: {json.dumps(now) if name in new else 'removed'}"


def _in_words(action: Action) -> str:
    """What is written, why, and which policy wants it."""
    origin = f" ({action.policy})" if action.policy else ""
    return f"{action.kind} {_object(action)}".strip() + (f": {action.why}" if action.why else "") + origin


def _object(action: Action) -> str:
    match action:
        case CreatePod(name=name, kept=kept) if kept:
            return f"{name} from the template in {kept}"
        case CreatePod(name=name, priority_class=given) if given:
            return f"{name} of PriorityClass {given}"
        case CreatePod(name=name) | DeletePod(name=name) | KeepTemplate(name=name) | DropTemplate(name=name):
            return name
        case Assign(name=name, role=role, new=new):
            return f"{name} as {role}, {_assignment(new)}"
        case Mark(name=name, new=new):
            said = ", ".join(f"{key}={value}" for key, value in new.items() if key != ANNOTATION_AUTOSCALER)
            return f"{name} with {said or 'no annotations for autoscalers'}"
        case Answer(name=name, completed=done):
            return f"{name}, for the last time" if done else name
        case SetBudget(min_available=least):
            return f"minAvailable {least}"
        case CheckTemplate() | DeleteBudget() | DeleteJob():
            return ""
        case _:
            assert_never(action)


def _assignment(text: str) -> str:
    try:
        assignment = read_assignment(text)
    except ContractError as error:
        return str(error)
    match assignment:
        case Standby():
            return "standby"
        case Leave(run=run, seconds=seconds):
            return f"to leave within {seconds} s, for run {run}"
        case Train(run=run, rank=rank, world=world):
            return f"rank {rank} of {world} in run {run}"
        case _:
            assert_never(assignment)


def _again(snapshot: Snapshot, decision: Decision) -> list[str]:
    seconds = decision.requeue_after
    if seconds is None:
        return ["Looks again: when something happens"]
    return [f"Looks again: in {seconds:g} s, at {snapshot.now + timedelta(seconds=seconds):%H:%M:%SZ}"]
