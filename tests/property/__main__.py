"""`python -m tests.property run --seed S --programs N` plays many; `replay SEED` one, and prints it as a script."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.property.play import Request, contradiction, report, shrunk
from tests.property.ranks import Forge


def main() -> int:
    """Exit status 1 where a program was not the same as its twin."""
    parser = argparse.ArgumentParser(prog="python -m tests.property")
    commands = parser.add_subparsers(dest="command", required=True)
    many = commands.add_parser("run", help="many programs")
    many.add_argument("--seed", type=int, default=0, help="the first seed")
    many.add_argument("--programs", type=int, default=40)
    many.add_argument("--shrink", action="store_true", help="make the failing ones smaller")
    one = commands.add_parser("replay", help="one program, as a script, with all that happens to it")
    one.add_argument("seed", type=int)
    one.add_argument("--without", nargs="*", default=[])
    one.add_argument("--shrink", action="store_true", help="make it smaller if it fails")
    given = parser.parse_args()
    if given.command == "replay":
        requests = [Request(given.seed, tuple(given.without))]
    else:
        requests = [Request(given.seed + number) for number in range(given.programs)]
    with tempfile.TemporaryDirectory() as folder, Forge() as forge:
        return _play(forge, Path(folder), requests, given)


def _play(forge: Forge, folder: Path, requests: list[Request], given: argparse.Namespace) -> int:
    failed, began = 0, time.perf_counter()
    for drawn in requests:
        request = drawn
        found = contradiction(forge, folder, request.program)
        if found is not None:
            failed += 1
            if given.shrink:
                request = shrunk(forge, folder, request)
                found = contradiction(forge, folder, request.program) or f"not repeatable: {found}"
        if found is not None or given.command == "replay":
            print(report(request, found or "the same as its twin"), flush=True)
    print(f"{len(requests)} programs, {failed} failed, {time.perf_counter() - began:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
