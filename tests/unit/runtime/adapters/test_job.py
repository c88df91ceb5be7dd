"""A training said as its phases: their order as the log and the script see it, over exits, restarts and two ranks."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from perdure import Job, Session, UserError
from perdure.loop.leaving import Exit
from perdure.testing import processes
from tests.support.forked import forked_ranks
from tests.unit.runtime.records import entries
from tests.unit.runtime.session.training import Join, samples

STEPS = 5


class Script:
    """A job that notes its phases, each beside what the log holds by then."""

    def __init__(self, session: Session, root: Path, **more: Any) -> None:
        self.session, self.root = session, root
        self.told: list[tuple[Any, ...]] = []
        torch.manual_seed(0)
        self.net = nn.Linear(4, 1)
        self.optimizer = torch.optim.Adam(self.net.parameters())
        session.register(net=self.net, optimizer=self.optimizer)
        self.batches = session.loader(samples(), 8)
        self.leave_at = 0
        given = {"init": self.init, "epoch": self.epoch, "upload": self.upload, "collect": self.collect}
        self.job = Job(**{**given, "exit": self.exit, "epochs": 3, **more})

    def run(self, **options: Any) -> int:
        with self.session:
            return self.job.run(self.session, **options)

    def note(self, *words: Any) -> None:
        self.told.append((*words, [entry["kind"] for entry in entries(self.root)][-1:]))

    def init(self) -> None:
        self.note("init")

    def epoch(self, number: int) -> None:
        for inputs, _ in self.batches:
            self.optimizer.zero_grad()
            self.net(inputs).square().mean().backward()
            self.optimizer.step()
            if self.session.steps_done + 1 == self.leave_at:
                os.kill(os.getpid(), signal.SIGTERM)
            self.session.step()
        self.note("epoch", number)

    def upload(self, number: int) -> None:
        self.note("upload", number)

    def collect(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        self.note("collect", [name for name, _ in tensors])

    def exit(self) -> None:
        self.note("exit")

    @property
    def phases(self) -> list[tuple[Any, ...]]:
        return [told[:-1] for told in self.told]


def commits(root: Path) -> list[tuple[int, int]]:
    """Step and epoch of each, oldest first."""
    return [(entry["step"], entry["epoch"]) for entry in entries(root) if entry["kind"] == "Committed"]


ENDED = [("upload", 3), ("collect", ["net.weight", "net.bias"]), ("exit",)]


def test_the_phases_come_in_order_with_checkpoint_0_and_one_after_each_epoch(join: Join, tmp_path: Path) -> None:
    script = Script(join(), tmp_path)
    assert script.run() == 3
    assert script.phases == [("init",), ("epoch", 1), ("epoch", 2), ("epoch", 3), *ENDED]
    assert commits(tmp_path) == [(0, 0), (STEPS, 1), (2 * STEPS, 2), (3 * STEPS, 3)]
    assert [told[-1] for told in script.told] == [["Opened"], *([["Committed"]] * 6)], "complete after the last phase"
    assert entries(tmp_path)[-1]["kind"] == "Completed"


@pytest.mark.parametrize("leave_at", [2, STEPS + 2, 2 * STEPS])
def test_after_an_exit_it_goes_on_without_init_and_without_checkpoint_0(
    join: Join, tmp_path: Path, leave_at: int
) -> None:
    left = Script(join(), tmp_path)
    left.leave_at = leave_at
    with pytest.raises(Exit):
        left.run()
    made = len(commits(tmp_path))
    script = Script(join(), tmp_path)
    assert script.run() == 3
    done = leave_at // STEPS
    assert script.phases == [*(("epoch", number) for number in range(done + 1, 4)), *ENDED]
    assert (0, 0) not in commits(tmp_path)[made:]
    assert commits(tmp_path)[-1] == (3 * STEPS, 3)
    undisturbed = Script(Session.from_env(tmp_path / "other"), tmp_path / "other")
    undisturbed.run()
    undisturbed.session.close()
    assert torch.equal(undisturbed.net.weight, script.net.weight)


def test_stop_conditions_are_asked_after_an_epoch_and_before_its_commit(join: Join, tmp_path: Path) -> None:
    asked: list[tuple[int, int]] = []

    def plateau() -> bool:
        asked.append(commits(tmp_path)[-1])
        return len(asked) == 2

    script = Script(join(), tmp_path, stop=[plateau], epochs=None)
    assert script.run() == 2
    assert asked == [(0, 0), (STEPS, 1)]
    assert commits(tmp_path)[-1] == (2 * STEPS, 2)
    assert entries(tmp_path)[-1]["goal"] == {"stop": ["plateau"]}


def test_an_epoch_is_resumed_from_once_and_init_is_left_out(join: Join, tmp_path: Path) -> None:
    Script(join(), tmp_path).run()
    for phases in ([("epoch", 2), ("epoch", 3), *ENDED], []):
        script = Script(join(), tmp_path)
        assert script.run(resume_from_epoch=1) == 3
        assert script.phases == (phases or [("upload", 3)]), "the same words change nothing the second time"
    with pytest.raises(UserError, match="has no commit of epoch 9"):
        Script(join(), tmp_path).run(resume_from_epoch=9)


def test_an_upload_that_fails_completes_nothing_and_is_done_again_alone(join: Join, tmp_path: Path) -> None:
    def refused(_: int) -> None:
        raise OSError("the bucket is full")

    with pytest.raises(OSError, match="full"):
        Script(join(), tmp_path, upload=refused).run()
    assert entries(tmp_path)[-1]["kind"] == "Committed"
    script = Script(join(), tmp_path)
    assert script.run() == 3
    assert script.phases == ENDED
    assert entries(tmp_path)[-1]["kind"] == "Completed"


def test_a_job_that_nothing_could_end_is_refused_before_anything_is_opened(join: Join, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing would ever end this loop"):
        Script(join(), tmp_path, epochs=None).run()
    assert entries(tmp_path) == []


def test_reports_have_their_last_call(join: Join, tmp_path: Path) -> None:
    called: list[int] = []
    session = join()

    def report() -> None:
        called.append(session.steps_done)

    Script(session, tmp_path, reports=[(3600.0, report)], epochs=1).run()
    assert called == [STEPS]


def test_a_session_runs_one_job(join: Join, tmp_path: Path) -> None:
    script = Script(join(), tmp_path)
    with script.session:
        script.job.run(script.session)
        with pytest.raises(UserError, match="training is restored already"):
            script.job.run(script.session)


RANKS = """
import json, torch, perdure

