"""What a session says it is about to do: alone and on two ranks, before, in and after a training; and the command."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import perdure
from e2e.harness.local_run import free_port
from perdure import Session, UserError
from perdure.cli.main import main
from perdure.session.description import LoaderDescription, Loop, Moment, Registered, StartPoint
from perdure.testing import processes
from tests.support.forked import Forked, ForkedLauncher, forked_ranks
from tests.unit.runtime.records import entries
from tests.unit.runtime.session.training import Join, Training, samples

REPOSITORY = Path(__file__).parents[4]
DIGITS = REPOSITORY / "examples" / "digits" / "train.py"
PAGE = REPOSITORY / "docs" / "how-to" / "describe.md"
PERDURE = str(Path(sys.executable).parent / "perdure")
SECONDS = 120


def warm_start() -> None:
    """A hook."""


def good_enough() -> bool:
    return False


def files(root: Path) -> dict[str, tuple[int, int]]:
    """All that lies there, and when it was written."""
    found = sorted(root.rglob("*")) if root.exists() else []
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in found}


class TestBeforeTraining:
    def test_it_says_what_the_script_has_made_and_what_the_environment_says(self, join: Join, tmp_path: Path) -> None:
        session = join(
            {"exit_file": "/tmp/stop.json", "seed": 7},  # noqa: S108
            EVERY_STEPS="50",
            EVERY_EPOCHS="1",
            KEEP="2",
            KEEP_EVERY_STEPS="900",
        )
        Training(session)
        session.loader(samples(), 16, name="valid", shuffle=False, drop_last=True)
        session.steps(12)
        session.on("init", warm_start)
        session.on("epoch", lambda _: None)

        found = perdure.describe(session)

        assert (found.root, found.rank, found.world, found.device) == (tmp_path.as_uri(), 0, 1, "cpu")
        assert (found.seed, found.deterministic, found.keep, found.keep_every) == (7, False, 2, 900)
        assert "2 are kept, and the first of every 900 steps" in str(found)
        assert found.every == {"steps": 50, "epochs": 1}
        assert found.exits == ("SIGTERM", "Ctrl-C", "the file /tmp/stop.json")
        assert found.start == StartPoint(1, False, 0, 0)
        assert found.loop is None
        assert [phase.name for phase in found.phases] == ["init", "epoch"]
        assert found.phases[0] == Moment("init", ("warm_start",))
        assert found.loaders == (
            LoaderDescription("train", 5, 40, 8, (8,), shuffle=True, drop_last=False),
            LoaderDescription("valid", 2, 40, 16, (16,), shuffle=False, drop_last=True),
            LoaderDescription("steps", 12, None, 1, (), shuffle=False, drop_last=False),
        )
        numbers = 4 * 8 + 8 + 8 + 1
        assert found.registered == (
            Registered("net", "Sequential", 4, 4 * numbers, numbers, numbers),
            Registered("optimizer", "Adam", 0, 0),
        )
        assert json.loads(json.dumps(found.plain()))["registered"][0]["bytes"] == 4 * numbers

    def test_the_text_says_all_of_it(self, join: Join, tmp_path: Path) -> None:
        session = join(EVERY_STEPS="50", EVERY_EPOCHS="1")
        training = Training(session)
        for parameter in training.net[0].parameters():
            parameter.requires_grad_(False)
        session.loader(samples(), 16, name="valid", shuffle=False, drop_last=True)
        session.on("init", warm_start)
        assert str(perdure.describe(session)) == textwrap.dedent(f"""\
            {tmp_path.as_uri()}, 1 rank on cpu, seed 0
              run 1 would start afresh, step 0
              a checkpoint every 50 steps and every 1 epochs; 3 are kept
              saves and leaves on SIGTERM, Ctrl-C
              epochs
                epochs() is not called yet
              hooks
                init  warm_start
              loaders
                train  40 samples, shuffled: 5 batches of 8 an epoch, all on the one rank
                valid  40 samples, without a ragged end: 2 batches of 16 an epoch, all on the one rank
              registered
                net        Sequential, 49 parameters, 9 of them trained, 4 tensors, 196 B
                optimizer  Adam, no tensor
              findings: none""")

    def test_nothing_is_written_and_the_training_is_the_same(self, join: Join, tmp_path: Path) -> None:
        undisturbed = Training(Session.from_env(tmp_path / "other"))
        undisturbed.run()
        undisturbed.session.close()
        session = join()
        training = Training(session)
        before = random.getstate()
        perdure.describe(session)
        assert random.getstate() == before
        assert files(tmp_path / "log") == {}
        assert training.run().weights == undisturbed.weights
        assert [drawn[0] for drawn in training.draws] == [drawn[0] for drawn in undisturbed.draws]

    def test_tied_weights_and_wrapped_models_are_counted_once(self, join: Join) -> None:
        session = join()
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
        model[1].weight = model[0].weight
        session.register(model=session.wrap(model))
        assert perdure.describe(session).registered == (Registered("model", "Sequential", 1, 64, 16, 16),)

    def test_what_the_opening_would_refuse_is_refused(self, join: Join) -> None:
        Training(join()).run()
        session = join({"resume_from": {"epoch": 9}})
        with pytest.raises(UserError, match="has no commit of epoch 9"):
            perdure.describe(session)


class TestOfATraining:
    def test_before_a_restart_it_says_which_commit_comes_next(self, join: Join, tmp_path: Path) -> None:
        Training(join()).left(stop=7)
        last = entries(tmp_path)[-1]
        session = join()
        training = Training(session)
        before = files(tmp_path)

        start = perdure.describe(session).start

        assert files(tmp_path) == before
        assert start == StartPoint(2, False, last["step"], last["epoch"], last["seq"], "", last["time"])
        assert str(start) == f"run 2 would resume from entry {last['seq']}, step 7, epoch 1, made {last['time']}"
        training.run()
        assert next(entry for entry in entries(tmp_path) if entry["run"] == 2)["resumes"] == start.commit

    def test_in_an_epoch_it_says_where_it_stands_and_what_ends_it(self, join: Join) -> None:
        session = join()
        perdure.stop_when(session, "plateau", good_enough)
        training, told = Training(session), []
        with session:
            for _ in session.epochs(2, stop=[good_enough, perdure.max_seconds(600)], max_steps=99):
                for inputs, _ in training.batches:
                    training.net(inputs).square().mean().backward()
                    training.optimizer.step()
                    session.step()
                session.save()
                told.append(perdure.describe(session))
        conditions = ("plateau", "good_enough")
        limits = {"epochs": 2, "max_steps": 99, "max_seconds": 600}
        assert told[1].loop == Loop(1, limits, conditions, 1)
        assert told[1].start.opened
        assert (told[1].start.run, told[1].start.step, told[1].start.epoch) == (1, 10, 1)
        assert told[0].start.commit is None
        assert told[1].start.commit is not None
        text = "loop 1 ends at epochs 2 or max_steps 99 or max_seconds 600 or plateau or good_enough; epochs done: 1"
        assert str(told[1].loop) == text
        adam = next(thing for thing in told[0].registered if thing.name == "optimizer")
        assert (adam.tensors, adam.bytes) == (3 * 4, 2 * 49 * 4 + 4 * 4), "its state has come"

    def test_while_it_leaves_it_can_be_asked(self, join: Join, tmp_path: Path) -> None:
        session = join()
        told: list[StartPoint] = []
        session.on("leaving", lambda _: told.append(perdure.describe(session).start))
        Training(session).left(stop=3)
        assert (told[0].step, told[0].commit) == (3, entries(tmp_path)[-1]["seq"])

    def test_of_a_complete_one_it_says_the_goal(self, join: Join) -> None:
        Training(join()).run()
        session = join()
        Training(session)
        start = perdure.describe(session).start
        assert start.goal == {"epochs": 2}
        assert str(start).startswith("already complete: epochs 2; entry ")

    def test_of_another_root_it_names_that_root(self, join: Join, tmp_path: Path) -> None:
        other = tmp_path / "other"
        first = Training(Session.from_env(other))
        first.run(epochs=1)
        first.session.close()
        start = perdure.describe(join({"resume_from": {"uri": str(other)}})).start
        assert (start.run, start.step, start.uri) == (1, 5, other.as_uri())
        assert f" of {other.as_uri()}, step 5" in str(start)


ON_RANK_1 = """
import json, torch, perdure
with perdure.Session.from_env() as session:
    model = session.wrap(torch.nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters())
    session.register(model=model, optimizer=optimizer)
    train = session.loader(torch.utils.data.TensorDataset(torch.ones(20, 4)), batch_size=5)
    for epoch in session.epochs(2):
        for inputs, in train:
            model(inputs).sum().backward()
            optimizer.step()
            session.step()
            if session.rank == session.world - 1:
                found = perdure.describe(session).plain()
                print(json.dumps([found["rank"], found["loaders"][0]["shares"], found["start"]["step"]]), flush=True)
