"""A bench's figures can be read by people and by programs."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.bench.report import Figure, table, write

DRAIN = Figure("drain", "s", (2.0, 4.0, 9.0), baseline=1.5, baseline_is="an empty node")
STEP = Figure("step", "us", (120.0,))


def test_the_table_shows_median_spread_and_baseline_of_each_figure() -> None:
    lines = table("A bench", [DRAIN, STEP]).splitlines()
    assert lines[3].split() == ["drain", "4", "2", "9", "s", "3", "1.5", "an", "empty", "node"]
    assert lines[4].split() == ["step", "120", "120", "120", "us", "1"]


def test_the_file_names_every_figure_with_unit_samples_and_baseline(tmp_path: Path) -> None:
    body = json.loads(write("moves", [DRAIN], {"cores": 2}, tmp_path).read_text())
    assert body["bench"] == "moves"
    assert body["facts"] == {"cores": 2}
    assert body["figures"] == [
        {
            "name": "drain",
            "unit": "s",
            "median": 4.0,
            "least": 2.0,
            "most": 9.0,
            "interval": None,
            "samples": [2.0, 4.0, 9.0],
            "baseline": 1.5,
            "baselineIs": "an empty node",
        }
    ]


def test_an_interval_is_reported_where_there_are_enough_samples_for_one() -> None:
    """Of six samples the true median lies within them but for once in 32 times; of five, once in 16."""
    assert Figure("step", "%", (5.0, 1.0, 4.0, 2.0, 3.0)).interval is None
    assert Figure("step", "%", (6.0, 5.0, 1.0, 4.0, 2.0, 3.0)).interval == (1.0, 6.0)
    assert Figure("step", "%", tuple(map(float, range(1, 41)))).interval == (14.0, 27.0)
    assert "14 to 27" in table("A bench", [Figure("step", "%", tuple(map(float, range(1, 41))))])
