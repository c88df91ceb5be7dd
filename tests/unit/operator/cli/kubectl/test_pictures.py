"""docs/what-you-see.md has a picture of what each command prints, and says what each column and condition is.

`make check` compares the pictures.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest
import yaml

from perdure_operator.api.reasons import ConditionType
from perdure_operator.cli.kubectl import command
from tests.unit.operator.cli.kubectl import pictures
from tests.unit.operator.cli.kubectl.pictures import FOLDER, PICTURES

PAGE = FOLDER.parent / "what-you-see.md"
TEXT = PAGE.read_text()
CRDS = Path(__file__).resolve().parents[5] / "crds"


def rows_below(title: str) -> list[str]:
    """The first cell of each row below that title, without the heads of tables."""
    (part,) = [one for one in TEXT.split("\n## ") if one.startswith(title)]
    return re.findall(r"^\| (?!Column|Condition|Command)([^|]+?) \|", part, re.MULTILINE)


def test_a_stale_picture_is_named_with_what_mends_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pictures, "FOLDER", tmp_path)
    monkeypatch.setattr(pictures, "PICTURES", {"a.svg": lambda: "<a/>", "b.svg": lambda: "<b/>"})
    (tmp_path / "a.svg").write_text("<a/>")
    assert run(monkeypatch, "--check") == 1
    assert run(monkeypatch, "--write") == 0
    assert (tmp_path / "b.svg").read_text() == "<b/>"
    assert run(monkeypatch, "--check") == 0


def run(monkeypatch: pytest.MonkeyPatch, way: str) -> int:
    monkeypatch.setattr(sys, "argv", ["pictures", way])
    return pictures.main()


def test_the_page_has_each_picture_once_with_a_text_for_who_does_not_see_it() -> None:
    shown = re.findall(r"!\[(.{40,})\]\(pictures/(.+?)\)", TEXT)
    assert sorted(name for _, name in shown) == sorted(PICTURES) == sorted(one.name for one in FOLDER.iterdir())


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_small_and_refers_to_nothing_outside_itself(name: str) -> None:
    text = (FOLDER / name).read_text()
    fromstring(text)  # noqa: S314
    assert len(text) < 20_000
    assert not re.search(r"href|url\(|@import|@font-face|src=|<script", text)
    assert set(re.findall(r"[a-z]+://[^\"]+", text)) == {"http://www.w3.org/2000/svg"}


def test_each_column_is_on_the_page_in_its_order() -> None:
    (file,) = CRDS.glob("*.yaml")
    (version,) = yaml.safe_load(file.read_text())["spec"]["versions"]
    columns = [one["name"].upper() for one in version["additionalPrinterColumns"]]
    assert rows_below("Columns") == columns
    first = [one["name"].upper() for one in version["additionalPrinterColumns"] if not one.get("priority")]
    assert TEXT.split("$ kubectl get ptj\n")[1].split("\n")[0].split() == ["NAME", *first]


def test_each_condition_is_on_the_page_in_its_order() -> None:
    assert rows_below("Conditions") == list(ConditionType)


def test_each_command_is_on_the_page_and_is_one() -> None:
    parser, rows = command._parser(), rows_below("Pages")
    for one in rows:
        parser.parse_args(one.strip("`").split()[2:])
    (commands,) = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    assert sorted(one.strip("`").split()[2] for one in rows) == sorted(commands.choices)
