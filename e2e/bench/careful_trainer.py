"""A careful team's script under JobSet: digits with DDP; on SIGTERM all ranks stop after one step, rank 0 saves.

Started in pods by e2e.bench.careful, with train.py of examples/digits beside it: model, data and batch are the same.
Ranks find each other, and report their steps, through the bucket, so they need not wait for DNS.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from typing import Any, Final

import boto3
import torch
import torch.distributed as dist
from botocore.config import Config
from torch._C._distributed_c10d import TCPStore
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from train import GLOBAL_BATCH, digits, network  # type: ignore[import-not-found]

BUCKET: Final = os.environ["BUCKET"]
ATTEMPT: Final = os.environ["ATTEMPT"]
RANK: Final = int(os.environ["JOB_COMPLETION_INDEX"])
WORLD: Final = int(os.environ["WORLD"])
PORT: Final = 29500
STOPPED: Final = 143


def main() -> None:
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    bucket = boto3.client(
        "s3", endpoint_url=os.environ["ENDPOINT"], config=Config(s3={"addressing_style": "path"}, proxies={})
    )
    dist.init_process_group("gloo", store=_store(bucket), rank=RANK, world_size=WORLD)
    torch.manual_seed(0)
    train, _ = digits()
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    step, stop = _resume(bucket, model, optimizer), torch.zeros(1)
    first = step + 1
    while not stop.item():
        images, labels = _batch(train, step)
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == first and RANK == 0:
            _put(bucket, f"first-{ATTEMPT}", f"{time.time()} {step}".encode())
        stop.fill_(float(bool(told)))
        dist.all_reduce(stop)
    if RANK == 0:
        _save(bucket, model, optimizer, step)
    sys.exit(STOPPED)


def _store(bucket: Any) -> TCPStore:
    """Rank 0 listens before it publishes its address."""
    if RANK == 0:
        store = TCPStore("0.0.0.0", PORT, WORLD, is_master=True, wait_for_workers=False)
        _put(bucket, f"master-{ATTEMPT}", os.environ["POD_IP"].encode())
        return store
    while (master := _get(bucket, f"master-{ATTEMPT}")) is None:
        time.sleep(0.02)
    return TCPStore(master.decode(), PORT, WORLD, is_master=False)


def _batch(train: Any, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = train.tensors
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step * GLOBAL_BATCH // len(labels)))
    start = step * GLOBAL_BATCH % len(labels)
    mine = order[start : start + GLOBAL_BATCH][RANK::WORLD]
    return images[mine], labels[mine]


def _save(bucket: Any, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    body = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, body)
    _put(bucket, "checkpoint", body.getvalue())


def _resume(bucket: Any, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    body = _get(bucket, "checkpoint")
    if body is None:
        return 0
    saved = torch.load(io.BytesIO(body), weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def _put(bucket: Any, key: str, body: bytes) -> None:
    bucket.put_object(Bucket=BUCKET, Key=key, Body=body)


def _get(bucket: Any, key: str) -> bytes | None:
    try:
        found: bytes = bucket.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    except bucket.exceptions.NoSuchKey:
        return None
    return found


if __name__ == "__main__":
    main()
