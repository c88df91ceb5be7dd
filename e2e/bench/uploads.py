"""What an upload of a rank's part costs its process, beside boto3's upload_fileobj: to an S3 server, and to a sink."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.bench.report import FOLDER, Figure
from e2e.cluster.pki import Pki
from e2e.harness.local_s3 import ACCESS, REGION, SECRET, S3Server
from e2e.prepare import Progress
from perdure.wire import Env

MIB, QUICK_MIB, ROUNDS, QUICK_ROUNDS = 1024, 256, 6, 3
AIM = 0.5
"""Of upload_fileobj's CPU."""
QUANTITIES = {"cpu": ("CPU", "s per GiB"), "wall": ("time", "s")}


def measure(progress: Progress, *, quick: bool = False) -> tuple[list[Figure], dict[str, Any]]:
    """Both ways in turns, to each server."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    mib, rounds = (QUICK_MIB, QUICK_ROUNDS) if quick else (MIB, ROUNDS)
    figures = []
    for name, place in SERVERS.items():
        progress.say(f"{rounds} uploads of {mib} MiB to {name}, each way")
        with place() as environ:
            argv = [sys.executable, "-m", "e2e.bench.uploading", "s3://bench/root", str(mib), str(rounds)]
            done = subprocess.run(argv, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"uploading to {name} failed:\n{done.stderr[-2000:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        for quantity, (what, unit) in QUANTITIES.items():
            theirs = Figure("", unit, tuple(cost[quantity] for cost in found["upload_fileobj"]))
            for way, costs in found.items():
                samples = tuple(cost[quantity] for cost in costs)
                ratio = f"upload_fileobj; aim: {AIM:g} times" if quantity == "cpu" else "upload_fileobj"
                told = (theirs.median, ratio) if way == "Perdure" else (None, "")
                figures.append(Figure(f"{name}, {what}: {way}", unit, samples, *told))
    return figures, {"cores": os.cpu_count(), "MiB": mib, "rounds": rounds}


@contextmanager
def _sink(*files: Path) -> Iterator[Mapping[str, str]]:
    argv = [sys.executable, "-m", "e2e.bench.sink", *map(str, files)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = process.stdout.readline().strip() if process.stdout else ""
            yield {
                Env.S3_ENDPOINT: f"http{'s' if files else ''}://127.0.0.1:{port}",
                Env.S3_REGION: REGION,
                Env.S3_PATH_STYLE: "true",
                "AWS_ACCESS_KEY_ID": ACCESS,
                "AWS_SECRET_ACCESS_KEY": SECRET,
            }
        finally:
            process.kill()


@contextmanager
def _sink_behind_tls() -> Iterator[Mapping[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        authority = Pki(Path(folder))
        authority.create()
        authority.issue("sink", "/CN=sink", ["IP:127.0.0.1"])
        with _sink(authority.certificate("sink"), authority.key("sink")) as environ:
            yield {**environ, "AWS_CA_BUNDLE": str(authority.authority)}


@contextmanager
def _server() -> Iterator[Mapping[str, str]]:
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder, S3Server(Path(folder)) as server:
        server.create_bucket("bench")
        yield server.environ


SERVERS = {
    "a sink that keeps nothing, over TLS": _sink_behind_tls,
    "a sink that keeps nothing": _sink,
    "versitygw": _server,
}
