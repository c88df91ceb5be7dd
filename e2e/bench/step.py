"""The cost of `Session.step()` in a training step, with one rank and with two, and of a loader in a pass: no cluster
needed.

In the cases called image a rank is as ready as in a pod: it looks for offers of a hand-over, votes, and could leave an
image at each place where it may stop. They are compared with a loop that has torch's DDP and nothing of ours. A Session
gives up images if copying would take more than its share of a short step: the facts say whether it did.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from e2e.bench.loading import SAMPLES
from e2e.bench.report import Figure
from e2e.harness.local_run import free_port
from e2e.prepare import Progress
from perdure.wire import Env

SECONDS = 600.0
MICRO = 1e6
BOUND = 300.0
LONG, SHORT = 110.0, 15.0
"""Seconds of measuring, about, where two loops are compared and where a call is looked at."""
MOST_OTHERS = 0.05
"""The share of a rank's core that others may take during a round."""
LEAST_ROUNDS = 12
"""If fewer remain, none is left out."""

IMAGE = "2 ranks, image"
CASES = (
    (1, 0.0, "1 rank"),
    (2, 0.0, "2 ranks"),
    (2, 0.002, "2 ranks, 2 ms"),
    (2, 0.02, "2 ranks, 20 ms"),
    (2, 0.002, f"{IMAGE}, 2 ms"),
    (2, 0.02, f"{IMAGE}, 20 ms"),
)
"""Ranks, seconds of work in a step beside the network's own, name."""
MOST = {"2 ranks, 2 ms": 10.0, "2 ranks, 20 ms": 3.0, f"{IMAGE}, 2 ms": 10.0, f"{IMAGE}, 20 ms": 3.0}
"""Percent by which a Session may make such a step longer."""


def measure(progress: Progress) -> tuple[list[Figure], dict[str, Any]]:
    """Every case, bare and with a Session."""
    figures, kept, quiet = [], {}, {}
    for world, seconds, name in CASES:
        progress.say(f"training with {name}, bare and with a Session")
        ranks = _trained(world, seconds, LONG if name in MOST else SHORT, image=name.startswith(IMAGE))
        rounds, quiet[name] = undisturbed(ranks)
        progress.say(f"{name}: {quiet[name]}")
        figures += _figures(name, rounds, ranks[0]["call"])
        if name.startswith(IMAGE):
            kept[name] = bool(ranks[0]["kept"])
    progress.say("loading with workers, bare and with a Session")
    figures += _loading()
    return figures, {"cores": os.cpu_count(), "rounds": quiet, "images until the end": kept}


def undisturbed(ranks: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Rank 0's rounds, except those in which others took a part of some rank's core, whatever the result; in words."""
    rounds = ranks[0]["rounds"]
    others = [max(one["others"] for one in found) for found in zip(*(rank["rounds"] for rank in ranks), strict=True)]
    left = [one for one, part in zip(rounds, others, strict=True) if part <= MOST_OTHERS]
    if len(left) < LEAST_ROUNDS:
        return rounds, f"all {len(rounds)} rounds count, and others took part of a core in {len(rounds) - len(left)}"
    return left, f"{len(left)} of {len(rounds)} rounds count: in the rest others took more than {MOST_OTHERS:.0%}"


def _figures(name: str, rounds: list[dict[str, Any]], call: list[float]) -> list[Figure]:
    bare, ours = (
        tuple(seconds * MICRO for one in rounds for seconds in one["wall"][kind]) for kind in ("bare", "session")
    )
    loop = Figure(f"bare loop, {name}", "us", bare)
    calls = tuple(seconds * MICRO for seconds in call)
    figures = [
        loop,
        Figure(f"loop with Session, {name}", "us", ours, loop.median, "the bare loop's median"),
        Figure(f"Session.step() itself, {name}", "us", calls, BOUND, "what a lagged agreement may cost here"),
    ]
    if name in MOST:
        longer, more = (tuple(_percent(one[kind]) for one in rounds) for kind in ("wall", "cpu"))
        figures.append(Figure(f"a step is longer by, {name}", "%", longer, MOST[name], "bound"))
        figures.append(Figure(f"a step takes more CPU by, {name}", "%", more))
    return figures


def _loading() -> list[Figure]:
    """CPU of a sample, with the numbers of workers of e2e.bench.loading."""
    with tempfile.TemporaryDirectory() as root:
        argv = [sys.executable, "-m", "e2e.bench.loading", root]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"the step bench failed:\n{done.stderr[-2000:]}")
    figures = []
    for kind, turns in json.loads(done.stdout.splitlines()[-1]).items():
        bare, ours = (tuple(seconds * MICRO / SAMPLES for seconds in turns[whose]) for whose in ("bare", "session"))
        loop = Figure(f"CPU of a sample by a DataLoader, {kind}", "us", bare)
        name = f"CPU of a sample by a Session's loader, {kind}"
        figures += [loop, Figure(name, "us", ours, loop.median, "the DataLoader's median")]
    return figures


def _percent(turns: dict[str, list[float]]) -> float:
    """A round's turns with a Session compared with its bare ones: the spread over rounds shows the median's
    precision."""
    return (sum(turns["session"]) / sum(turns["bare"]) - 1) * 100


def _trained(world: int, seconds: float, measuring: float, *, image: bool) -> list[dict[str, Any]]:
    """Run the ranks; returns the output of each."""
    with tempfile.TemporaryDirectory() as root, Path(os.devnull).open("wb") as reports:
        port, told = free_port(), reports if image else None
        places = ({"RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port} for rank in range(world))
        ranks = [_start(place, Path(root), [str(seconds), str(measuring)], told) for place in places]
        outputs = [rank.communicate(timeout=SECONDS) for rank in ranks]
    failed = [errors for rank, (_, errors) in zip(ranks, outputs, strict=True) if rank.returncode]
    if failed:
        raise RuntimeError(f"the step bench failed:\n{failed[0][-2000:]}")
    return [dict(json.loads(output.splitlines()[-1])) for output, _ in outputs]


def _start(place: dict[str, int], root: Path, told: list[str], reports: IO[bytes] | None) -> subprocess.Popen[str]:
    """With `reports`, as an agent starts it."""
    named: dict[str, object] = {"MASTER_ADDR": "127.0.0.1", "PERDURE_EVERY_SECONDS": 3600, "OMP_NUM_THREADS": 1}
    if reports:
        named |= _as_in_a_pod(root / f"rank-{place['RANK']}", reports)
    environ = {**os.environ, **{name: str(value) for name, value in (place | named).items()}}
    argv = [sys.executable, "-m", "e2e.bench.stepping", str(root), *told]
    kept = [reports.fileno()] if reports else []
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env=environ, stdout=pipe, stderr=pipe, text=True, pass_fds=kept)


def _as_in_a_pod(folder: Path, reports: IO[bytes]) -> dict[str, object]:
    """The variables that an agent sets for a trainer."""
    folder.mkdir()
    files = {Env.REQUEST_FILE: "request", Env.HANDOVER_FILE: "handover", Env.IMAGE: "image"}
    return {Env.RUN: 1, Env.REPORT_FD: reports.fileno(), **{name: folder / file for name, file in files.items()}}
