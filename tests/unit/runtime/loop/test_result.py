"""A script's result: which values fit, that it belongs to the training state, and that the agent gets it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import perdure
from perdure import UserError
from perdure.loop.result import Result
from perdure.wire import RESULT_BYTES
from perdure.wire.channel import Resulted, read_report
from tests.unit.runtime.records import entries
from tests.unit.runtime.session.training import Join, Training


def told(pipe: tuple[int, int]) -> list[Any]:
    """The results in the pipe."""
    lines = os.read(pipe[0], 2**16).splitlines()
    return [report.result for line in lines if isinstance(report := read_report(line), Resulted)]


def test_what_is_read_is_a_copy_of_what_was_set() -> None:
    assert Result().value is None
    result, given = Result(), {"accuracy": 0.93, "by_class": [0.9, 0.96], "name": "é"}
    result.set(given)
    given["accuracy"] = 0
    read = result.value
    assert read == {"accuracy": 0.93, "by_class": [0.9, 0.96], "name": "é"}
    read["accuracy"] = 0
    assert result.value != read


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1], r"it is a list: give a mapping"),
        ({"loss": torch.tensor(1.0)}, r"\['loss'\] is a Tensor: .* of a tensor its \.item\(\)"),
        ({"loss": float("nan")}, r"\['loss'\] is nan, which JSON does not have: leave it out"),
        ({"a": [{"b": {1: 2}}]}, r"a name in \['a'\]\[0\]\['b'\] is 1: give names as strings"),
        ({"n": 2**63}, r"\['n'\] is a number of more than 64 bits: give it as a string"),
        ({"a": [[[[[[[[1]]]]]]]]}, r"nested more than 8 levels deep"),
        (
            {"text": "x" * RESULT_BYTES},
            r"it has 1035 bytes as JSON, at most 1024 are kept: .*session\.state",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_its_place_and_what_was_set_stays(value: Any, words: str) -> None:
    result = Result()
    result.set({"best": 1})
    with pytest.raises(UserError, match=rf"^session\.result: .*{words}"):
        result.set(value)
    assert result.value == {"best": 1}


def test_as_much_as_fits_is_kept() -> None:
    result, most = Result(), {"text": "x" * (RESULT_BYTES - len('{"text":""}'))}
    result.set(most)
    assert result.value == most


def test_it_is_saved_with_the_training_and_there_again_in_the_next_run(join: Join) -> None:
    first = Training(join())
    first.session.on("epoch", lambda epoch: setattr(first.session, "result", {"epoch": epoch}))
    first.left(stop=7)
    again = Training(join())
    perdure.restore(again.session)
    assert again.session.result == {"epoch": 0}


def test_a_checkpoint_of_a_session_without_one_has_none(join: Join, tmp_path: Path) -> None:
    """Nothing is added to what older versions read."""
    Training(join()).left(stop=3)
    (manifest,) = (tmp_path / entry["manifest"]["key"] for entry in entries(tmp_path) if entry["kind"] == "Committed")
    assert '"result"' not in manifest.read_text()
    again = Training(join())
    perdure.restore(again.session)
    assert again.session.result is None


def test_the_agent_is_told_when_it_is_set_and_when_it_is_restored(join: Join, pipe: tuple[int, int]) -> None:
    first = Training(join(REPORT_FD=str(pipe[1])))
    first.session.result = {"best": 1}
    first.session.result = {"best": 1}
    assert told(pipe) == [{"best": 1}]
    first.session.result = None
    first.session.result = {"best": 2}
    first.left(stop=3)
    assert told(pipe) == [None, {"best": 2}]
    again = Training(join(REPORT_FD=str(pipe[1])))
    perdure.restore(again.session)
    assert told(pipe) == [{"best": 2}]
    again.session.close()
