"""Checks that run at once: whole outputs, every failure, and what of the working tree has changed."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checks import changed, nearest_to, together

pytest_plugins = ["pytester"]


def test_each_output_is_in_one_piece_and_every_failure_is_named(tmp_path: Path) -> None:
    """One waits until the other has printed its first line, and that one for the first: neither ends before both do."""
    turn = (
        "import sys, pathlib, time\n"
        "mine, other, status = sys.argv[1:]\n"
        "print(mine, 1, flush=True); pathlib.Path(mine).touch()\n"
        "while not pathlib.Path(other).exists(): time.sleep(0.01)\n"
        "print(mine, 2); sys.exit(int(status))"
    )
    out = io.StringIO()
    commands = {name: [sys.executable, "-c", turn, name, other, "3"] for name, other in ("ab", "ba")}
    assert sorted(together({**commands, "well": ["true"]}, tmp_path, out)) == ["a", "b"]
    said = [line for line in out.getvalue().splitlines() if not line.startswith("---")]
    assert said in (["a 1", "a 2", "b 1", "b 2"], ["b 1", "b 2", "a 1", "a 2"])
    assert out.getvalue().count("FAILED") == 2


def test_what_differs_from_where_the_branch_began_is_found(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        person = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *person, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-b", "main")
    for name in ("kept", "edited", "committed"):
        (tmp_path / name).write_text(name)
    git("add", ".")
    git("commit", "-m", "one")
    (tmp_path / "edited").write_text("more")
    (tmp_path / "new").write_text("new")
    assert changed(tmp_path) == ["edited", "new"], "without an origin/main"
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    (tmp_path / "committed").write_text("more")
    git("commit", "-m", "two", "committed")
    assert changed(tmp_path) == ["committed", "edited", "new"]


def test_when_the_time_is_over_no_test_begins_and_each_says_so(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.fixture\ndef made(): assert False\ndef test_a(made): pass")
    words = ("-p", "tests.support.deadline", "-p", "no:cacheprovider", "-rs")
    late = pytester.runpytest_inprocess(*words, "--no-test-after=0")
    late.assert_outcomes(skipped=1)
    late.stdout.fnmatch_lines("*its 0 s are over: `make test` runs all*")
    pytester.runpytest_inprocess(*words, "--no-test-after=1000").assert_outcomes(errors=1)


def test_the_tests_of_a_file_are_found_by_the_end_of_its_path() -> None:
    sources = {
        "operator/perdure_operator/decide/leaving.py": "",
        "runtime/perdure/loop/leaving.py": "",
        "tests/unit/runtime/loop/test_reports.py": "from perdure.loop import leaving",
        "tests/unit/runtime/loop/test_leaving.py": "from perdure.loop.leaving import leave",
    }
    found = [f"tests/unit/runtime/loop/test_{name}.py" for name in ("leaving", "reports")]
    assert nearest_to("loop/leaving.py", sources) == nearest_to("runtime/perdure/loop/leaving.py", sources) == found
    with pytest.raises(ValueError, match=r"decide/leaving\.py, runtime/perdure/loop/leaving\.py"):
        nearest_to("leaving.py", sources)
    with pytest.raises(ValueError, match="no such"):
        nearest_to("eaving.py", sources)
