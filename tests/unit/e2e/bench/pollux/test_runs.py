"""Runs are made once: what is stored is good for as long as its code says the same."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from e2e.bench.pollux import __main__ as command
from e2e.bench.pollux import runs, tables
from e2e.bench.pollux.runs import WAYS, Result
from tests.unit.e2e.bench.pollux.made_up import model

POLLUX = WAYS["pollux"]


def result(workload: int, mean: float) -> Result:
    return Result("pollux", 1.0, workload, 160, mean, 10 * mean, 3.0, {"made-up": mean}, 1.0, runs.code_of(POLLUX.code))


def test_a_stored_run_is_found_again_until_its_code_says_something_else(tmp_path: Path) -> None:
    made = result(3, 2000.0)
    runs.store(tmp_path, made)
    assert runs.stored(tmp_path, POLLUX, 1.0, 3) == made
    assert runs.stored(tmp_path, POLLUX, 1.0, 4) is None
    assert runs.stored(tmp_path, POLLUX, 2.0, 3) is None
    runs.store(tmp_path, replace(made, code="older"))
    assert runs.stored(tmp_path, POLLUX, 1.0, 3) is None


def test_comments_and_docstrings_are_no_part_of_what_code_says(tmp_path: Path) -> None:
    texts = {
        "one": '"""A."""\ndef f() -> int:\n    """B."""\n    return 1\n',
        "two": '"""C."""\ndef f() -> int:\n    # D\n    return 1\n',
        "three": '"""A."""\ndef f() -> int:\n    """B."""\n    return 2\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    one, two, three = (runs.code_of((tmp_path / name,)) for name in texts)
    assert one == two != three


def test_a_run_of_a_small_workload_is_accounted_for(tmp_path: Path) -> None:
    (tmp_path / "workloads").mkdir()
    rows = "name,time,application,num_replicas,batch_size\na,5,made-up,1,16\nb,70,made-up,1,16\n"
    (tmp_path / "workloads" / "workload-1.csv").write_text(rows)
    made = runs.run(POLLUX, tmp_path, {"made-up": model()}, 1.0, 1)
    assert (made.jobs, made.way) == (2, "pollux")
    assert made.by_model["made-up"] == pytest.approx(made.mean, abs=0.1)
    assert 30 < made.mean < made.p99 < 300
    assert json.loads(json.dumps(asdict(made)))["code"] == runs.code_of(POLLUX.code)


def test_a_table_has_each_workload_beside_the_published_one(tmp_path: Path) -> None:
    published = {("pollux", 1.0, 3): (1000.0, 8000.0), ("pollux", 1.0, 5): (3000.0, 12000.0)}
    runs.store(tmp_path, result(3, 1100.0))
    runs.store(tmp_path, result(5, 2900.0))
    row = tables.all_of(tmp_path, published).splitlines()[1].split()
    assert row == ["pollux", "1.0", "3", "5", "2000", "1.000", "1.000", "2.000", "3.0", "1.100", "0.967"]
    assert tables.line(result(3, 1100.0), published).startswith("pollux load 1.0 workload 3: mean 1100 s (1.100 of")


def test_without_measurements_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["pollux"])
    for told in ("", str(tmp_path)):
        monkeypatch.setenv("POLLUX_DATA", told)
        assert command.main() == 2
        assert "POLLUX_DATA must name a folder" in capsys.readouterr().err
