"""`python -m e2e.bench.pollux [--ways ...] [--loads ...] [--workloads ...]`: makes the runs that are not stored yet.

Each run is stored below build/bench as soon as it is made, so that a later call goes on where this one ended. Several
calls at once, each with other workloads, share the work. At the end it prints tables of all that is stored.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from e2e.bench.pollux import runs, tables
from e2e.bench.pollux.measurements import read_all
from e2e.bench.report import FOLDER


def main() -> int:
    """Run what is missing, and print what is known."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.pollux", description=__doc__)
    parser.add_argument("--ways", nargs="+", default=["pollux", "perdure"], choices=runs.WAYS)
    parser.add_argument("--loads", nargs="+", type=float, default=[1.0], choices=runs.LOADS)
    parser.add_argument("--workloads", nargs="+", type=int, default=runs.WORKLOADS, choices=runs.WORKLOADS)
    parser.add_argument("--only-print", action="store_true", help="print what is stored, run nothing")
    arguments = parser.parse_args()
    told = os.environ.get("POLLUX_DATA", "")
    if not told or not (data := Path(told)).joinpath("traces").is_dir():
        print(
            "POLLUX_DATA must name a folder with the measurements of Pollux's authors: traces/, workloads*/ and"
            " published.csv, see docs/benchmarks.md; they are no part of this repository",
            file=sys.stderr,
        )
        return 2
    wanted = [(way, load, work) for load in arguments.loads for way in arguments.ways for work in arguments.workloads]
    if not arguments.only_print:
        models = read_all(data)
        for name, load, workload in wanted:
            way = runs.WAYS[name]
            if runs.stored(FOLDER, way, load, workload) is None:
                runs.store(FOLDER, result := runs.run(way, data, models, load, workload))
                print(tables.line(result, runs.published(data)), flush=True)
    print(tables.all_of(FOLDER, runs.published(data)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
