"""What imports have made is looked at once, set aside before the first test, and given back at the end."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]


class Link:
    """Part of a cycle: only the collector frees it."""


MADE_AT_IMPORT = [Link()]
COLLECTS_AT_IMPORT = gc.isenabled()


REPOSITORY = Path(__file__).parents[4]
ENDS = """\
import atexit, os, sys

class Module:
    make = os.mkdir

    def __del__(self):
        self.make("taken down")

def test_a_process_that_a_test_forks_has_an_end_of_its_own():
    forked = os.fork()
    if not forked:
        atexit._run_exitfuncs()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 7

def test_b():
    sys.module = Module()
    atexit.register(os.mkdir, "handled")
"""


def test_a_collection_does_not_look_at_what_imports_have_made_but_at_what_a_test_makes() -> None:
    made = [Link()]
    seen = {id(thing) for thing in gc.get_objects()}
    assert id(MADE_AT_IMPORT) not in seen
    assert id(made) in seen


def test_the_collector_rests_while_test_modules_are_imported_and_works_in_tests() -> None:
    assert not COLLECTS_AT_IMPORT
    assert gc.isenabled()


def test_what_a_files_tests_have_left_is_not_looked_at_by_those_of_the_next(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, with_xdist_alone: None
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    pytester.makeconftest('pytest_plugins = ["e2e.harness.heap"]')
    seen = "any(one is sys.left for one in gc.get_objects())"
    pytester.makepyfile(
        test_a=f"import gc, sys\n\ndef test_a():\n    sys.left = [[]]\n\ndef test_b():\n    assert {seen}\n",
        test_b=f"import gc, sys\n\ndef test_c():\n    assert sys.left\n    assert not {seen}\n",
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=3)


@pytest.mark.parametrize("words", [("-n1",), ()], ids=["worker", "no worker"])
def test_a_workers_exit_handlers_run_and_its_modules_are_not_taken_down(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, with_xdist_alone: None, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    pytester.makeconftest('pytest_plugins = ["e2e.harness.heap"]')
    pytester.makepyfile(ENDS)
    pytester.runpytest_subprocess(*words, "-p", "no:cacheprovider").assert_outcomes(passed=2)
    assert (pytester.path / "handled").exists()
    assert (pytester.path / "taken down").exists() is not bool(words)
