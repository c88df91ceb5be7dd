"""The warm zygote with real processes: a forked trainer behaves like an executed one, and a sick zygote does no
harm."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.agent.launch import Exec
from perdure.agent.program import Program, Unsuited, read_program
from perdure.agent.zygote import MODULES, Zygote, launcher_for
from perdure.cli.main import main
from perdure.wire import ExitKind, Leave, Standby, Train
from tests.unit.runtime.agent.member import HERE, TRAINER, Member, gone

LIGHT = ["perdure.wire"]
"""As good as torch where the program needs none, and quicker."""
PROGRAMS = HERE / "programs.py"
RUN1 = Train(1, 0, 2, "10.0.0.1:29500")
RUN2 = Train(2, 1, 2, "10.0.0.1:29501", seconds=60, wait=75)
FORKED = "forked from the zygote"


def starts(folder: Path, *command: str, **options: Any) -> tuple[dict[str, Any], str]:
    """What came of the starts of one command, and everything it has written."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, str(HERE / "run_starts.py"), json.dumps(options), *command],
        cwd=folder,
        env=environ | {"OMP_NUM_THREADS": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=120,
        check=True,
    )
    *written, last = done.stdout.splitlines()
    return json.loads(last), re.sub(" at 0x[0-9a-f]+>", ">", "\n".join(written))


def alike(folder: Path, *command: str, modules: list[str] = LIGHT) -> tuple[list[int], str]:
    """What a program does however it was started."""
    executed, by_exec = starts(folder, *command)
    forked, by_fork = starts(folder, *command, modules=modules)
    assert forked["hows"] == [FORKED]
    assert (forked["statuses"], by_fork) == (executed["statuses"], by_exec)
    return executed["statuses"], by_exec


class TestAForkedTrainerIsAsAnExecutedOne:
    @pytest.mark.parametrize("options", [[], ["-u"]], ids=["buffered", "unbuffered"])
    def test_in_all_that_surrounds_a_script(self, tmp_path: Path, options: list[str]) -> None:
        assert alike(tmp_path, sys.executable, *options, str(PROGRAMS), "surroundings", "--lr", "1")[0] == [0]

    @pytest.mark.parametrize("options", [["-m"], ["-u", "-m"]], ids=["buffered", "unbuffered"])
    def test_in_all_that_surrounds_a_module(self, tmp_path: Path, options: list[str]) -> None:
        (tmp_path / "package").mkdir()
        shutil.copy(PROGRAMS, tmp_path / "package" / "programs.py")
        assert alike(tmp_path, sys.executable, *options, "package.programs", "surroundings")[0] == [0]

    @pytest.mark.parametrize(
        ("kind", "status", "written"),
        [
            ("status", 3, ""),
            ("message", 1, "the last words"),
            ("at_once", 7, ""),
            ("caused", 1, "RuntimeError: after it"),
            ("killed", -signal.SIGKILL, ""),
            ("terminated", -signal.SIGTERM, ""),
            ("handled", 5, ""),
            ("hooked", 1, "<class 'ValueError'>"),
            ("unraisable", 0, "ValueError: in __del__"),
            ("order", 0, "script\nthread 1\nlast registered 2\nfirst registered"),
            ("remembered", 1, "<class 'ValueError'> boom"),
            ("closed", 120, ""),
        ],
    )
    def test_in_how_it_ends(self, tmp_path: Path, kind: str, status: int, written: str) -> None:
        statuses, text = alike(tmp_path, sys.executable, str(PROGRAMS), kind)
        assert statuses == [status]
        assert written in text

    def test_in_the_processes_that_it_starts_itself(self, tmp_path: Path) -> None:
        _, text = alike(tmp_path, sys.executable, str(PROGRAMS), "processes")
        assert text.split("\n")[:3] == [f"{method} [2, 4]" for method in ("fork", "spawn", "forkserver")]

    def test_in_the_files_that_it_finds(self, tmp_path: Path) -> None:
        """The script's folder comes first for imports, the working directory for other files."""
        scripts = tmp_path / "scripts"
        scripts.mkdir()
        shutil.copy(PROGRAMS, scripts / "programs.py")
        (scripts / "beside.py").write_text("WORD = 'found'\n")
        (tmp_path / "beside.py").write_text("WORD = 'the wrong one'\n")
        (tmp_path / "data.txt").write_text("data")
        assert "found data" in alike(tmp_path, sys.executable, "scripts/programs.py", "neighbours")[1]

    def test_where_its_source_is_no_python(self, tmp_path: Path) -> None:
        (tmp_path / "broken.py").write_text("def f(:\n")
        assert alike(tmp_path, sys.executable, "broken.py")[0] == [1]

    def test_with_torch_imported_before_the_fork(self, tmp_path: Path) -> None:
        _, text = alike(tmp_path, sys.executable, str(PROGRAMS), "with_torch", modules=["torch"])
        assert text.split("\n")[:2] == ["fork [4, 5, 6]", "spawn [4, 5, 6]"]
        assert "False 134217728.0" in text

    def test_in_what_libraries_say_at_its_end(self, tmp_path: Path) -> None:
        """Some count uncollected objects."""
        (tmp_path / "train.py").write_text("import perdure.session.session, torch._dynamo\n")
        assert alike(tmp_path, sys.executable, "train.py", modules=list(MODULES))[1] == ""


