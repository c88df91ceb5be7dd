"""`python -m e2e.bench [NAME ...]`: measures, prints a table for each, writes build/bench/NAME.json."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from e2e.bench import (
    adaptive,
    elastic,
    handover,
    leader,
    measuring,
    mirror,
    moves,
    pooled,
    report,
    reports,
    runtime,
    sampling,
    saves,
    scale,
    sharing,
    stall,
    start,
    step,
    uploads,
)
from e2e.cluster import ClusterError
from e2e.harness.evidence import NoEvidence
from e2e.harness.kubectl import KubectlError
from e2e.harness.operator import InstallError
from e2e.harness.watching import Late
from e2e.prepare import Progress, missing
from e2e.prepare.requirements import cannot_run, missing_for_scale

Measured = tuple[list[report.Figure], dict[str, Any]]
ORDINARY = ("step", "sampling", "moves", "elastic", "leader")
LACKS = {"moves": missing, "elastic": missing, "leader": missing, "pooled": missing, "scale": missing_for_scale}
TITLES = {
    "step": "What Session.step() adds to a training step",
    "sampling": "What the order of samples costs",
    "moves": "What a drain costs a training job",
    "elastic": "What a job trains while the nodes for it come and go",
    "leader": "How long there is no leader when the leader's node is drained",
    "handover": "How long no rank trains when ranks are replaced in the living processes",
    "start": "What a trainer's imports cost, with the zygote and without",
    "runtime": "What an exit save and a restore of 1 GiB cost, one rank, in a folder",
    "saves": "What a save costs by size, length of a step, ranks, sharding and store",
    "stall": "How long a save stops training, one rank, in a folder",
    "uploads": "What an upload of a rank's part costs, beside boto3's upload_fileobj",
    "measuring": "What it costs to measure step times and gradient noise",
    "reports": "Whether reports to the operator make a step longer",
    "mirror": "What a mirror of sharded parts costs, FSDP2, two ranks",
    "adaptive": "Whether a batch that adapts reaches what a fixed one reaches sooner, one rank",
    "pooled": "What jobs of a pool gain by sharing its devices, beside fixed sizes",
    "sharing": "What it takes to divide a pool among its jobs",
    "scale": "What many jobs cost, beside JobSet with the same pods",
}


def main() -> int:
    """Run the chosen benches, or all."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench", description=__doc__)
    parser.add_argument("bench", nargs="*", help=f"of {', '.join(TITLES)}; {', '.join(ORDINARY)} if none is named")
    parser.add_argument("--jobs", type=int, nargs="+", default=scale.JOBS, help="for scale: the numbers of jobs")
    parser.add_argument("--rows", nargs="+", default=(), help="for saves, handover and adaptive: only these rows")
    parser.add_argument("--quick", action="store_true", help="for saves, stall and uploads: fewer rows and rounds")
    arguments = parser.parse_args()
    measures: dict[str, Callable[[Progress], Measured]] = {
        "step": step.measure,
        "sampling": sampling.measure,
        "moves": moves.measure,
        "elastic": elastic.measure,
        "leader": leader.measure,
        "handover": lambda progress: handover.measure(progress, keys=arguments.rows),
        "start": start.measure,
        "runtime": runtime.measure,
        "saves": lambda progress: saves.measure(progress, keys=arguments.rows, quick=arguments.quick),
        "stall": lambda progress: stall.measure(progress, quick=arguments.quick),
        "uploads": lambda progress: uploads.measure(progress, quick=arguments.quick),
        "measuring": measuring.measure,
        "reports": reports.measure,
        "mirror": mirror.measure,
        "adaptive": lambda progress: adaptive.measure(progress, keys=arguments.rows),
        "pooled": pooled.measure,
        "sharing": sharing.measure,
        "scale": lambda progress: scale.measure(progress, arguments.jobs),
    }
    chosen = arguments.bench or ORDINARY
    if unknown := [name for name in chosen if name not in measures]:
        parser.error(f"no bench {', '.join(unknown)}: choose from {', '.join(measures)}")
    progress = Progress()
    for name in chosen:
        if lacks := LACKS[name]() if name in LACKS else []:
            progress.say(f"SKIPPED {name}: {cannot_run(lacks)}")
            continue
        figures, facts = measures[name](progress)
        print("\n" + report.table(TITLES[name], figures))
        progress.say(f"written: {report.write(name, figures, facts)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ClusterError, InstallError, KubectlError, Late, NoEvidence, RuntimeError) as error:
        sys.exit(f"error: {error}")
