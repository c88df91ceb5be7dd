"""Six planted bugs are found within `make test`; every other one still has a place to be planted.

`make mutants` shows what finds each of them.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.mutants.catalogue import CATALOGUE
from tests.mutants.judge import REPOSITORY, Effort, Found, Judge, plays
from tests.mutants.mechanical import FOLDERS, NO_DIFFERENCE, NOT_PLAYED, draw, of_text
from tests.mutants.mutant import Mutant, Stale
from tests.mutants.record import Record
from tests.simulation.faults import FAULTS

BY_NAME: Final = {mutant.name: mutant for mutant in CATALOGUE}
SIX: Final = (
    "cordons are not seen",
    "a Lease is taken before it has ended",
    "two runs in a row use the same port",
    "steps of another run are lost by this one",
    "a renewal counts from its answer",
    "a pod gets another assignment than was decided",
)
AIMED: Final = 3


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge() as one:
        yield one


@pytest.mark.parametrize("name", SIX)
def test_a_planted_bug_is_found_by_the_simulation(name: str, judge: Judge) -> None:
    found, words = judge.judge(BY_NAME[name], Effort(histories=0, aimed=AIMED))
    assert found is Found.SIMULATION, words


def test_a_verdict_on_a_file_counts_for_the_same_tree_and_effort_only(tmp_path: Path) -> None:
    mutant, path, effort = CATALOGUE[0], tmp_path / "verdicts", Effort(histories=1)
    Record(path, "tree", effort).add(mutant, Found.UNIT, "FAILED")
    assert Record(path, "tree", effort).known(mutant) == (Found.UNIT, "FAILED")
    assert Record(path, "tree", effort).known(CATALOGUE[1]) is None
    assert Record(path, "another", effort).known(mutant) is None
    assert Record(path, "tree", Effort(histories=2)).known(mutant) is None


def test_what_little_effort_has_found_is_found_with_more_and_what_it_has_not_is_sought_again(tmp_path: Path) -> None:
    path, little, more = tmp_path / "verdicts", Effort(histories=20, aimed=20), Effort(histories=100, aimed=20)
    for mutant, found in zip(CATALOGUE, Found, strict=False):
        Record(path, "tree", little).add(mutant, found, "words")
    known = [Record(path, "tree", more).known(mutant) for mutant in CATALOGUE[: len(Found)]]
    assert known == [(Found.SIMULATION, "words"), None, None]
    assert Record(path, "tree", Effort(histories=100, aimed=10)).known(CATALOGUE[0]) is None
    assert Record(path, "tree", Effort(histories=100, aimed=20, seed=1)).known(CATALOGUE[0]) is None


@pytest.mark.parametrize("mutant", CATALOGUE, ids=lambda mutant: mutant.name)
def test_a_bug_of_the_catalogue_finds_its_symbol_compiles_and_changes_it(mutant: Mutant) -> None:
    file, changed = mutant.changed(REPOSITORY)
    compile(changed, f"{mutant.symbol} in {file}", "exec")
    _, unchanged = replace(mutant, new=mutant.old).changed(REPOSITORY)
    same = ast.dump(ast.parse(changed)) == ast.dump(ast.parse(unchanged))
    assert not same, (
        f"{mutant.symbol}: {mutant.new!r} means the same as {mutant.old!r}. Plant a bug that changes the code"
    )


def test_every_bug_has_a_name_of_its_own() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in CATALOGUE).items() if count > 1] == []


def test_a_bug_names_faults_that_the_simulation_has() -> None:
    assert {fault for mutant in CATALOGUE for fault in mutant.faults} <= set(FAULTS)


def test_a_bug_that_the_simulation_does_not_play_is_left_to_the_unit_tests() -> None:
    outside = [mutant for mutant in CATALOGUE if mutant.outside]
    assert outside
    assert [mutant.name for mutant in outside if list(plays(mutant, Effort(histories=1, aimed=1)))] == []
    assert [mutant.name for mutant in outside if mutant.faults] == []


def test_a_file_that_the_simulation_does_not_play_is_one_that_bugs_are_drawn_from() -> None:
    assert [file for file in NOT_PLAYED if not file.startswith(FOLDERS) or not (REPOSITORY / file).exists()] == []


def test_a_bug_that_changes_nothing_is_one_that_can_be_drawn() -> None:
    files = {place.partition(".py")[0] + ".py" for place in NO_DIFFERENCE}
    every = (one for file in files for one in of_text(file, (REPOSITORY / file).read_text(encoding="utf-8")))
    assert NO_DIFFERENCE.keys() <= {f"{one.symbol}, {one.place}" for one in every}


def test_a_bug_names_unit_tests_that_there_are() -> None:
    assert [path for mutant in CATALOGUE for path in mutant.tests if not (REPOSITORY / path).exists()] == []


def planted(root: Path, mutant: Mutant, **modules: str) -> tuple[str, str]:
    """The name of the module of perdure.agent that the bug changes, and its text with the bug."""
    folder = root / "runtime" / "perdure" / "agent"
    folder.mkdir(parents=True)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    file, changed = mutant.changed(root)
    return file.stem, changed


OFF_BY_ONE: Final = Mutant("off by one", "perdure.agent:Trainer.ends", "x['at'] == 1", "x['at'] == 0")
AS_WRITTEN: Final = """
class Trainer:
    @property
    def ends(self, x):
        return x['at'] == 1 and self.b


