"""`python -m tests.mutants`: plant every bug, print who found it, and name those that nobody did."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.mutants.catalogue import CATALOGUE
from tests.mutants.judge import REPOSITORY, Effort, Found, judge
from tests.mutants.mechanical import draw

DRAWN: Final = 30


def main() -> int:
    """Exit status 1 where the code as it is fails, or a bug of the catalogue survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the mechanical draw, and of the first history")
    parser.add_argument("--drawn", type=int, default=DRAWN, help="how many are drawn mechanically")
    parser.add_argument("--histories", type=int, default=300, help="the simulation plays so many for each")
    parser.add_argument("--aimed", type=int, default=40, help="before that, with only the faults that it names")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="those with this in their name")
    given = parser.parse_args()
    effort = Effort(given.histories, given.seed, given.aimed)
    mutants = [one for one in (*CATALOGUE, *draw(REPOSITORY, given.seed, given.drawn)) if given.only in one.name]
    began = time.perf_counter()
    found, words = judge(None, effort)
    if found is not Found.NOBODY:
        print(f"the code fails as it is, no bug planted: {words}")
        return 1
    each = f"{effort.aimed} histories with a bug's own faults and {effort.histories} with all"
    print(f"{len(mutants)} bugs, for each {each}, from seed {effort.seed} on", flush=True)
    tally, survivors = Counter[Found](), []
    with ThreadPoolExecutor(given.cores) as pool:
        for mutant, (found, words) in zip(mutants, pool.map(lambda one: judge(one, effort), mutants), strict=True):
            tally[found] += 1
            survivors += [mutant] if found is Found.NOBODY else []
            print(f"{found:<12} {mutant.name:<80} {words}", flush=True)
    print(f"{time.perf_counter() - began:.0f} s: " + ", ".join(f"{found} {tally[found]}" for found in Found))
    for mutant in survivors:
        print(f"SURVIVED {mutant.name} in {mutant.file}: {mutant.old!r} -> {mutant.new!r}")
    return int(any(mutant in CATALOGUE for mutant in survivors))


if __name__ == "__main__":
    sys.exit(main())
