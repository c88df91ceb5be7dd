"""Which tests are near to a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checks import sources
from tests.support.nearest import module_of, nearest

SOURCES = {
    "runtime/perdure/log/__init__.py": "from perdure.log import entry",
    "runtime/perdure/log/entry.py": "import json",
    "runtime/perdure/reader.py": "from perdure.log.entry import (\n    Entry,\n    read,\n)",
    "operator/perdure_operator/loop.py": "import perdure.reader as reader",
    "tests/support/books.py": "from perdure.log.entry import Entry",
    "tests/api/test_served.py": "from perdure.log.entry import Entry",
    "tests/unit/conftest.py": "",
    "tests/unit/log/test_entry.py": "from perdure.log.entry import Entry",
    "tests/unit/log/test_other.py": "def test_a():\n    from perdure.log import entry as e, head",
    "tests/unit/test_all.py": "from perdure.log.entry import Entry",
    "tests/unit/test_books.py": "from tests.support import books",
    "tests/unit/test_loop.py": "from perdure_operator.loop import run",
    "tests/unit/test_page.py": 'PAGE = DOCS / "guide" / "training.md"',
    "tests/unit/test_pages.py": 'PAGES = sorted((REPOSITORY / "docs").rglob("*.md"))',
    "tests/unit/test_far.py": "from perdure.log_of_others import entry",
}


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        (
            "runtime/perdure/log/entry.py",
            ["log/test_entry", "log/test_other", "test_all", "test_books", "test_loop"],
        ),
        ("runtime/perdure/reader.py", ["test_loop"]),
        ("tests/support/books.py", ["test_books"]),
        ("tests/unit/log/test_entry.py", ["log/test_entry"]),
        (
            "tests/unit/conftest.py",
            [
                "test_all",
                "test_books",
                "test_far",
                "test_loop",
                "test_page",
                "test_pages",
                "log/test_entry",
                "log/test_other",
            ],
        ),
        ("guide/training.md", ["test_page"]),
        ("guide/other.md", []),
        ("docs/how-to/data.md", ["test_pages"]),
        ("docs/logo.svg", []),
    ],
)
def test_what_imports_it_is_near_and_what_is_named_after_it_is_nearest(changed: str, found: list[str]) -> None:
    names = [path.removeprefix("tests/unit/").removesuffix(".py") for path in nearest([changed], SOURCES)]
    assert names == found


def test_a_test_that_has_changed_itself_comes_before_one_that_imports_what_has_changed() -> None:
    both = nearest(["runtime/perdure/log/entry.py", "tests/unit/test_all.py"], SOURCES)
    assert both[0] == "tests/unit/test_all.py"


def test_the_importers_of_a_module_that_is_gone_are_near() -> None:
    left = {path: text for path, text in SOURCES.items() if path != "runtime/perdure/log/entry.py"}
    assert "tests/unit/log/test_entry.py" in nearest(["runtime/perdure/log/entry.py"], left)


def test_a_test_that_is_gone_is_not_run() -> None:
    assert nearest(["tests/unit/test_gone.py"], SOURCES) == []


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("runtime/perdure/log/__init__.py", "perdure.log"),
        ("operator/perdure_operator/loop.py", "perdure_operator.loop"),
        ("e2e/harness/lab.py", "e2e.harness.lab"),
    ],
)
def test_a_module_is_named_as_it_is_imported(path: str, module: str) -> None:
    assert module_of(path) == module


def test_every_test_that_is_named_after_a_module_of_ours_is_near_to_it() -> None:
    texts = sources(Path(__file__).parents[3])
    path = "runtime/perdure/group/heartbeat.py"
    assert nearest([path], texts)[0] == "tests/unit/runtime/group/test_heartbeat.py"