def told(*words):
    print("told", json.dumps([session.rank, *words]), flush=True)

def epoch(number):
    for inputs, in batches:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        session.step()
    told("epoch", number)

with perdure.Session.from_env() as session:
    model = session.wrap(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session.register(model=model, optimizer=optimizer)
    batches = session.loader(torch.utils.data.TensorDataset(torch.ones(20, 4)), batch_size=4)
    perdure.Job(
        init=lambda: told("init"),
        epoch=epoch,
        upload=lambda number: told("upload", number),
        collect=lambda tensors: told("collect", len(list(tensors))),
        exit=lambda: told("exit"),
        stop=[perdure.max_steps(10)],
    ).run(session)
"""


def test_two_ranks_leave_in_an_epoch_and_one_goes_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)

    def told(output: str) -> list[list[Any]]:
        return [json.loads(line) for line in re.findall(r"^told (.*)", output, re.M)]

    with forked_ranks():
        left = processes(2, "train.py", root=tmp_path / "root", folder=tmp_path, exit_at=6)
    assert (left.outcome, left.step) == ("checkpointed", 7)
    assert [told(rank.output) for rank in left.ranks] == [[[n, "init"], [n, "epoch", 1]] for n in (0, 1)]
    slow = re.findall(
        r"epoch (\d), step (\d): commit \d+ of 2 ranks, longest .* s on rank [01], ", left.ranks[0].output
    )
    assert slow == [("0", "0"), ("1", "5"), ("1", "7")]
    assert " longest " not in left.ranks[1].output
    with forked_ranks():
        ended = processes(1, "train.py", root=tmp_path / "root", folder=tmp_path)
    assert (ended.outcome, ended.step, ended.epoch) == ("completed", 10, 2)
    assert told(ended.ranks[0].output) == [[0, "epoch", 2], [0, "upload", 2], [0, "collect", 2], [0, "exit"]]
