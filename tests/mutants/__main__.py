"""`python -m tests.mutants`: plant every bug, print what found it, and name those that nothing found."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.mutants.catalogue import CATALOGUE
from tests.mutants.judge import REPOSITORY, Effort, Found, Judge
from tests.mutants.mechanical import draw
from tests.mutants.mutant import Mutant
from tests.mutants.record import Record

DRAWN: Final = 30


def main() -> int:
    """Exit status 1 where the code as it is fails, or a bug of the catalogue survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the mechanical draw, and of the first history")
    parser.add_argument("--drawn", type=int, default=DRAWN, help="how many are drawn mechanically")
    parser.add_argument("--histories", type=int, default=300, help="the simulation plays so many for each")
    parser.add_argument("--aimed", type=int, default=40, help="before that, with only the faults that it names")
    parser.add_argument("--simulation-alone", action="store_true", help="the unit tests are not asked")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="those with this in their name")
    parser.add_argument(
        "--record", type=Path, help="a file: verdicts are kept there, and known ones are not sought again"
    )
    given = parser.parse_args()
    effort = Effort(given.histories, given.seed, given.aimed, unit_tests=not given.simulation_alone)
    mutants = [one for one in (*CATALOGUE, *draw(REPOSITORY, given.seed, given.drawn)) if given.only in one.name]
    with Judge() as judge:
        found, words = judge.judge(None, effort)
        if found is not Found.NOBODY:
            print(f"the code fails as it is, no bug planted: {words}")
            return 1
        survivors = _table(judge, mutants, effort, Record(given.record, judge.digest(), effort), given.cores)
    return int(any(mutant in CATALOGUE for mutant in survivors))


def _table(judge: Judge, mutants: list[Mutant], effort: Effort, record: Record, cores: int) -> list[Mutant]:
    """Printed as it grows; returns those that nothing has found."""
    each = f"{effort.aimed} histories with a bug's own faults and {effort.histories} with all"
    print(f"{len(mutants)} bugs, for each {each}, from seed {effort.seed} on", flush=True)
    began = time.perf_counter()

    def verdict(mutant: Mutant) -> tuple[Found, str]:
        known = record.known(mutant)
        if known is None:
            known = judge.judge(mutant, effort)
            record.add(mutant, *known)
        return known

    tally, survivors = Counter[Found](), []
    with ThreadPoolExecutor(cores) as pool:
        for mutant, (found, words) in zip(mutants, pool.map(verdict, mutants), strict=True):
            tally[found] += 1
            survivors += [mutant] if found is Found.NOBODY else []
            print(f"{found:<12} {mutant.name:<80} {words}", flush=True)
            if mutant.outside:
                print(f"{'':<12} the simulation does not play it: {mutant.outside}")
    print(f"{time.perf_counter() - began:.0f} s: " + ", ".join(f"{found} {tally[found]}" for found in Found))
    played = sum(not mutant.outside for mutant in mutants)
    if played:
        share = tally[Found.SIMULATION] / played
        print(f"the simulation alone finds {tally[Found.SIMULATION]} of the {played} that it plays: {share:.0%}")
    for mutant in survivors:
        print(f"SURVIVED {mutant.name} in {mutant.symbol}: {mutant.old!r} -> {mutant.new!r}")
    return survivors


if __name__ == "__main__":
    sys.exit(main())