"""


def test_one_rank_may_ask_alone_before_an_exit_and_after_a_restart_with_another_number(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ON_RANK_1)

    def told(output: str) -> list[Any]:
        return [json.loads(line) for line in output.splitlines() if line.startswith("[")]

    with forked_ranks():
        left = processes(2, "train.py", root=tmp_path / "root", folder=tmp_path, exit_at=2)
        ended = processes(1, "train.py", root=tmp_path / "root", folder=tmp_path)
    assert (left.outcome, left.step, ended.outcome, ended.step) == ("checkpointed", 3, "completed", 8)
    assert told(left.ranks[1].output) == [[1, [3, 2], step] for step in (1, 2, 3)]
    assert told(ended.ranks[0].output) == [[0, [5], step] for step in range(4, 9)]


SCRIPT = """
import torch, perdure
print("the script's own words")
session = perdure.Session.from_env()
model = session.wrap(torch.nn.Linear(4, 2))
optimizer = torch.optim.Adam(model.parameters())
session.register(model=model, optimizer=optimizer)
for name in ("init", "resumed", "epoch", "committed", "leaving", "collect", "exit"):
    session.on(name, lambda *_, name=name: print("called", name))
perdure.report_every(session, 3600, lambda: print("called the report"))
perdure.restore(session)
session.save()
for epoch in session.epochs(3):
    for inputs, in session.loader(torch.utils.data.TensorDataset(torch.ones(20, 4)), batch_size=5):
        print("a batch")
        model(inputs).sum().backward()
        optimizer.step()
        session.step()
