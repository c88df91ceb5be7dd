"""Operator and agents of different ages: what the first format has written is read, and what is written now it reads.

`recorded/` holds documents as that format's writers wrote them, and its reader as it was: none of it is ever changed.
Agents live in users' images for weeks, so a newer operator must be understood by older ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.contract import (
    Assignment,
    CommitRef,
    ErrorKind,
    ExitKind,
    Failure,
    Leave,
    Outcome,
    Standby,
    Train,
    read_assignment,
    read_outcome,
    write_assignment,
    write_outcome,
)
from tests.unit.compat.recorded import contract as first

RECORDED = Path(__file__).parent / "recorded"
ASSIGNMENTS: dict[str, dict[str, Any]] = json.loads((RECORDED / "assignments.json").read_text())
OUTCOMES: dict[str, dict[str, Any]] = json.loads((RECORDED / "outcomes.json").read_text())
TODAYS_ASSIGNMENTS: list[Assignment] = [
    Standby(),
    Leave(3, "node n2 is cordoned", 120, (1, 2)),
    Train(4, 1, 2, "10.9.0.1:29504", "node n2 is cordoned", 120, 135, (3,), floor=CommitRef(12, 96)),
]
UNKNOWN_TO_THE_FIRST = {ExitKind.ROOT_TAKEN_OVER}
"""Its operator kept such an outcome for an infrastructure failure; those that follow read what they do not know."""


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_a_recorded_assignment_is_read_without_loss(name: str) -> None:
    told = ASSIGNMENTS[name]
    assert json.loads(write_assignment(read_assignment(json.dumps(told)))).items() >= told.items()


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_recorded_outcome_is_read_without_loss(name: str) -> None:
    told = OUTCOMES[name]
    assert json.loads(write_outcome(read_outcome(json.dumps(told)))).items() >= told.items()


@pytest.mark.parametrize("assignment", TODAYS_ASSIGNMENTS, ids=["standby", "leave", "train"])
def test_an_agent_of_the_first_format_does_what_it_is_told_today(assignment: Assignment) -> None:
    understood = first.read_assignment(write_assignment(assignment))
    assert type(understood).__name__ == type(assignment).__name__
    assert vars(understood).items() <= vars(assignment).items()


@pytest.mark.parametrize("kind", sorted(set(ExitKind) - UNKNOWN_TO_THE_FIRST))
def test_an_operator_of_the_first_format_reads_todays_outcomes(kind: ExitKind) -> None:
    error = Failure(ErrorKind.STORAGE, "StorageError", "connection refused")
    outcome = Outcome(kind, 3, 1, 96, CommitRef(12, 96), 3, {"import": 4.5}, error)
    understood = first.read_outcome(write_outcome(outcome))
    assert (understood.outcome.value, understood.run, understood.step) == (kind.value, 3, 96)
    assert understood.error is not None
    assert understood.error.kind.value == "storage"
