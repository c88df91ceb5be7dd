"""What a user's own test gets of `perdure.testing.processes`, and that nothing is left of the ranks afterwards."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import UserError
from perdure.testing import RanksFailed, processes
from tests.support.forked import forked_ranks
from tests.unit.runtime.records import entries

TRAIN = """
import sys, torch, perdure
torch.manual_seed(0)
with perdure.Session.from_env("not-here") as session:
    model = session.wrap(torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session.register(model=model, optimizer=optimizer)
    generator = torch.Generator().manual_seed(1)
    samples = torch.utils.data.TensorDataset(torch.randn(40, 4, generator=generator))
    for epoch in session.epochs(int(sys.argv[1])):
        for (inputs,) in session.loader(samples, batch_size=8):
            optimizer.zero_grad()
            session.weighted(model(inputs).square().mean()).backward()
            optimizer.step()
            exec(" ".join(sys.argv[2:]))
            session.step()
    session.result = {"threads": torch.get_num_threads()}
    print("weights", [value.item() for value in model.module.weight.flatten()])
"""
STEPS = 10
"""Of two epochs."""
SECONDS = 60
HANG = "import threading; threading.Event().wait()"
CHILD = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{}'], start_new_session={}); {}"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


@pytest.fixture
def forked() -> Iterator[None]:
    """Imports take more of a rank's time than a training."""
    with forked_ranks():
        yield


def weights(output: str) -> str:
    return next(line for line in output.splitlines() if line.startswith("weights"))


def left(words: str, besides: int = 0) -> dict[int, str]:
    """The processes of this machine whose command line holds the words, by their number."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if words in line and int(path.parent.name) not in (os.getpid(), besides):
                found[int(path.parent.name)] = line
    return found


@pytest.mark.usefixtures("forked")
def test_one_rank_leaves_right_after_any_step_and_the_next_goes_on_to_the_undisturbed_weights(
    script: Path, tmp_path: Path
) -> None:
    straight = processes(1, script, "2", root=tmp_path / "straight")
    assert (straight.outcome, straight.step, straight.epoch) == ("completed", STEPS, 2)
    first = processes(1, script, "2", root=tmp_path / "parts", exit_at=3)
    assert (first.outcome, first.step, first.epoch) == ("checkpointed", 3, 0)
    second = processes(1, script, "2", root=tmp_path / "parts")
    assert (second.outcome, second.step) == ("completed", STEPS)
    assert weights(second.ranks[0].output) == weights(straight.ranks[0].output)
    commits = [entry["step"] for entry in entries(tmp_path / "parts") if entry["kind"] == "Committed"]
    assert commits == [3, STEPS]


@pytest.mark.usefixtures("forked")
def test_two_ranks_leave_together_and_three_go_on(script: Path, tmp_path: Path) -> None:
    first = processes(2, script, "2", root=tmp_path / "root", exit_at=3)
    assert [(rank.outcome, rank.step) for rank in first.ranks] == [("checkpointed", 4)] * 2
    second = processes(3, script, "2", root=tmp_path / "root")
    assert [(rank.outcome, rank.step) for rank in second.ranks] == [("completed", STEPS)] * 3
    assert "resumed from commit 2, step 4, made" in second.ranks[0].output
    worlds = [entry["world"] for entry in entries(tmp_path / "root") if entry["kind"] == "Opened"]
    assert worlds == [2, 3]
    assert not (tmp_path / "not-here").exists()


def test_the_environment_is_that_of_the_test_without_the_run_it_belongs_to(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "RANK": "7",
        "WORLD_SIZE": "9",
        "PERDURE_RUN": "5",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OF_THE_TEST", "seen")
    words = "import os; print(os.environ['OF_THE_TEST'], os.environ['OF_THE_CALL'])"
    told = processes(1, script, "1", words, root=tmp_path / "root", exit_at=STEPS, environ={"OF_THE_CALL": "too"})
    assert (told.outcome, told.step) == ("completed", STEPS // 2), "nobody is asked in a step that does not come"
    assert "seen too" in told.ranks[0].output
    assert told.result == {"threads": 1}
    assert entries(tmp_path / "root")[0]["run"] == 1


@pytest.mark.usefixtures("forked")
def test_a_rank_that_fails_is_named_with_what_it_printed_and_its_peer_is_not(script: Path, tmp_path: Path) -> None:
    words = "if session.rank == 1 and session.steps_done == 2: raise ValueError('sample 17')"
    with pytest.raises(RanksFailed) as raised:
        processes(2, script, "2", words, root=tmp_path / "root")
    said = str(raised.value)
    assert "rank 0: peer-lost, exit status 1, at step" in said
    assert "rank 1: failed, exit status 1, at step 2" in said
    assert "rank 1 printed last:" in said
    assert "ValueError: sample 17" in said
    assert "rank 0 printed last" not in said
    assert [rank.outcome for rank in raised.value.ended.ranks] == ["peer-lost", "failed"]


def test_ranks_that_hang_are_ended_in_time_and_named(tmp_path: Path) -> None:
    (tmp_path / "hang.py").write_text(f"print('stuck'); {HANG}")
    with pytest.raises(RanksFailed) as raised:
        processes(2, tmp_path / "hang.py", root=tmp_path / "root", timeout_seconds=15)
    assert [rank.outcome for rank in raised.value.ended.ranks] == [None, None]
    assert "rank 1: killed: it still ran after 15 s" in str(raised.value)
    assert "rank 1 printed last:\nstuck" in str(raised.value)
    assert left(str(tmp_path)) == {}


def test_a_script_without_a_session_has_not_trained(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('done')")
    with pytest.raises(RanksFailed, match="failed: exit status 0, but no Session reached its goal"):
        processes(1, "train.py", root=tmp_path / "root", folder=tmp_path)


@pytest.mark.parametrize("founds", [False, True], ids=["of-its-session", "of-a-session-of-its-own"])
@pytest.mark.parametrize("ends", ["pass", "sys.exit(3)"], ids=["well", "badly"])
def test_what_a_rank_has_started_is_gone_when_it_has_ended(tmp_path: Path, founds: bool, ends: str) -> None:
    marked = f"import time; time.sleep(600)  # {tmp_path}"
    (tmp_path / "train.py").write_text(CHILD.format(marked, founds, ends))
    with pytest.raises(RanksFailed):
        processes(2, tmp_path / "train.py", root=tmp_path / "root")
    assert left(str(tmp_path)) == {}


def test_the_ranks_end_with_a_test_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "hang.py").write_text(f"print('on', flush=True); {HANG}")
    ranks = f"processes(2, {str(tmp_path / 'hang.py')!r}, root={str(tmp_path / 'root')!r})"
    code = f"from perdure.testing import processes; {ranks}"
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path) as test, contextlib.ExitStack() as stack:
        while len(found := left(str(tmp_path / "hang.py"), besides=test.pid)) < 4:  # two keepers and two ranks
            assert test.poll() is None
        ends = [os.pidfd_open(pid) for pid in found]
        for end in ends:
            stack.callback(os.close, end)
        test.kill()
        for end in ends:
            assert select.select([end], [], [], SECONDS)[0], left(str(tmp_path))


@pytest.mark.parametrize(
    ("n", "arguments", "options", "words"),
    [
        (0, ["train.py"], {}, "n is 0: give the number of ranks"),
        (1, [], {}, "no script"),
        (1, ["train.py"], {"exit_at": 0}, "exit_at is 0: optimizer steps count from 1"),
        (1, ["train.py"], {"timeout_seconds": 0}, "timeout_seconds is 0: give a number above 0"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(
    tmp_path: Path, n: int, arguments: list[str], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        processes(n, *arguments, root=tmp_path, **options)