print("behind the loop")
"""


def cli(*arguments: str | Path, folder: Path) -> Any:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    return subprocess.run(
        [PERDURE, *map(str, arguments)],
        cwd=folder,
        env={**inherited, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli_here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """The same command in this process; what it starts is forked from a process that has imported torch."""

    def run(command: Sequence[str], env: Mapping[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
        del options["check"]
        start = ForkedLauncher if "torch.distributed.run" in command else Forked
        with start(command[1:], python=command[0], cwd=Path.cwd(), env=env, **options) as process:
            return subprocess.CompletedProcess(command, process.wait(SECONDS))

    def cli_here(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "run", run)
            patch.setenv("OMP_NUM_THREADS", "1")
            patch.chdir(folder)
            status = main(arguments)
        return subprocess.CompletedProcess(arguments, status, *capfd.readouterr())

    return cli_here


def train(folder: Path, environ: Mapping[str, str]) -> int:
    """The script's exit status; it is forked."""
    with Forked(["train.py"], cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1", **environ}) as process:
        return process.wait(SECONDS)


class TestCommand:
    def test_a_script_is_described_up_to_its_first_batch_and_nothing_is_written(self, tmp_path: Path) -> None:
        (tmp_path / "train.py").write_text(SCRIPT)
        before = files(tmp_path)
        done = cli("describe", "--json", "--", sys.executable, "train.py", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert done.stderr == "the script's own words\n"
        assert files(tmp_path) == before
        assert found["start"] == {**found["start"], "run": 1, "opened": False, "commit": None}
        assert [loader["name"] for loader in found["loaders"]] == ["train"], "it is made in the loop"
        assert found["loop"]["limits"] == {"epochs": 3}
        assert len(found["phases"]) == 7

    def test_of_an_interrupted_training_it_says_what_the_next_run_then_does(
        self, tmp_path: Path, cli_here: Cli
    ) -> None:
        (tmp_path / "train.py").write_text(SCRIPT)
        command = [sys.executable, "train.py"]
        assert train(tmp_path, {"PERDURE_EXIT_AT_STEP": "6"}) == 75, "saved, and not done"
        root = tmp_path / "checkpoints"
        before, last = files(root), entries(root)[-1]

        done = cli_here("describe", "--", *command, folder=tmp_path)

        assert done.returncode == 0, done.stderr
        assert files(root) == before
        assert f"run 2 would resume from entry {last['seq']}, step 6, epoch 1, made {last['time']}" in done.stdout
        assert "loop 1 ends at epochs 3; epochs done: 1" in done.stdout
        assert train(tmp_path, {}) == 0
        assert entries(root)[-1]["step"] == 12
        complete = cli_here("describe", "--", *command, folder=tmp_path)
        assert complete.returncode == 0, complete.stderr
        assert "already complete: epochs 3; entry" in complete.stdout
        assert "behind the loop" not in complete.stderr, "an export would be of weights that are not restored"

    def test_of_two_ranks_it_says_both_shares_once(
        self, tmp_path: Path, cli_here: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "train.py").write_text(SCRIPT)
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        ports = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
        done = cli_here("describe", "--", *torchrun, *ports, "train.py", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "2 ranks on cpu" in done.stdout
        assert (
            "20 samples, shuffled: 4 batches of 5 an epoch, 3 on the first of 2 ranks, 2 on the others" in done.stdout
        )
        assert files(tmp_path / "checkpoints") == {}

    def test_the_page_shows_what_it_prints(self, tmp_path: Path, cli_here: Cli) -> None:
        (shown,) = re.findall(
            r"^\$ perdure describe -- python train\.py --epochs 20\n(.*?)^```", PAGE.read_text(), re.M | re.S
        )
        (tmp_path / "train.py").write_text(DIGITS.read_text())
        done = cli_here("describe", "--", sys.executable, "train.py", "--epochs", "20", folder=tmp_path)
        assert done.stdout.replace(tmp_path.as_uri(), "file:///…") == shown

    def test_a_script_that_fails_has_nothing_to_describe(self, tmp_path: Path, cli_here: Cli) -> None:
        (tmp_path / "train.py").write_text(
            "import perdure\nsession = perdure.Session.from_env()\nsession.register(m=3)\n"
        )
        done = cli_here("describe", "--", sys.executable, "train.py", folder=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert "a int has no state_dict" in done.stderr
        assert "ended with status 1 before its first batch, and no session has said" in done.stderr

    def test_a_command_that_is_none_is_refused(self, tmp_path: Path) -> None:
        done = cli("describe", "--", "no-such-command", folder=tmp_path)
        assert done.returncode == 2
        assert "no-such-command cannot be started" in done.stderr
        assert cli("describe", folder=tmp_path).returncode == 2

    def test_a_script_that_catches_the_exit_gets_no_batch_all_the_same(self, tmp_path: Path, cli_here: Cli) -> None:
        loop = SCRIPT[SCRIPT.index("for epoch in") : SCRIPT.index('print("behind')]
        caught = f"try:\n{textwrap.indent(loop, '    ')}except SystemExit:\n    print('caught')\n"
        (tmp_path / "train.py").write_text(SCRIPT.replace(loop, caught + loop))
        done = cli_here("describe", "--", sys.executable, "train.py", folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, "the script's own words\ncaught\n")
        assert files(tmp_path / "checkpoints") == {}


def test_torch_is_not_needed_for_the_command() -> None:
    code = "import sys, perdure.cli.main, perdure.cli.describe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
