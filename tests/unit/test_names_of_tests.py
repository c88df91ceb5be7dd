"""Every module's tests are found by its name, or by the table of tests/support/names_of_tests.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.names_of_tests import REPOSITORY, problems

KEYS, HANDOVER = "runtime/perdure/live/keys.py", "runtime/perdure/live/handover.py"
TEST = "tests/unit/runtime/live/test_keys.py"


def test_every_module_has_a_test_file_of_its_name_or_stands_in_the_table() -> None:
    assert list(problems(REPOSITORY)) == []


@pytest.mark.parametrize(
    ("files", "table", "found"),
    [
        ([KEYS, TEST], {}, []),
        ([KEYS, "tests/unit/runtime/test_live.py"], {"tests/unit/runtime/test_live.py": ["perdure/live/keys"]}, []),
        ([KEYS], {}, [f"perdure/live/keys.py has no {TEST}: write it, or name the file with its tests in TESTED_IN"]),
        (
            [HANDOVER, "tests/unit/runtime/agent/test_handover.py"],
            {},
            [
                "perdure/live/handover.py has no tests/unit/runtime/live/test_handover.py: write it, or name the file "
                "with its tests in TESTED_IN"
            ],
        ),
        ([KEYS], {TEST: ["perdure/live/keys"]}, [f"TESTED_IN names {TEST}, which does not exist"]),
        ([KEYS, TEST], {TEST: ["perdure/live/keys"]}, [f"TESTED_IN names perdure/live/keys.py, which has {TEST}"]),
        ([TEST], {TEST: ["perdure/live/keys"]}, ["TESTED_IN names perdure/live/keys.py, which does not exist"]),
        (
            [KEYS, "a.py", "b.py"],
            {"a.py": ["perdure/live/keys"], "b.py": ["perdure/live/keys"]},
            ["TESTED_IN names perdure/live/keys.py twice"],
        ),
        (["runtime/perdure/live/__init__.py"], {}, []),
        (
            ["operator/perdure_operator/cli/start.py", "tests/unit/runtime/test_start.py"],
            {},
            [
                "perdure_operator/cli/start.py has no tests/unit/operator/cli/test_start.py: write it, or name the "
                "file with its tests in TESTED_IN"
            ],
        ),
    ],
    ids=[
        "own",
        "listed",
        "none",
        "of-another-room",
        "no-file",
        "own-and-listed",
        "no-module",
        "twice",
        "init",
        "other",
    ],
)
def test_what_is_missing_or_no_longer_true_is_named(
    tmp_path: Path, files: list[str], table: Mapping[str, Sequence[str]], found: list[str]
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list(problems(tmp_path, table)) == found
