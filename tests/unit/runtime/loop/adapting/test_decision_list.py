"""Lists of decisions: of a file, of a script, of a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import UserError
from perdure.loop.adapting.decision import BatchDecision
from perdure.loop.adapting.decision_list import DecisionHistory, read_decisions

FIRST = {"epoch": 0, "consumed": 0, "batch": 8}
LATER = {"epoch": 1, "consumed": 16, "batch": 16, "rate": 2.0}


def test_a_file_and_a_list_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "decisions.json"
    path.write_text(json.dumps([FIRST, LATER]))
    assert read_decisions(path) == read_decisions(str(path)) == read_decisions([FIRST, LATER])
    assert [one.place for one in read_decisions(path)] == [(0, 0), (1, 16)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "give a list of decisions"),
        (7, "give a list of decisions"),
        ([FIRST, 3], "number 1 is '3'"),
        ([FIRST, {**LATER, "batch": 0}], "number 1: batch is 0"),
        ([LATER, FIRST], r"number 1: it counts from \(0, 0\) on, before the one above it"),
    ],
)
def test_what_is_no_list_of_decisions_is_refused_in_words(given: Any, words: str) -> None:
    with pytest.raises(UserError, match=rf"^Adapt\(decisions=\[\.\.\.\]\).*{words}"):
        read_decisions(given)


@pytest.mark.parametrize("text", [None, "[1", '"text"'])
def test_a_file_that_is_none_is_named(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "decisions.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=r"decisions\.json'\): (the file cannot be read|give a list)"):
        read_decisions(path)


def test_a_history_leaves_no_trace_where_nothing_was_decided_and_is_kept_where_something_was() -> None:
    history = DecisionHistory()
    assert history.state_dict() == {}
    history.add(BatchDecision(0, 0, 2, 8, 4, 0, 12.5, 1.5))
    restored = DecisionHistory()
    restored.load_state_dict(json.loads(json.dumps(history.state_dict())))
    assert restored.made == history.made
    restored.load_state_dict({})
    assert restored.made == ()
