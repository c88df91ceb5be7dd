"""Real ranks for tests: a few processes that import torch once and then play scenario after scenario together.

`play` is called by tests; the processes are this module run as a program. A scenario is a function of
tests.unit.runtime.session.scenarios; what it returns (JSON), or the error it raised, comes back by rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[4]
SECONDS = 900
"""All scenarios together; a rank that hangs fails the test that asks for its result."""
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Scene:
    """One function, played by the first `world` processes."""

    name: str
    function: str
    world: int
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)


def play(folder: Path, scenes: list[Scene]) -> dict[str, list[Any]]:
    """Results by scene and rank; a rank that raised has {"raised": class, "message": ..., "outcome": ...}."""
    script = [{**vars(scene), "port": _free_port()} for scene in scenes]
    (folder / "script.json").write_text(json.dumps(script, default=dict))
    world = max(scene.world for scene in scenes)
    processes = [_start(folder, rank) for rank in range(world)]
    outputs = []
    try:
        outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return {scene.name: [_result(folder, scene, rank, outputs) for rank in range(scene.world)] for scene in scenes}


def _start(folder: Path, rank: int) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "tests.unit.runtime.session.ranks", str(folder), str(rank)]
    return subprocess.Popen(
        command, cwd=REPOSITORY, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _result(folder: Path, scene: Scene, rank: int, outputs: list[str]) -> Any:
    path = folder / f"{scene.name}-{rank}.json"
    return json.loads(path.read_text()) if path.exists() else {"missing": outputs[rank][-4000:]}


def _free_port() -> int:
    """Below the ports that the kernel hands out by itself: gloo's own sockets would take it before it is used."""
    while True:
        port = random.randrange(20000, 30000)  # noqa: S311
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("", port))
            return port


def _die_with_parent() -> None:
    """A test run that is killed leaves nobody behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _main(folder: Path, rank: int) -> None:
    _die_with_parent()
    scenarios = importlib.import_module("tests.unit.runtime.session.scenarios")
    for scene in json.loads((folder / "script.json").read_text()):
        if rank >= scene["world"]:
            continue
        ranks = {"RANK": rank, "WORLD_SIZE": scene["world"], "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": scene["port"]}
        mine = {name: str(value) for name, value in (ranks | scene["environ"]).items()}
        os.environ.update(mine)
        result = _play(getattr(scenarios, scene["function"]), scene["arguments"])
        (folder / f"{scene['name']}-{rank}.json").write_text(json.dumps(result))
        for name in mine:
            del os.environ[name]


def _play(function: Any, arguments: dict[str, Any]) -> Any:
    from perdure.session.reporting import classify

    try:
        return function(**arguments)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        outcome, failure = classify(error)
        told = {"raised": type(error).__name__, "message": str(error), "outcome": outcome.value}
        return told | {"blamed": failure is not None, "trace": traceback.format_exc()[-3000:]}


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))
