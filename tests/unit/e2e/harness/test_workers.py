"""How tests are spread over processes: what stays together, what comes first, and one report at the end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from e2e.harness.shared_run import VARIABLE
from e2e.harness.workers import AUTOSCALED, HISTORIES, LANES, LONG, LONGEST, chosen, place, unit
from e2e.scenarios import lanes

pytest_plugins = ["pytester"]
REPOSITORY = Path(__file__).parents[4]

ALONE = "e2e/scenarios/alone/test_operator_killed.py::test_a_leader_killed[first]"
SCENARIO = "e2e/scenarios/test_drain.py::test_a_drained_training[two]"
AUDIT = "e2e/scenarios/test_rbac.py::test_every_right"
PART = f"{HISTORIES}::test_no_invariant_breaks_in_any_history_of_these_seeds[0-125]"
UNIT = "tests/unit/operator/decide/test_life.py::test_a_job"
API, OTHER_API = "tests/api/test_crd.py::test_names", "tests/api/test_operator_crash.py::test_a_crash"


def test_what_shares_a_server_or_the_operator_stays_in_one_process() -> None:
    assert unit(API) == unit(OTHER_API)
    assert unit(ALONE) == "e2e/scenarios/alone/"
    assert unit(UNIT) == "tests/unit/operator/decide/test_life.py"
    assert unit(AUDIT) == "e2e/scenarios/test_rbac.py"
    assert unit(AUTOSCALED) == "e2e/scenarios/test_autoscaled.py"


def test_other_scenarios_and_the_parts_of_the_histories_are_handed_out_one_by_one() -> None:
    assert unit(SCENARIO) == SCENARIO
    assert unit(PART) == PART


def test_what_is_alone_comes_first_and_the_audit_as_soon_as_the_scenarios_are_over() -> None:
    collected = [API, UNIT, AUDIT, SCENARIO, *reversed(LONGEST), ALONE, PART]
    assert sorted(collected, key=place) == [ALONE, API, *LONGEST, SCENARIO, AUDIT, PART, UNIT]


def test_what_is_said_to_be_long_is_there() -> None:
    assert [path for path in (*LONGEST, *LONG) if not (REPOSITORY / path).exists()] == []


def test_a_scenario_is_handed_out_while_a_lane_is_free() -> None:
    assert len(set(lanes.LANES) - {lanes.OPERATORS}) == LANES
    waiting = [SCENARIO, "tests/unit/test_a.py"]
    assert chosen(waiting, []) == SCENARIO
    assert chosen(waiting, [["tests/unit/test_b.py"], [LONGEST[0], "tests/unit/test_c.py"], [LONGEST[1]]]) == SCENARIO


def test_who_finds_no_lane_takes_what_needs_none() -> None:
    waiting = [SCENARIO, "tests/unit/test_a.py", AUDIT]
    assert chosen(waiting, [[scenario] for scenario in LONGEST[:LANES]]) == "tests/unit/test_a.py"
    assert chosen(waiting, [["e2e/scenarios/alone/"], []]) == "tests/unit/test_a.py"
    assert chosen(["e2e/scenarios/alone/"], [[LONGEST[0]]]) is None
    assert chosen([SCENARIO, AUDIT], [[scenario] for scenario in LONGEST[:LANES]]) is None
    assert chosen([AUDIT], [[SCENARIO]]) is None


@pytest.fixture
def run_of_its_own(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, with_xdist_alone: None
) -> pytest.Pytester:
    """A folder for tests that another pytest runs, spread as ours are; nothing of the run around it shows there."""
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("TMPDIR", str(pytester.mkdir("temporary")))
    pytester.makeconftest('pytest_plugins = ["e2e.harness.workers"]')
    return pytester


@pytest.mark.parametrize("processes", [1, 3, 5])
def test_however_many_processes_there_are_each_test_is_run_once(
    run_of_its_own: pytest.Pytester, processes: int
) -> None:
    files = ["alone/test_a", *(f"test_{name}" for name in "bcdef"), "test_rbac"]
    for file in [*(f"e2e/scenarios/{name}.py" for name in files), "tests/unit/test_unit.py"]:
        path = run_of_its_own.path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def test_a(): pass\ndef test_b(): pass")
    words = [f"-n{processes}", "-p", "no:cacheprovider", "--import-mode=importlib"]
    result = run_of_its_own.runpytest_subprocess(*words)
    result.assert_outcomes(passed=16)


def test_two_processes_end_with_one_closing_line_and_leave_nothing(run_of_its_own: pytest.Pytester) -> None:
    for name in ("one", "two", "three"):
        run_of_its_own.makepyfile(**{f"test_{name}": "def test_a(): pass\ndef test_b(): pass"})
    result = run_of_its_own.runpytest_subprocess("-n2", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=6)
    assert result.outlines[-1].endswith("=")
    assert not list(run_of_its_own.path.glob("temporary/perdure-tests-*"))


@pytest.mark.parametrize("words", [("-n1",), ()], ids=["worker", "no worker"])
def test_ctrl_c_interrupts_in_a_run_that_a_script_has_put_into_the_background(
    run_of_its_own: pytest.Pytester, words: tuple[str, ...]
) -> None:
    run_of_its_own.makepyfile("""
        import signal

        def test_a():
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    """)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        found = run_of_its_own.runpytest_subprocess(*words)
    finally:
        signal.signal(signal.SIGINT, before)
    found.assert_outcomes(passed=1)


def test_a_test_that_ends_its_process_fails_once_and_all_others_are_run(run_of_its_own: pytest.Pytester) -> None:
    for name in "abcdef":
        run_of_its_own.makepyfile(**{f"test_{name}": "def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass"})
    for name in "gh":
        run_of_its_own.makepyfile(
            **{f"test_{name}": "import os\ndef test_a(): pass\ndef test_b(): os._exit(1)\ndef test_c(): pass"}
        )
    result = run_of_its_own.runpytest_subprocess("-n2", "-p", "no:cacheprovider", timeout=300)
    result.assert_outcomes(passed=22, failed=2)


FORKS = """
import os, pathlib, time

def test_a():
    if os.fork() == 0:
        while pathlib.Path("{flag}").exists():
            time.sleep(0.1)
        os._exit(0)
    os.kill(os.getpid(), 9)

def test_b(): pass
"""


def test_a_process_that_ends_is_missed_although_one_that_it_has_forked_goes_on(
    run_of_its_own: pytest.Pytester,
) -> None:
    flag = run_of_its_own.path / "flag"
    flag.touch()
    run_of_its_own.makepyfile(test_forks=FORKS.format(flag=flag))
    try:
        result = run_of_its_own.runpytest_subprocess("-n2", "-p", "no:cacheprovider", timeout=120)
    finally:
        flag.unlink()
    result.assert_outcomes(passed=1, failed=1)


SHARES = """\
import pathlib, pytest

@pytest.fixture(scope="session")
def server(for_the_unit):
    for_the_unit.callback(pathlib.Path("closed").touch)
    return "server"

@pytest.mark.parametrize("number", [1, 2])
def test_a(server, number):
    assert not pathlib.Path("closed").exists()
"""


def test_what_a_folder_shares_ends_behind_its_last_test(run_of_its_own: pytest.Pytester) -> None:
    run_of_its_own.makepyfile(
        test_a=SHARES, test_b="import pathlib\ndef test_b():\n    assert pathlib.Path('closed').exists()"
    )
    run_of_its_own.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=3)
