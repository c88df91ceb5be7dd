"""`python -m e2e.demo`: tells the story; exit status 0 only if every promise held. `down` removes everything."""

from __future__ import annotations

import argparse
import signal
import sys

from e2e.cluster import ClusterError
from e2e.cluster.cleanup import remove
from e2e.demo.story import CLUSTER, SHARDED, WHOLE, Demo, Example
from e2e.harness.evidence import NoEvidence
from e2e.harness.kubectl import KubectlError
from e2e.harness.lab import Lab
from e2e.harness.operator import InstallError
from e2e.harness.watching import Late
from e2e.prepare import PrepareError, Progress, missing
from e2e.prepare.basics import locked
from e2e.prepare.requirements import cannot_run

LOOK_AROUND = """
The cluster stays up. To look around:
  export KUBECONFIG={kubeconfig} PATH={tools}:$PATH
  kubectl get ptj -n demo
  kubectl describe ptj {job} -n demo
  kubectl get events -n demo
  ls {objects}
make demo-down removes everything.
"""


def run(example: Example) -> int:
    """The demo; the last line is for scripts."""
    lacks = missing()
    if lacks:
        raise PrepareError(cannot_run(lacks))
    progress = Progress()
    lab = Lab.up(CLUSTER, progress)
    try:
        result = Demo(lab, progress, example).tell()
    except KeyboardInterrupt:
        lab.cluster.down()
        raise
    places = {"kubeconfig": lab.cluster.kubeconfig, "tools": lab.tools, "objects": lab.bucket.folder / "perdure"}
    print(LOOK_AROUND.format(job=example.name, **places))
    print(result.line(), flush=True)
    return 0 if result.holds else 1


def down() -> int:
    """Nothing stays behind."""
    progress = Progress()
    with locked(f"cluster-{CLUSTER}", progress):
        remove(CLUSTER)
    progress.say("nothing is left of the demo")
    return 0


def main() -> int:
    """Run one command; a user's problem is printed without a traceback."""
    parser = argparse.ArgumentParser(prog="python -m e2e.demo", description=__doc__)
    parser.add_argument("command", choices=["run", "down"], nargs="?", default="run")
    parser.add_argument("--fsdp", action="store_true", help="a model that the members hold in parts (examples/tinygpt)")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # a script that starts this in the background has SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    try:
        return down() if args.command == "down" else run(SHARDED if args.fsdp else WHOLE)
    except (ClusterError, PrepareError, InstallError, KubectlError, Late, NoEvidence) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        left = "nothing was left behind" if args.command == "run" else "`make demo-down` removes what is left"
        print(f"\ninterrupted: {left}", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
