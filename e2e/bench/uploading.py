"""Uploads a part from an arena in two ways in turns, and prints what each cost, as JSON.

    python -m e2e.bench.uploading URI MIB ROUNDS

The environment names the server. `Perdure`: what the process that uploads does, with the checksum of each block and of
the whole. `upload_fileobj`: boto3's, with its own defaults. Started by e2e.bench.uploads.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import boto3
from botocore.config import Config

from e2e.bench.saving import State
from perdure.checkpoint.background.arena import Arena
from perdure.checkpoint.background.uploader import Uploads
from perdure.checkpoint.background.uploader_messages import DURABLE, Lines, UploadOrder, read_word
from perdure.checkpoint.stage import stage
from perdure.log.position import Position
from perdure.state.registry import Registry
from perdure.wire import Env


def cost(act: Callable[[], object], mib: int) -> dict[str, float]:
    """Seconds, and CPU seconds per GiB, of this process."""
    before, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    act()
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": wall, "cpu": used / (mib / 1024)}


def main() -> None:
    uri, mib, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    registry = Registry()
    state = State(mib, stepped=True)
    registry.add("model", state.model)
    registry.add("optimizer", state.optimizer)
    arena = Arena()
    staged = stage(registry.state(None), 0, 1)
    heard, told = os.pipe()
    uploads, lines = Uploads(arena.fd, told), Lines()
    bucket = uri.removeprefix("s3://").partition("/")[0]
    path_style: Any = {"addressing_style": "path"}
    client = boto3.client(
        "s3",
        endpoint_url=os.environ[Env.S3_ENDPOINT],
        region_name=os.environ[Env.S3_REGION],
        config=Config(s3=path_style),
    )

    def ours(number: int) -> Callable[[], object]:
        position = Position(number, 0)
        part = arena.fill(staged, uid="u", run=1, name=f"{number:016x}", position=position)

        def upload() -> None:
            uploads.carry_out(UploadOrder(uri, f"data/1/{number}-{number:016x}/", part.seal))
            words = [read_word(line) for line in lines.add(os.read(heard, 65536))]
            if words[-1].word != DURABLE:
                raise RuntimeError(words[-1].why)

        return upload

    def theirs(number: int) -> Callable[[], object]:
        def upload() -> None:
            with os.fdopen(os.dup(arena.fd), "rb") as opened:
                opened.seek(0)
                client.upload_fileobj(opened, bucket, f"theirs/{number}")

        return upload

    gc.freeze()  # the process that uploads has no torch, whose objects each collection would look at
    found: dict[str, list[dict[str, float]]] = {"Perdure": [], "upload_fileobj": []}
    for number in range(rounds + 1):
        turns = [("Perdure", ours(number + 1)), ("upload_fileobj", theirs(number))]
        for way, upload in turns if number % 2 else reversed(turns):
            spent = cost(upload, mib)
            if number:  # the first ones connect
                found[way].append(spent)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
