"""The cost of a live hand-over: processes on this machine, no agents, no cluster; how long training stops, and why.

The pause is from a stayer's last step of the older run to its first batch of the newer one, with its parts: of the rank
that waits longest. It may include waiting for another rank to finish the same step, so the bench also reports the time
without any training: from the last rank's end of that step until all are at the next. Beside it: the cost of the same
changes if trainers end and begin (e2e.bench.handover_restarts). Sharded models have rows and a baseline of their own
(e2e.bench.sharded).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from e2e.bench import handover_restarts, sharded
from e2e.bench.handover_restarts import Move
from e2e.bench.report import FOLDER, Figure
from e2e.harness.local_run import free_port
from e2e.prepare import Progress
from perdure.live.protocol.parties import PartyRole, attempt_of
from perdure.wire import Handover, Leave, Train, write_handover
from perdure.wire.channel import write_offer

LIMIT = 300
ROUNDS = {"small": 5, "large": 3, "huge": 1}
AGAIN = {"small": 3, "large": 2}
"""Rounds of the other ways; each has its own training."""
ALLOWED = 1.5
ALLOWED_SECONDS = 0.1
PARTS = ("header", "state", "vote", "append", "install")

MOVES = (
    Move("2 to 2, rank 1", 2, 2, (1,), (1,)),
    Move("2 to 2, rank 0", 2, 2, (0,), (0,)),
    Move("2 to 3", 2, 3, (1,), ()),
    Move("3 to 2", 3, 2, (), (2,)),
    Move("4 to 4, two of them", 4, 4, (1, 3), (1, 3)),
)
MOST_RANKS = {"huge": 3}
"""Six processes of that size are too much for most machines."""


def measure(
    progress: Progress,
    rounds: Mapping[str, int] = ROUNDS,
    again: Mapping[str, int] = AGAIN,
    keys: Sequence[str] = (),
) -> tuple[list[Figure], dict[str, Any]]:
    """Every move in turn, several rounds, so that other load affects all of them alike. Then the other ways. With
    `keys`: only sharded models, of these kinds."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = [row for row in sharded.ROWS if row.kind in (keys or sharded.KINDS)]
    parted = [(row, _of_sharded(progress, row, number)) for number in range(sharded.ROUNDS) for row in rows]
    if keys:
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            bandwidth = _bandwidth(Path(folder))
        figures = [_of_gloo(bandwidth), *sharded.figures(parted, bandwidth, PARTS)]
        return figures, {"cores": os.cpu_count(), "rounds": sharded.ROUNDS, "bandwidth": bandwidth}
    found: dict[tuple[str, Move], list[dict[str, float]]] = {}
    for model, times in rounds.items():
        for number in range(times):
            for move in (move for move in MOVES if move.old <= MOST_RANKS.get(model, move.old)):
                progress.say(f"round {number + 1} of {times}: {model} model, {move.name}")
                with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
                    found.setdefault((model, move), []).append(_cost(Path(folder), model, move))
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        bandwidth = _bandwidth(Path(folder))
    others = [move for move in MOVES if move.leavers != (0,)]  # a restarted rank is like any other
    restarts = list(handover_restarts.measure(progress, others, again))
    facts = {"cores": os.cpu_count(), "rounds": dict(rounds), "again": dict(again), "bandwidth": bandwidth}
    return [*_figures(found, bandwidth), *sharded.figures(parted, bandwidth, PARTS), *restarts], facts


def _of_sharded(progress: Progress, row: sharded.Row, number: int) -> dict[str, float]:
    progress.say(f"round {number + 1} of {sharded.ROUNDS}: {row.kind}, {row.move.name}")
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        return _cost(Path(folder), row.kind, row.move)


def _of_gloo(bandwidth: float) -> Figure:
    return Figure("gloo alone, one to one", "MB/s", (bandwidth / 1e6,))


