"""`python -m e2e.gpu_card [--device cpu]`: prints one Markdown page."""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from e2e.gpu_card.trials import Card, Row, tried
from e2e.prepare import Progress

LARGE = {"mib": 16 * 1024, "moves": 50, "steps": 200, "pace": 0.05}
SMALL = {"mib": 4, "moves": 1, "steps": 40, "pace": 0.05}
NOT_TRIED = "a live move with gloo alone for CUDA tensors, and the set-up of a communicator beside a running step"


def page(device: str, rows: Sequence[Row]) -> Iterator[str]:
    """Its lines."""
    yield f"# What Perdure does on {_named(device)}"
    yield ""
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if device == "cuda" else "none"
    yield f"torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}, Python {platform.python_version()}"
    yield ""
    yield "| Trial | What was found |"
    yield "|---|---|"
    yield from (f"| {row.trial} | {' '.join(row.found.split()).replace('|', '/')} |" for row in rows)
    yield ""
    yield f"Not tried: {NOT_TRIED}."
    yield ""
    yield from (f"* {row.trial}: `{row.command}`" for row in rows)


def _named(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPUs"


def main() -> int:
    """The exit status: 1 without such a device."""
    parser = argparse.ArgumentParser(prog="python -m e2e.gpu_card", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device: str = parser.parse_args().device
    if device == "cuda" and not torch.cuda.is_available():
        print("error: torch finds no CUDA device here; --device cpu tries the same code on CPUs", file=sys.stderr)
        return 1
    sizes = LARGE if device == "cuda" else SMALL
    with tempfile.TemporaryDirectory(prefix="perdure-card-") as folder:
        card = Card(device, Path(folder), int(sizes["mib"]), int(sizes["moves"]), int(sizes["steps"]), sizes["pace"])
        print("\n".join(page(device, tried(card, Progress().say))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
