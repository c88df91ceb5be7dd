"""`python -m tests.simulation run --histories N --seed S` on all cores; `replay SEED` shows one with its trace."""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

from tests.simulation.faults import FAULTS
from tests.simulation.history import History, Request, Result
from tests.simulation.shrink import shrink
from tests.simulation.trace import digest, told


def main() -> int:
    """Exit status 1 where a history has failed."""
    if "PYTHONHASHSEED" not in os.environ:  # no history may depend on the order of a set; where one does, it repeats
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])  # noqa: S606
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    commands = parser.add_subparsers(dest="command", required=True)
    many = commands.add_parser("run", help="many histories")
    many.add_argument("--histories", type=int, default=1000)
    many.add_argument("--seed", type=int, default=0, help="the first seed")
    many.add_argument("--seeds", type=int, nargs="+", help="these histories and no others")
    many.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    many.add_argument("--shrink", type=int, default=3, help="how many of the failing histories are made smaller")
    many.add_argument("--stop-at-first", action="store_true", help="play no more histories after one that failed")
    many.add_argument("--digests", action="store_true", help="print a digest of every history's trace")
    one = commands.add_parser("replay", help="one history, with its trace")
    one.add_argument("seed", type=int)
    one.add_argument("--without", nargs="*", default=[])
    one.add_argument("--until", type=float)
    one.add_argument("--steps", action="store_true", help="show every step of training too")
    for command in (many, one):
        command.add_argument("--all", action="store_true", help="with faults that wait for a known defect")
        command.add_argument("--only", nargs="*", default=[], help="nothing but these faults")
    commands.add_parser("faults", help="list them")
    given = parser.parse_args()
    if given.command == "faults":
        for fault in FAULTS.values():
            print(f"{fault.name:<28} {fault.waits_for and 'waits for: ' + fault.waits_for}")
        return 0
    return _run(given) if given.command == "run" else _replay(given)


def _replay(given: argparse.Namespace) -> int:
    request = Request(given.seed, tuple(given.without), only=tuple(given.only), everything=given.all, until=given.until)
    result = History(request).play(tell=True)
    for line in told(result, steps=given.steps):
        print(line)
    return int(result.violation is not None)


def _run(given: argparse.Namespace) -> int:
    seeds = given.seeds or range(given.seed, given.seed + given.histories)
    requests = [Request(seed, only=tuple(given.only), everything=given.all) for seed in seeds]
    began, failed, fired = time.perf_counter(), [], Counter[str]()
    rounds = events = 0
    seconds = 0.0
    for result in play_all(requests, given.cores, digests=given.digests):
        if given.digests:
            print(f"seed {result.request.seed} digest: {result.digest}")
        fired.update(result.fired)
        rounds, events, seconds = rounds + result.rounds, events + result.events, seconds + result.seconds
        if result.violation is not None:
            failed.append(result)
            print(f"seed {result.request.seed}: {result.violation}\n    {result.request.command()}", flush=True)
            if given.stop_at_first:
                break
    took = time.perf_counter() - began
    print(
        f"{len(requests)} histories ({len(requests) / took:.1f}/s), {seconds / 3600:.1f} virtual hours, "
        f"{rounds} status writes, {events} events, {len(failed)} failed"
    )
    print("faults fired: " + ", ".join(f"{name} {count}" for name, count in sorted(fired.items())))
    kinds = Counter(result.violation.check for result in failed if result.violation)
    if kinds:
        print("failures: " + ", ".join(f"{name} {count}" for name, count in kinds.most_common()))
    _keep_quiet()
    for result in failed[: given.shrink]:
        smaller = shrink(result)
        print(f"seed {smaller.request.seed}, made smaller: {smaller.violation}\n    {smaller.request.command()}")
    return int(bool(failed))


def play_all(requests: list[Request], cores: int, *, digests: bool = False) -> Iterator[Result]:
    """Without their facts, which are large; in the order of the requests."""
    play = partial(play_briefly, with_digest=digests)
    gc.collect()
    gc.freeze()  # existing objects stay: only histories leave garbage behind
    if cores == 1:
        yield from map(play, requests)
        return
    with multiprocessing.get_context("fork").Pool(cores) as pool:
        yield from pool.imap(play, requests, chunksize=4)


def play_briefly(request: Request, *, with_digest: bool = False) -> Result:
    """For a worker process."""
    _keep_quiet()
    result = History(request).play()
    if with_digest:
        result.digest = digest(result)
    result.facts.clear()
    gc.collect()
    return result


def _keep_quiet() -> None:
    """Errors reach the listener of a history, not the terminal."""
    logging.disable(logging.WARNING)
    logging.lastResort = None


if __name__ == "__main__":
    sys.exit(main())