def _figures(found: Mapping[tuple[str, Move], list[dict[str, float]]], bandwidth: float) -> list[Figure]:
    figures = [_of_gloo(bandwidth)]
    for (model, move), costs in found.items():
        name = f"{model}, {move.name}, live"
        pauses = tuple(cost["pause"] * 1e3 for cost in costs)
        sent = costs[0]["bytes"] * len(move.joins)
        bound = (ALLOWED * sent / bandwidth + ALLOWED_SECONDS) * 1e3
        allowed = f"{ALLOWED} x bytes / gloo alone + 100 ms"
        figures.append(Figure(f"{name}: pause", "ms", pauses, bound, allowed))
        nobody = tuple(cost["nobody"] * 1e3 for cost in costs)
        figures.append(Figure(f"{name}: no rank trains", "ms", nobody, bound, allowed))
        extra = tuple(cost["extra"] for cost in costs)
        figures.append(Figure(f"{name}: memory of an old rank", "MiB", extra, 256, "allowed"))
        for part in PARTS:
            samples = tuple(cost.get(part, 0.0) * 1e3 for cost in costs)
            figures.append(Figure(f"{name}: {part}", "ms", samples))
        if move.joins:
            figures.append(Figure(f"{name}: state", "MB", tuple(cost["bytes"] / 1e6 for cost in costs)))
    return figures


def _cost(folder: Path, model: str, move: Move) -> dict[str, float]:
    port, place, master = free_port(), f"127.0.0.1:{free_port()}", free_port()
    block = Handover(1, move.old, move.joins, move.leavers, place, LIMIT, "bench")
    environs = {}
    for party in attempt_of(block, 2).parties:
        if party.part is PartyRole.NEWCOMER:
            told = {"PERDURE_HANDOVER": json.dumps(write_handover(block))}
            environs[f"new{party.new}"] = _rank(2, party.new or 0, move.new, port) | told
            continue
        offer = Leave(2, handover=block)
        if party.new is not None:
            write_offer(folder / f"old{party.old}", Train(2, party.new, move.new, f"127.0.0.1:{port}", handover=block))
        else:
            write_offer(folder / f"old{party.old}", offer)
        environs[f"old{party.old}"] = _rank(1, party.old or 0, move.old, master)
    processes = {name: _start(folder, name, model, environ) for name, environ in environs.items()}
    outputs = {name: process.communicate(timeout=600) for name, process in processes.items()}
    if failed := [name for name, process in processes.items() if process.returncode]:
        raise RuntimeError(f"the bench of {move.name} failed:\n{outputs[failed[0]][1][-3000:]}")
    lines = [line for out, _ in outputs.values() for line in out.splitlines() if line.startswith("{")]
    ranks: list[dict[str, float]] = [json.loads(line) for line in lines]
    stayers = [rank for rank in ranks if "begun" in rank]
    nobody = max(rank["begun"] for rank in stayers) - max(rank["stepped"] for rank in ranks)
    return max(stayers, key=lambda one: one["pause"]) | {"nobody": nobody}


def _bandwidth(folder: Path) -> float:
    """Bytes per second from one process to another, by minimal code."""
    port = free_port()
    started = [_start(folder, f"bare{rank}", "bare", _rank(0, rank, 2, port)) for rank in range(2)]
    outputs = [process.communicate(timeout=600) for process in started]
    if failed := [errors for (_, errors), process in zip(outputs, started, strict=True) if process.returncode]:
        raise RuntimeError(f"gloo alone failed:\n{failed[0][-3000:]}")
    return float(json.loads(outputs[1][0].splitlines()[-1])["bandwidth"])


def _start(folder: Path, name: str, model: str, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PERDURE_")}
    told = {"PERDURE_ROOT": (folder / "root").as_uri(), "PERDURE_HANDOVER_FILE": str(folder / name)}
    argv = [sys.executable, "-m", "e2e.bench.handing", model]
    return subprocess.Popen(
        argv,
        env={**inherited, "OMP_NUM_THREADS": "1", **told, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _rank(run: int, rank: int, world: int, port: int) -> dict[str, str]:
    found = {"PERDURE_RUN": run, "RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port, "PERDURE_CHECK_SECONDS": 0}
    return {name: str(value) for name, value in found.items()} | {"MASTER_ADDR": "127.0.0.1"}
