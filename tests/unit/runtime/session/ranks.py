"""Real ranks for tests: a few processes, forked from one that has imported torch, play scenes one after the other.

`play` is called by tests; the one process is this module run as a program. A scenario is a function of
tests.unit.runtime.session.scenarios, or of the module that is named; what it returns (JSON), or the error it raised,
comes back by rank.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from e2e.harness.local_run import free_port
from tests.support.forked import Forked
from tests.support.forks import die_with_parent

REPOSITORY = Path(__file__).parents[4]
SECONDS = 900
"""All scenarios together; a rank that hangs fails the test that asks for its result."""
SLOW_SECONDS = 120
"""Of a scene that takes longer a rank's output says where it stands."""


@dataclass(frozen=True)
class Scene:
    """One function, played by the first `world` processes."""

    name: str
    function: str
    world: int
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    module: str = "tests.unit.runtime.session.scenarios"


def play(folder: Path, scenes: list[Scene]) -> dict[str, list[Any]]:
    """Results by scene and rank; a rank that raised has {"raised": class, "message": ..., "outcome": ...}."""
    script = [{**vars(scene), "port": free_port()} for scene in scenes]
    (folder / "script.json").write_text(json.dumps(script, default=dict))
    world = max(scene.world for scene in scenes)
    ranks = _start(folder, world)
    try:
        ranks.wait(timeout=SECONDS)
    finally:
        ranks.kill()
        ranks.wait()
    return {scene.name: [_result(folder, scene, rank) for rank in range(scene.world)] for scene in scenes}


def _start(folder: Path, world: int) -> Forked:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    environ |= {"OMP_NUM_THREADS": "1"}
    command = ["-m", "tests.unit.runtime.session.ranks", str(folder), str(world)]
    return Forked(command, cwd=REPOSITORY, env=environ)


def _output(folder: Path, rank: int) -> Path:
    return folder / f"output-{rank}"


def _result(folder: Path, scene: Scene, rank: int) -> Any:
    path = folder / f"{scene.name}-{rank}.json"
    return json.loads(path.read_text()) if path.exists() else {"missing": _output(folder, rank).read_text()[-4000:]}


def _fork(folder: Path, world: int) -> None:
    """Waits for all ranks; killing this process kills them."""
    die_with_parent()
    scenes = json.loads((folder / "script.json").read_text())
    for module in {scene["module"] for scene in scenes}:
        importlib.import_module(module)
    importlib.import_module("torch._dynamo")  # else each rank does at its first optimizer
    gc.collect()
    gc.freeze()
    for rank in range(world):
        if os.fork() == 0:
            _main(folder, rank, scenes)
    for _ in range(world):
        os.wait()


def _main(folder: Path, rank: int, scenes: list[dict[str, Any]]) -> NoReturn:
    try:
        die_with_parent()
        with _output(folder, rank).open("wb") as output:
            os.dup2(output.fileno(), sys.stdout.fileno())
            os.dup2(output.fileno(), sys.stderr.fileno())
        for scene in scenes:
            if rank < scene["world"]:
                _play_one(folder, rank, scene)
    except BaseException:  # noqa: BLE001 - a forked process must not go on as its parent would
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)


def _play_one(folder: Path, rank: int, scene: dict[str, Any]) -> None:
    ranks = {"RANK": rank, "WORLD_SIZE": scene["world"], "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": scene["port"]}
    mine = {name: str(value) for name, value in (ranks | scene["environ"]).items()}
    os.environ.update(mine)
    print(f"-- scene {scene['name']}", file=sys.stderr, flush=True)
    faulthandler.dump_traceback_later(SLOW_SECONDS)
    result = _play(getattr(sys.modules[scene["module"]], scene["function"]), scene["arguments"])
    faulthandler.cancel_dump_traceback_later()
    (folder / f"{scene['name']}-{rank}.json").write_text(json.dumps(result))
    for name in mine:
        del os.environ[name]
    sys.excepthook = sys.__excepthook__  # torch's, one for each process group, keeps the Session and its model
    gc.collect()  # a Session searches all objects


def _play(function: Any, arguments: dict[str, Any]) -> Any:
    from perdure.loop.reporting import classify

    try:
        return function(**arguments)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        outcome, failure = classify(error)
        told = {"raised": type(error).__name__, "message": str(error), "outcome": outcome.value}
        return told | {"blamed": failure is not None, "trace": traceback.format_exc()[-3000:]}


if __name__ == "__main__":
    _fork(Path(sys.argv[1]), int(sys.argv[2]))
