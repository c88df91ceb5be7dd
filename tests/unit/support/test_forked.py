"""A forked process finds the same as an executed one, and its parent sees the same of it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.harness.local_members import LocalMembers
from e2e.harness.local_run import Start, executed
from e2e.harness.root import Root
from perdure.testing import Rank, RanksFailed, processes
from perdure.wire import Outcome
from tests.handover.forking import ENVIRON
from tests.support.forked import MODULES, Executed, Forked, ForkedAgent, ForkedLauncher, forked_ranks

REPOSITORY = Path(__file__).parents[3]
DIGITS = REPOSITORY / "examples" / "digits" / "train.py"

FOUND = """
import json, os, random, signal, sys, threading
signals = {number: str(signal.getsignal(number)) for number in sorted(signal.valid_signals())}
streams = {
    name: [stream.encoding, stream.errors, stream.line_buffering, stream.isatty()]
    for name in ("stdin", "stdout", "stderr") if (stream := getattr(sys, name))
}
files = [int(name) for name in os.listdir("/proc/self/fd")]
files = sorted(file for file in files if os.path.exists(f"/proc/self/fd/{file}"))  # not the listing's own
main = sys.modules["__main__"]
found = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": str(sys.flags), "name": __name__,
    "main": {name: str(getattr(main, name, "none"))[:30] for name in ("__file__", "__package__", "__spec__")},
    "here": vars(main) is globals(), "environ": dict(os.environ), "cwd": os.getcwd(), "umask": os.umask(0o22),
    "signals": signals, "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "streams": streams,
    "files": files, "inherited": [file for file in files if os.get_inheritable(file)], "parent": os.getppid(),
    "group": os.getpgrp(), "session": os.getsid(0), "threads": threading.active_count(), "nice": os.nice(0),
}
print(json.dumps(found))
"""

DRAWN = """
import json, random, numpy, torch
print(json.dumps([torch.get_num_threads(), random.random(), numpy.random.rand(), torch.rand(1).item()]))
"""

IMPORTED = """
import json, sys, torch
print(json.dumps([list(sys.modules), id(torch)]))  # one address in all that are forked from one process
"""

WAYS = (Executed, Forked)

OF_A_TRAINER = """
import atexit, json, os, signal, sys
zygote = open("/proc/self/cmdline").read()
os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)  # imports set it
own = "MASTER_PORT", "PERDURE_REPORT_FD", "PERDURE_STARTED", "PERDURE_IMAGE", "KUBEFLOW_TRAINER_SERVER_URL"
environ = {name: name in own or value for name, value in os.environ.items()}
found = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": str(sys.flags), "name": __name__,
    "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())], "environ": environ,
    "files": len(os.listdir("/proc/self/fd")), "sessions": os.getsid(0) == os.getpid(), "nice": os.nice(0),
}
print("FOUND", json.dumps([found, "forked.py" in zygote]), flush=True)
atexit.register(os.write, 1, b"at the end\\n")
"""


def ended(start: type[Executed], folder: Path, *arguments: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """How it ended, and its output."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    reader, writer = os.pipe()
    with start(
        arguments, cwd=folder, env=environ, pass_fds=[writer], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        os.close(writer)
        said, _ = process.communicate(timeout=300)
    os.close(reader)
    return process.returncode, said


@pytest.mark.parametrize("way", ["-c", "-m", "file"])
def test_it_finds_what_an_executed_process_finds(tmp_path: Path, way: str) -> None:
    (tmp_path / "found.py").write_text(FOUND)
    arguments = {"-c": ["-c", FOUND], "-m": ["-m", "found"], "file": ["found.py"]}[way]
    told = []
    for start in WAYS:
        status, said = ended(start, tmp_path, *arguments, "--lr", "1", env={"PERDURE_X": "1"})
        assert status == 0, said
        told.append(json.loads(said))
    assert told[0] == told[1]
    assert told[0]["parent"] == os.getpid()


def test_a_file_that_it_is_given_stays_open_under_whatever_number(tmp_path: Path) -> None:
    """Also under a number that a file has in the process that forks: there an object owns it, and closes it."""
    script = "import gc, os, sys; gc.collect(); [os.write(int(file), file.encode() + b' ') for file in sys.argv[1:]]"
    environ = {**os.environ, "LC_OF_ITS_OWN": "1"}  # a parent of its own
    with Forked(["-c", ""], cwd=tmp_path, env=environ) as process:
        assert process.wait(timeout=300) == 0
    below, writer = os.pipe()
    reader = fcntl.fcntl(below, fcntl.F_DUPFD, 100)
    os.close(below)
    numbers = [os.dup(writer) for _ in range(20)]  # the lowest free ones: one is that of the parent's own socket
    asked = [str(number) for number in numbers]
    with Forked(["-c", script, *asked], cwd=tmp_path, env=environ, pass_fds=numbers) as process:
        for file in (writer, *numbers):
            os.close(file)
        with os.fdopen(reader) as told:
            assert told.read().split() == asked
        assert process.wait(timeout=300) == 0


class ForkedWithMore(Forked):
    """From a parent that has imported more."""

    _modules = (*MODULES, "wave", "chunk")


def test_a_parent_that_has_imported_more_is_forked_from_the_one_of_its_environment(tmp_path: Path) -> None:
    one, other = (ended(start, tmp_path, "-c", IMPORTED) for start in (Forked, ForkedWithMore))
    (imported, born), (more, again) = (json.loads(said) for _, said in (one, other))
    assert set(more) - set(imported) == {"wave", "chunk"}
    assert again == born, "torch was imported once"


def test_gloo_reads_its_variables_when_it_connects(tmp_path: Path) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    environ = place | {"GLOO_SOCKET_IFNAME": "none-such"}
    script = "import torch.distributed as of; of.init_process_group('gloo')"
    status, said = ended(Forked, tmp_path, "-c", script, env=environ)
    assert (status, "none-such" in said) == (1, True), said


@pytest.mark.parametrize(
    "end",
    [
        "pass",
        "raise ValueError('no room')",
        "sys.exit('no room')",
        "raise SystemExit(3)",
        "raise KeyboardInterrupt",
        "os._exit(4)",
        "os.kill(os.getpid(), 9)",
        "print('unwritten', end=''); atexit.register(print, 'at the end')",
        "sys.excepthook = lambda *_: print('a hook of its own'); 1 / 0",
        "threading.Thread(target=lambda: (time.sleep(0.2), print('a thread'))).start()",
    ],
)
def test_it_ends_as_an_executed_process_does(tmp_path: Path, end: str) -> None:
    (tmp_path / "train.py").write_text(f"import atexit, os, sys, threading, time\ndef main():\n    {end}\nmain()\n")
    one, other = (ended(start, tmp_path, "train.py") for start in WAYS)
    assert one == other


def test_no_two_draw_the_same(tmp_path: Path) -> None:
    told = [json.loads(ended(start, tmp_path, "-c", DRAWN)[1]) for start in (Executed, Forked, Forked)]
    assert {threads for threads, *_ in told} == {1}
    assert len({number for _, *numbers in told for number in numbers}) == 9


def test_a_training_leaves_the_same_log_and_weights(tmp_path: Path) -> None:
    left = []
    for start in WAYS:
        folder = tmp_path / start.__name__
        folder.mkdir()
        environ = {"PERDURE_ROOT": (folder / "root").as_uri(), "PERDURE_TRACE": "1"}
        status, said = ended(start, folder, str(DIGITS), "--epochs", "2", env=environ)
        root = Root(folder / "root")
        left.append(
            (status, said.replace(str(folder), ""), [type(entry) for entry in root.entries()], root.weight_hash())
        )
    assert left[0] == left[1]


def of_a_member(folder: Path, start: Start) -> tuple[dict[str, Any], bool, list[str], Outcome]:
    """What its trainer has found, whether its zygote was forked, what the agent has said, and the outcome."""
    (folder / "train.py").write_text(OF_A_TRAINER)
    with LocalMembers([sys.executable, str(folder / "train.py")], folder, ENVIRON, start=start) as job:
        job.first_run("a")
        outcome = job.members["a"].outcome()
        said = job.members["a"].said
    shutil.rmtree(folder / "a")
    lines = said.splitlines()
    found, forked = next(json.loads(line.removeprefix("FOUND ")) for line in lines if line.startswith("FOUND"))
    words = [re.sub(r"[0-9.]+ s, [0-9]+ MiB|127.0.0.1:[0-9]+", "", line) for line in lines if "FOUND" not in line]
    return found, forked, sorted(words), outcome  # two processes write them


def test_a_forked_agent_s_trainer_finds_and_leaves_what_an_executed_one_s_does(tmp_path: Path) -> None:
    ways = executed, lambda command, **options: ForkedAgent(command[1:], **options)
    (found, forked, said, left), (same, other, again, right) = (of_a_member(tmp_path, way) for way in ways)
    assert (forked, other) == (False, True)
    assert found == same
    assert said == again
    assert "at the end" in said
    assert left == right


def of_a_rank(folder: Path, end: str) -> tuple[dict[str, Any], Rank]:
    """What a rank of perdure.testing.processes has found, and how it has ended."""
    (folder / "train.py").write_text(f"import atexit, os, sys\n{FOUND}\natexit.register(print, 'at the end')\n{end}\n")
    with pytest.raises(RanksFailed) as raised:  # it has no session
        processes(1, "train.py", "--lr", "1", root=folder / "root", folder=folder)
    (rank,) = raised.value.ended.ranks
    first, rest = rank.output.split("\n", 1)
    found = json.loads(first)
    assert found["session"] == found["parent"] != os.getsid(0), "the keeper leads one"
    for name in ("parent", "group", "session", "files", "inherited"):
        del found[name]
    for name in ("MASTER_PORT", "PERDURE_REPORT_FD"):
        del found["environ"][name]
    return found, replace(rank, output=rest)


@pytest.mark.parametrize("end", ["raise ValueError('no room')", "sys.exit(3)", "os.kill(os.getpid(), 15)"])
def test_a_forked_rank_finds_and_leaves_what_an_executed_one_does(tmp_path: Path, end: str) -> None:
    executed_one = of_a_rank(tmp_path, end)
    with forked_ranks():
        assert of_a_rank(tmp_path, end) == executed_one


def of_torchruns_rank(folder: Path, start: type[Executed]) -> tuple[dict[str, Any], int, list[str]]:
    """What it has found, torchrun's exit status, and what else is told of its end."""
    (folder / "train.py").write_text(f"{FOUND}\nprint('unflushed', end=''); os._exit(3)\n")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    status, said = ended(start, folder, *launcher, "train.py", "--lr", "1")
    (line,) = (line for line in said.splitlines() if "orig_argv" in line)
    found, _ = json.JSONDecoder().raw_decode(line[line.index("{") :])
    assert found["session"] == found["group"] != os.getsid(0), "a launcher ends the group of each rank"
    told = ["unflushed" in said, *re.findall(r"exitcode  : .*(?= \(pid)", said)]
    for name in ("parent", "group", "session", "flags", "orig_argv"):  # -u is not told
        del found[name]
    for name in [name for name in found["environ"] if name.startswith(("TORCH", "MASTER_PORT"))]:
        del found["environ"][name]
    return found, status, told


def test_a_rank_of_a_forked_launcher_finds_and_leaves_what_an_executed_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # torchrun asks for it by -u
    executed_one, forked_one = (of_torchruns_rank(tmp_path, start) for start in (Forked, ForkedLauncher))
    assert forked_one == executed_one
    assert forked_one[1:] == (1, [True, "exitcode  : 3"])
