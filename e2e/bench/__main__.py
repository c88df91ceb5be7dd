"""`python -m e2e.bench [step] [moves]`: measures, prints a table, writes build/bench/NAME.json."""

from __future__ import annotations

import argparse
import sys

from e2e.bench import moves, report, step
from e2e.cluster import ClusterError
from e2e.harness.evidence import NoEvidence
from e2e.harness.kubectl import KubectlError
from e2e.harness.operator import InstallError
from e2e.harness.watching import Late
from e2e.prepare import Progress, missing
from e2e.prepare.requirements import cannot_run

BENCHES = {"step": step.measure, "moves": moves.measure}
NEEDS_CLUSTER = {"moves"}
TITLES = {"step": "What Session.step() adds to a training step", "moves": "What a drain costs a training job"}


def main() -> int:
    """Run the chosen benches, or all."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench", description=__doc__)
    parser.add_argument("bench", nargs="*", help=f"one of {', '.join(BENCHES)}; all if none is named")
    chosen = parser.parse_args().bench or list(BENCHES)
    unknown = [name for name in chosen if name not in BENCHES]
    if unknown:
        parser.error(f"no bench {', '.join(unknown)}: choose from {', '.join(BENCHES)}")
    progress = Progress()
    for name in chosen:
        if name in NEEDS_CLUSTER and (lacks := missing()):
            progress.say(f"SKIPPED {name}: {cannot_run(lacks)}")
            continue
        figures, facts = BENCHES[name](progress)
        print("\n" + report.table(TITLES[name], figures))
        progress.say(f"written: {report.write(name, figures, facts)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ClusterError, InstallError, KubectlError, Late, NoEvidence, RuntimeError) as error:
        sys.exit(f"error: {error}")