WITHOUT = x['at'] == 1
"""
LAID_OUT_ANEW: Final = """
import os

@frozen
class Trainer:
    a = 1

    # A comment.
    @property
    def ends(
        self,
        x,
    ):
        return (
            x["at"]  # another
            == 1
            and self.b
        )

    c = 2
"""


@pytest.mark.parametrize(
    ("modules", "module"),
    [
        ({"machine": AS_WRITTEN}, "machine"),
        ({"machine": LAID_OUT_ANEW}, "machine"),
        ({"machine": "a = 1", "trainer": AS_WRITTEN}, "trainer"),
        ({"machine": AS_WRITTEN.replace("== 1", "== 2"), "trainer": AS_WRITTEN}, "trainer"),
    ],
    ids=["as-written", "laid-out-anew", "moved", "another-of-the-name"],
)
def test_a_bug_follows_its_symbol(modules: dict[str, str], module: str, tmp_path: Path) -> None:
    found, changed = planted(tmp_path, OFF_BY_ONE, **modules)
    expected = modules[module].replace("x['at'] == 1 and", "x['at'] == 0 and")
    expected = expected.replace('x["at"]  # another\n            == 1', 'x["at"] == 0')
    assert (found, ast.dump(ast.parse(changed))) == (module, ast.dump(ast.parse(expected)))


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ({"machine": AS_WRITTEN.replace("== 1", "== 2")}, r"0 times.*/machine\.py:4 .*x\['at'\] == 2"),
        ({"machine": AS_WRITTEN.replace("self.b", "x['at'] == 1")}, r"2 times.*/machine\.py:4 "),
        ({"machine": AS_WRITTEN.replace("ends", "end")}, r"0 times.*perdure\.agent has no Trainer\.ends"),
        ({"machine": AS_WRITTEN, "trainer": AS_WRITTEN}, r"2 times.*/machine\.py:4 .*/trainer\.py:4 "),
    ],
    ids=["gone", "twice", "renamed", "two-symbols"],
)
def test_a_bug_whose_place_has_changed_names_its_symbol(modules: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(Stale, match=f"(?s)off by one: perdure.agent:Trainer.ends has this {words}"):
        planted(tmp_path, OFF_BY_ONE, **modules)


def test_bugs_drawn_by_seed_are_the_same_each_time_and_leave_the_code_readable() -> None:
    drawn = draw(REPOSITORY, 0, 30)
    assert drawn == draw(REPOSITORY, 0, 30) != draw(REPOSITORY, 1, 30)
    for mutant in drawn:
        file, changed = mutant.changed(REPOSITORY)
        compile(changed, file, "exec")


def test_an_edited_function_moves_no_draw_but_its_own(tmp_path: Path) -> None:
    folder = tmp_path / FOLDERS[0]
    folder.mkdir(parents=True)
    functions = [f"def f{number}(a, b):\n    return a < b and a != {number}\n\n\n" for number in range(40)]
    (folder / "some.py").write_text("".join(functions))
    before = {one.symbol: one for one in draw(tmp_path, 0, 10)}
    edited = next(number for number in range(40) if f"{FOLDERS[0]}/some.py.f{number}" in before)
    functions[edited] = f"def f{edited}(a, b):\n    b = b > 7\n    return not a or (a < b and a != {edited})\n\n\n"
    (folder / "some.py").write_text("".join(functions))
    after = {one.symbol: one for one in draw(tmp_path, 0, 10)}
    assert list(after) == list(before)
    moved = {name for name, one in before.items() if (after[name].name, after[name].new) != (one.name, one.new)}
    assert moved <= {f"{FOLDERS[0]}/some.py.f{edited}"}


def test_a_drawn_bug_is_named_by_its_function_and_its_number_in_it() -> None:
    text = "class A:\n    def b(self, c):\n        return c and (c or d) and 3\n\n\nE = 5\n"
    assert [mutant.name.partition(", ")[0] for mutant in of_text("some.py", text)] == [
        "some.py: A.b",
        "some.py: A.b",
        "some.py: A.b",
        "some.py: outside functions",
    ]
    assert {mutant.place for mutant in of_text("some.py", text)} == {"and 1", "or 1", "number 1"}


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("a < b\n", ["<="]),
        ("a and b\n", ["or"]),
        ("if not a: pass\n", ["a"]),
        ("f(True, 3)\n", ["4", "False"]),
        ("a not in b\n", ["in"]),
    ],
)
def test_what_decides_is_changed(text: str, drawn: list[str]) -> None:
    assert sorted(mutant.new.strip() for mutant in of_text("some.py", text)) == drawn


@pytest.mark.parametrize(
    "text",
    [
        "logger.info('%s', 3)\n",
        "@dataclass(frozen=True)\nclass A: pass\n",
        "message = 'a' if b == 1 else 'c'\n",
        "draft.tell('a', warning=True)\n",
        "def __repr__(self): return 'a' if self.b == 1 else 'c'\n",
        "f'{a[0]} is {b or c}'\n",
        "MESSAGE_LENGTH: Final = 4000\n",
        "_WHY_CHARACTERS: Final = 400\n",
    ],
)
def test_what_is_only_words_is_left_alone(text: str) -> None:
    assert list(of_text("some.py", text)) == []