def test_no_two_trainers_draw_the_same_random_numbers(tmp_path: Path) -> None:
    _, text = starts(tmp_path, sys.executable, str(PROGRAMS), "drawn", modules=["torch"], times=2)
    assert len(set(re.findall(r"0\.\d+", text))) == 6


def test_a_forked_trainer_goes_by_the_name_of_its_script(tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text("print(open('/proc/self/comm').read())")
    assert "training.py" in starts(tmp_path, sys.executable, "training.py", modules=LIGHT)[1].splitlines()


UNWOUND = '{"report": "unwound"}'


class TestWhatAForkedTrainerDoesBeforeItTellsThatNothingIsLeft:
    """A process that waits for it may then kill it."""

    def test_it_writes_what_its_interpreters_end_would_have_written(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        try:
            found, text = starts(tmp_path, sys.executable, str(PROGRAMS), "unwritten", modules=LIGHT, cut=True)
            piped = os.read(reader, 4096)
        finally:
            os.close(reader)
        assert (found["reports"], found["statuses"]) == ([UNWOUND], [-signal.SIGKILL])
        told = ["collected", "finalized", "last registered", "logged", "of C"]
        assert sorted(line for line in text.splitlines() if line) == told
        assert piped == b"piped"

    def test_it_calls_the_exit_handlers_of_what_its_zygote_has_imported(self, tmp_path: Path) -> None:
        """loggers, weakref.finalize, multiprocessing; a tracker that ends its run."""
        early = (
            "import atexit, os\natexit.register(lambda: os.write(int(os.environ['PERDURE_REPORT_FD']), b'early\\n'))\n"
        )
        (tmp_path / "early.py").write_text(early)
        (tmp_path / "train.py").write_text("import early\n")
        found, _ = starts(tmp_path, sys.executable, "train.py", modules=["early"], cut=True)
        assert found["reports"] == ["early", UNWOUND]

    def test_it_calls_those_that_came_with_its_interpreter_and_tells_nothing_where_it_cannot(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A sitecustomize that sends its measurements at the end."""
        before = "import atexit, os\natexit.register(lambda: 'NUMBER' in os.environ and print('before all'))\n"
        (tmp_path / "sitecustomize.py").write_text(before)
        (tmp_path / "train.py").write_text("")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), os.pathsep)
        found, text = starts(tmp_path, sys.executable, "train.py", modules=LIGHT, cut=True)
        assert (found["reports"], found["statuses"], found["hows"]) == ([], [0], [FORKED])
        assert "before all" in text
        assert "other exit handlers were registered first" in found["said"][-1]

    def test_only_the_trainer_itself_tells(self, tmp_path: Path) -> None:
        found, _ = starts(tmp_path, sys.executable, str(PROGRAMS), "forking", modules=LIGHT, cut=True)
        assert found["reports"] == ["child", "parent", UNWOUND]


class TestWhatIsExecuted:
    @pytest.mark.parametrize(
        "command",
        [
            ["sh", "-c", "python train.py"],
            ["torchrun", "train.py"],
            [sys.executable],
            [sys.executable, "-c", "print()"],
            [sys.executable, "-"],
            [sys.executable, "-W", "error", "train.py"],
            [sys.executable, "-m"],
            [sys.executable, "-mpdb"],
            ["no-such-program", "train.py"],
        ],
        ids=" ".join,
    )
    def test_a_command_that_is_not_a_plain_start_of_this_interpreter(self, command: list[str]) -> None:
        assert isinstance(read_program(command, os.environ, sys.executable), Unsuited)

    def test_an_interpreter_of_another_environment(self, tmp_path: Path) -> None:
        (tmp_path / "python").symlink_to(sys.executable)
        found = read_program([str(tmp_path / "python"), "train.py"], os.environ, sys.executable)
        assert isinstance(found, Unsuited)
        assert "not the agent's own interpreter" in found.why

    def test_a_script_and_a_module_are_distinguished(self) -> None:
        environ = {"PATH": str(Path(sys.executable).parent)}
        script = read_program(["python", "-u", "train.py", "-m", "x"], environ, sys.executable)
        assert isinstance(script, Program)
        assert (script.argv, script.module, script.unbuffered) == (["train.py", "-m", "x"], False, True)
        module = read_program(["python", "-m", "package.train", "-u"], environ, sys.executable)
        assert isinstance(module, Program)
        assert (module.argv, module.module, module.unbuffered) == (["-m", "-u"], True, False)

    def test_a_member_without_memory_for_a_zygote_may_have_none(self) -> None:
        launcher = launcher_for([sys.executable, "train.py"], {"PERDURE_PRELOAD": "none"}, 1, sys.executable)
        assert isinstance(launcher, Exec)
        (line,) = launcher.log_lines()
        assert line == "there is no zygote: PERDURE_PRELOAD is none: each start executes the command"

    def test_what_a_zygote_imports_follows_the_job(self) -> None:
        environ = {"PERDURE_PRELOAD": "sklearn, mine.models", "PERDURE_ROOT": "s3://bucket/job"}
        launcher = launcher_for([sys.executable, "train.py"], environ, 1, sys.executable)
        assert isinstance(launcher, Zygote)
        wanted = [*MODULES, "perdure.store.s3", "perdure.store.clients", "sklearn", "mine.models"]
        assert launcher._modules == wanted

    def test_a_script_that_is_not_there(self, tmp_path: Path) -> None:
        done, text = starts(tmp_path, sys.executable, "nosuch.py", modules=LIGHT)
        assert (done["statuses"], done["hows"]) == ([2], ["executed: nosuch.py is no file"])
        assert "can't open file" in text


class TestAZygoteThatIsRefused:
    """It ends, the command is executed, and the reason is logged."""

    def why(self, folder: Path, source: str) -> str:
        (folder / "preloaded.py").write_text(source)
        (folder / "train.py").write_text("print('trained')\n")
        done, text = starts(folder, sys.executable, "train.py", modules=["preloaded"])
        assert done["statuses"] == [0]
        assert "trained" in text
        assert done["hows"][0].startswith("executed: ")
        return str(done["said"][-1])

    def test_for_an_import_that_fails(self, tmp_path: Path) -> None:
        assert "preloaded cannot be imported: ValueError: boom" in self.why(tmp_path, "raise ValueError('boom')")

    def test_for_an_import_that_exits(self, tmp_path: Path) -> None:
        assert "preloaded cannot be imported: SystemExit" in self.why(tmp_path, "raise SystemExit(1)")

    def test_for_an_import_that_kills_it(self, tmp_path: Path) -> None:
        source = "import os\nos.kill(os.getpid(), 9)"
        assert "it has ended while it imported" in self.why(tmp_path, source)

    def test_for_threads_that_no_fork_would_have(self, tmp_path: Path) -> None:
        source = "import threading, time\nthreading.Thread(target=time.sleep, args=(99,), name='busy').start()"
        assert "has started threads, which no fork has: busy" in self.why(tmp_path, source)

    def test_for_forks_that_would_hang_in_torch(self, tmp_path: Path) -> None:
        """OpenMP's threads are gone after a fork, and it waits for them forever."""
        source = (
            "import perdure.agent.preload, torch\nperdure.agent.preload.PROBE_SECONDS = 1\ntorch.ones(1 << 20).sum()"
        )
        assert "a fork of it hangs" in self.why(tmp_path, source)


class TestWhatTheScriptImports:
    """It is imported before the fork, where that does no harm."""

    def told(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, sick: str, modules: list[str] = LIGHT
    ) -> tuple[list[str], str]:
        """The log of the zygote of a script that imports a package of this source and a sound one, and the forked
        script's output."""
        installed = folder / "site-packages"
        for name, source in {"alpha": sick, "beta": "import os\nos.environ['BETA'] = 'set'"}.items():
            (installed / name).mkdir(parents=True)
            (installed / name / "__init__.py").write_text(source)
        script = "import os, sys\nprint(*(name in sys.modules for name in ('alpha', 'beta')), os.environ.get('BETA'))\n"
        (folder / "train.py").write_text(f"{script}import beta\ntry:\n    import alpha\nexcept ValueError:\n    pass\n")
        monkeypatch.setenv("PYTHONPATH", f"{installed}:{HERE.parents[3]}")
        done, text = starts(folder, sys.executable, "train.py", modules=modules, reads=True)
        assert (done["statuses"], done["hows"]) == ([0], [FORKED])
        return done["said"], text.splitlines()[0]

    def test_is_imported_already_when_it_begins(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        said, text = self.told(tmp_path, monkeypatch, "")
        assert text == "True True set"
        assert said[0] == "the zygote imports perdure.wire, and what is found in the script"
        assert said[1].endswith(" MiB, with beta, alpha")

    def test_is_imported_with_modules_of_a_package_that_is_imported_without_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        package = tmp_path / "site-packages" / "gamma"
        package.mkdir(parents=True)
        for name in ("__init__.py", "inner.py"):
            (package / name).touch()
        (tmp_path / "train.py").write_text("import sys\nprint('gamma.inner' in sys.modules)\nfrom gamma import inner\n")
        monkeypatch.setenv("PYTHONPATH", f"{package.parent}:{HERE.parents[3]}")
        _, text = starts(tmp_path, sys.executable, "train.py", modules=["gamma"], reads=True)
        assert text.splitlines()[0] == "True"

    @pytest.mark.parametrize(
        ("source", "why"),
        [
            (
                "import threading\nthreading.Thread(target=threading.Event().wait, name='busy', daemon=True).start()",
                "what it imports has started threads, which no fork has: busy",
            ),
            (
                "import _thread, time\n_thread.start_new_thread(time.sleep, (99,))",
                "it has started threads, which no fork has",
            ),
            ("import os\nNAME = int(os.environ.get('RANK', 0))", "it reads RANK when it is imported"),
            ("import os, sys\nFILE = open(__file__)", "it keeps files open"),
        ],
        ids=["threads", "native threads", "its rank", "files"],
    )
    def test_is_left_to_the_script_where_a_fork_could_not_go_on_with_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, why: str
    ) -> None:
        said, text = self.told(tmp_path, monkeypatch, source)
        assert text == "False True set"
        assert f"only trainers import alpha: {why}" in said
        assert said[-1].endswith(" MiB, with beta")

    def test_is_left_to_it_as_a_whole_where_it_kills(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        source = "import os, sys\nif sys.modules['__main__'].__dict__.get('main'): os.kill(os.getpid(), 9)"
        said, text = self.told(tmp_path, monkeypatch, source)
        assert text == "False False None"
        assert "only trainers import what the script imports: it has ended while it imported" in said

    def test_is_left_to_it_where_forks_would_hang(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """OpenMP's threads are gone after a fork, and it waits for them forever."""
        source = (
            "import perdure.agent.preload, torch\nperdure.agent.preload.PROBE_SECONDS = 1\ntorch.ones(1 << 20).sum()"
        )
        said, text = self.told(tmp_path, monkeypatch, source, modules=["torch"])
        assert text.startswith("False ")
        assert any(
            line.startswith(("only trainers import alpha", "only trainers import what the script")) for line in said
        )

    def test_is_passed_over_where_it_cannot_be_imported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        said, text = self.told(tmp_path, monkeypatch, "raise ValueError('boom')")
        assert text == "False True set"
        assert said[-1].endswith(" MiB, with beta")

    def test_is_not_asked_for_where_the_user_has_said_what_to_import(self) -> None:
        for environ, reads in (({}, True), ({"PERDURE_PRELOAD": "sklearn"}, False)):
            launcher = launcher_for([sys.executable, "train.py"], environ, 1, sys.executable)
            assert isinstance(launcher, Zygote)
            assert launcher._reads is reads


def pipe(folder: Path) -> str:
    """Opening it to read blocks until a writer comes."""
    path = folder / "pipe"
    os.mkfifo(path)
    return str(path)


LEAST_PRIORITY = 19


def priority(pid: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, pid)


class TestInAMember:
    def test_each_run_is_forked_and_the_zygote_outlives_them(self, tmp_path: Path) -> None:
        with Member(tmp_path, *TRAINER, "worker_left_behind", modules=LIGHT) as member:
            member.assign(RUN1)
            worker = member.told("worker")
            member.told("training")
            member.assign(RUN2)
            assert member.told("training") == 2
            assert gone(worker)
            member.assign(Leave(3, seconds=60))
            outcome, status = member.outcome()
            assert (outcome.outcome, outcome.run, status) == (ExitKind.CHECKPOINTED, 2, 0)
        # A trainer and its agent write to one log, in any order.
        forked = [line for line in member.log if line.endswith(FORKED)]
        assert forked == [f"perdure: rank 0 of run 1: {FORKED}", f"perdure: rank 1 of run 2: {FORKED}"]

    def test_the_next_trainer_begins_beside_the_interpreters_end_of_one_that_has_saved(self, tmp_path: Path) -> None:
        gate = pipe(tmp_path)
        with Member(tmp_path, *TRAINER, "ends_slowly", gate, modules=LIGHT) as member:
            member.assign(RUN1)
            first = member.told("pid")
            member.assign(RUN2)
            assert member.told("training") == 1
            assert member.told("training") == 2
            assert not gone(first)
            assert priority(first) == LEAST_PRIORITY
            Path(gate).write_text("")
            member.waits_until(lambda: gone(first))
            member.assign(Leave(3, seconds=60))
            member.told("asked")
            Path(gate).write_text("")
            outcome, status = member.outcome()
            assert (outcome.outcome, outcome.run, status) == (ExitKind.CHECKPOINTED, 2, 0)

    @pytest.mark.parametrize(
        ("has", "told"),
        [("listens", "it listens on port "), ("writes", "it writes to "), ("locks", "it holds a lock on a file")],
    )
    def test_the_next_trainer_waits_for_one_that_has_what_it_could_want(
        self, tmp_path: Path, has: str, told: str
    ) -> None:
        gate = pipe(tmp_path)
        with Member(tmp_path, *TRAINER, "ends_slowly", gate, has, modules=LIGHT) as member:
            member.assign(RUN1)
            first = member.told("pid")
            member.assign(RUN2)
            member.hears(f"run 2 waits for the end of run 1: {told}")
            assert not gone(first)
            assert priority(first) == priority(member.process.pid)
            Path(gate).write_text("")
            member.hears("run 2 starts")
            assert gone(first)

    def test_the_next_trainer_does_not_wait_for_the_ports_of_the_last_ones_process_groups(self, tmp_path: Path) -> None:
        gate = pipe(tmp_path)
        with Member(tmp_path, *TRAINER, "ends_slowly", gate, "shards", modules=list(MODULES)) as member:
            member.assign(RUN1)
            first = member.told("pid")
            member.assign(RUN2)
            assert "starts" in member.hears("perdure: run 2 ")
            assert not gone(first)

    def test_the_next_trainer_waits_for_a_server_beside_process_groups(self, tmp_path: Path) -> None:
        gate = pipe(tmp_path)
        with Member(tmp_path, *TRAINER, "ends_slowly", gate, "shards", "listens", modules=list(MODULES)) as member:
            member.assign(RUN1)
            server = member.told("server")
            member.assign(RUN2)
            member.hears(f"run 2 waits for the end of run 1: it listens on port {server}")

    def test_an_agent_that_is_done_lets_an_older_trainer_end_as_it_likes(self, tmp_path: Path) -> None:
        gate = pipe(tmp_path)
        with Member(tmp_path, *TRAINER, "fails_where_another_ends", gate, modules=LIGHT) as member:
            member.assign(RUN1)
            first = member.told("pid")
            member.assign(RUN2)
            member.hears("exit: failed")
            assert not gone(first)
            assert member.process.poll() is None
            Path(gate).write_text("")
            outcome, status = member.outcome()
            assert (outcome.outcome, outcome.run, status) == (ExitKind.FAILED, 2, 1)

    def test_a_killed_trainer_is_reported_with_its_signal_and_its_stderr(self, tmp_path: Path) -> None:
        with Member(tmp_path, *TRAINER, "raising", modules=LIGHT) as member:
            member.assign(RUN1)
            outcome, status = member.outcome()
            assert outcome.error
            assert (outcome.outcome, outcome.error.name, status) == (ExitKind.FAILED, "1", 1)
            assert outcome.error.tail.endswith("ValueError: boom\n")

    def test_the_processes_of_one_member_are_all_forked(self, tmp_path: Path) -> None:
        with Member(tmp_path, *TRAINER, "drained", processes=2, modules=LIGHT) as member:
            member.assign(RUN1)
            ranks = {member.hears('"training": 1')[-2:-1] for _ in range(2)}
            assert ranks == {"0", "1"}
            member.assign(Leave(2, seconds=60))
            assert member.outcome()[1] == 0

    def test_a_member_is_ready_when_its_zygote_is_warm(self, tmp_path: Path) -> None:
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        (tmp_path / "slow.py").write_text(f"open({str(gate)!r}).read()")
        question = ["warm", "--state", str(tmp_path / "state"), "--seconds", "0"]
        shutil.copy(HERE / "trainer.py", tmp_path)
        with Member(tmp_path, sys.executable, str(tmp_path / "trainer.py"), "drained", modules=["slow"]) as member:
            member.assign(Standby())
            member.hears("waiting as a standby")
            assert main(question) == 1
            gate.write_text("open")
            member.hears("the zygote is warm")
            member.waits_until(lambda: main(question) == 0)

    def test_a_zygote_that_takes_too_long_is_not_waited_for(self, tmp_path: Path) -> None:
        (tmp_path / "slow.py").write_text("import time; time.sleep(1000)")
        shutil.copy(HERE / "trainer.py", tmp_path)
        command = [sys.executable, str(tmp_path / "trainer.py"), "drained"]
        with Member(tmp_path, *command, modules=["slow"], warm_up=0.1) as member:
            member.assign(RUN1)
            member.hears("rank 0 of run 1: executed: the zygote is still importing")
            assert member.told("training") == 1

    def test_without_its_zygote_a_member_executes(self, tmp_path: Path) -> None:
        with Member(tmp_path, *TRAINER, "drained", modules=LIGHT) as member:
            member.assign(Standby())
            member.hears("the zygote is warm")
            os.kill(zygote_of(member), signal.SIGKILL)
            member.hears("there is no zygote: it has ended: each start executes the command")
            member.assign(RUN1)
            member.hears("rank 0 of run 1: executed: it has ended")
            assert member.told("training") == 1

    def test_a_frozen_zygote_is_killed_and_never_starts_a_second_trainer(self, tmp_path: Path) -> None:
        with Member(tmp_path, *TRAINER, "drained", modules=LIGHT, answer_seconds=0.2) as member:
            member.assign(Standby())
            member.hears("the zygote is warm")
            zygote = zygote_of(member)
            os.kill(zygote, signal.SIGSTOP)
            member.assign(RUN1)
            member.hears("rank 0 of run 1: executed: it did not fork within 0.2 s")
            assert member.told("training") == 1
            member.waits_until(lambda: gone(zygote))
            member.assign(Leave(2, seconds=60))
            member.outcome()
            assert sum('"training"' in line for line in member.log) == 1

    def test_a_trainer_outlives_its_zygote(self, tmp_path: Path) -> None:
        with Member(tmp_path, *TRAINER, "drained", modules=LIGHT) as member:
            member.assign(Standby())
            member.hears("the zygote is warm")
            zygote = zygote_of(member)
            member.assign(RUN1)
            member.told("training")
            os.kill(zygote, signal.SIGKILL)
            member.hears("there is no zygote")
            member.assign(Leave(2, seconds=60))
            assert member.outcome()[0].outcome is ExitKind.CHECKPOINTED

    def test_nothing_outlives_a_killed_agent(self, tmp_path: Path) -> None:
        with Member(tmp_path, *TRAINER, "stubborn", modules=LIGHT) as member:
            member.assign(RUN1)
            member.told("training")
            member.process.kill()
            member.silent()


def zygote_of(member: Member) -> int:
    """The only child of an agent that has started no trainer."""
    pid = member.process.pid
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)
