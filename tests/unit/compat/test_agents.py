"""Operator and agents of different ages: documents of earlier formats are read, and earlier readers read today's.

`recorded/` holds documents as each format's writers wrote them, and its reader as it was: none of it is ever changed.
The second format added the floor, the memory limit and more names of errors. Agents live in users' images for weeks, so
a newer operator must be understood by older ones; and an operator may be rolled back under newer agents.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perdure.wire import (
    Assignment,
    Beginning,
    CommitRef,
    ErrorKind,
    ExitKind,
    Failure,
    Handover,
    Leave,
    Outcome,
    SkippedCommit,
    Standby,
    Train,
    read_assignment,
    read_outcome,
    write_assignment,
    write_outcome,
)
from tests.unit.compat.recorded import contract as first
from tests.unit.compat.recorded.second import contract as second

RECORDED = Path(__file__).parent / "recorded"
FORMATS = {"first": RECORDED, "second": RECORDED / "second"}
READERS = {"first": first, "second": second}
UNKNOWN_TO_THE_FIRST = {ExitKind.ROOT_TAKEN_OVER}
"""Its operator kept such an outcome for an infrastructure failure; those that follow read what they do not know."""
NEVER_ASKED_FOR = {ExitKind.HANDED_OVER, ExitKind.HANDOVER_FAILED}
"""An agent ends so only where its assignment offers a hand-over: operators that offer none need not know the words."""
UNDERSTOOD = [
    pytest.param(reader, kind, id=f"{name}-{kind}")
    for name, reader in READERS.items()
    for kind in sorted(set(ExitKind) - NEVER_ASKED_FOR - (UNKNOWN_TO_THE_FIRST if reader is first else set()))
]


def recorded(name: str) -> list[Any]:
    """Each document of that file, of all formats."""
    documents = {format_: json.loads((folder / name).read_text("utf-8")) for format_, folder in FORMATS.items()}
    return [
        pytest.param(told, id=f"{format_}-{what}")
        for format_, found in documents.items()
        for what, told in found.items()
    ]


OFFER = Handover(3, 2, (1,), (1,), "10.9.0.1:29604", 60, "ab" * 16)
TODAYS_ASSIGNMENTS: dict[str, Assignment] = {
    "standby": Standby(),
    "leave": Leave(3, "node n2 is cordoned", 120, (1, 2)),
    "train": Train(4, 1, 2, "10.9.0.1:29504", "node n2 is cordoned", 120, 135, (3,), floor=CommitRef(12, 96)),
    # To an older agent an offer is an assignment without its block: a newer run, hence a request to save.
    "offer": Train(4, 1, 2, "10.9.0.1:29504", "node n2 is cordoned", 120, 135, (3,), handover=OFFER),
    # And a request for a save, which it does not know, is none.
    "save": Train(4, 1, 2, "10.9.0.1:29504", "node n2 is cordoned", 120, 135, (3,), save=2),
    "offer to leave": Leave(4, "node n2 is cordoned", 120, (3,), handover=OFFER),
}


@pytest.mark.parametrize("told", recorded("assignments.json"))
def test_a_recorded_assignment_is_read_without_loss(told: dict[str, Any]) -> None:
    assert json.loads(write_assignment(read_assignment(json.dumps(told)))).items() >= told.items()


@pytest.mark.parametrize("told", recorded("outcomes.json"))
def test_a_recorded_outcome_is_read_without_loss(told: dict[str, Any]) -> None:
    assert json.loads(write_outcome(read_outcome(json.dumps(told)))).items() >= told.items()


@pytest.mark.parametrize("told", recorded("outcomes.json"))
def test_no_epoch_is_made_up_for_an_older_agent(told: dict[str, Any]) -> None:
    assert read_outcome(json.dumps(told)).epoch is None


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize("assignment", TODAYS_ASSIGNMENTS.values(), ids=TODAYS_ASSIGNMENTS)
def test_an_older_agent_does_what_it_is_told_today(assignment: Assignment, reader: ModuleType) -> None:
    understood = reader.read_assignment(write_assignment(assignment))
    assert type(understood).__name__ == type(assignment).__name__
    for name, value in vars(understood).items():
        assert (name, str(value)) == (name, str(getattr(assignment, name)))


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_to_an_older_agent_a_request_for_a_save_is_the_assignment_that_it_has(reader: ModuleType) -> None:
    known, asked = (
        reader.read_assignment(write_assignment(Train(4, 1, 2, "10.9.0.1:29504", save=save))) for save in (0, 2)
    )
    assert known == asked


@pytest.mark.parametrize(("reader", "kind"), UNDERSTOOD)
def test_an_older_operator_reads_todays_outcomes(reader: ModuleType, kind: ExitKind) -> None:
    error = Failure(ErrorKind.STORAGE, "StorageError", "connection refused")
    begun, skipped_commit = (Beginning(3, 90, 2, 95),), SkippedCommit(3, 5, "commit 12 of step 95: it is damaged")
    seconds = {"import": 4.5}
    outcome = Outcome(
        kind, 3, 1, 96, CommitRef(12, 96), 3, seconds, error, 4, begun=begun, skipped_commit=skipped_commit
    )
    understood = reader.read_outcome(write_outcome(outcome))
    assert (understood.outcome.value, understood.run, understood.step) == (kind.value, 3, 96)
    assert understood.error is not None
    assert understood.error.kind.value == "storage"
