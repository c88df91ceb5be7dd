"""`python -m e2e.cluster up|down|status|kubeconfig [--name NAME]`."""

from __future__ import annotations

import argparse
import signal
import sys

from e2e.cluster import cleanup
from e2e.cluster.cluster import DEFAULT_NAME, DEFAULT_NODES, Cluster
from e2e.cluster.names import NameRefused
from e2e.cluster.processes import ClusterError
from e2e.prepare import PrepareError, Progress, missing
from e2e.prepare.basics import locked
from e2e.prepare.requirements import cannot_run, machine


def up(arguments: argparse.Namespace) -> None:
    """Boot a cluster that stays until `down`."""
    _demand(missing())
    cluster = Cluster.up(arguments.name, arguments.nodes)
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    print(f"export PATH={cluster.env['PATH'].split(':')[0]}:$PATH")


def down(arguments: argparse.Namespace) -> None:
    """Remove all that is left of a cluster, up or not."""
    _demand(machine())
    progress = Progress()
    with locked(f"cluster-{arguments.name}", progress):
        cleanup.remove(arguments.name)
    progress.say(f"cluster {arguments.name}: nothing is left")


def kubeconfig(arguments: argparse.Namespace) -> None:
    """Print the path of the administrator's kubeconfig."""
    print(Cluster.attach(arguments.name).kubeconfig)


def status(arguments: argparse.Namespace) -> None:
    """Show components and nodes; fails when a component has died."""
    cluster = Cluster.attach(arguments.name)
    for name, pid in cluster.components().items():
        print(f"{name:30} {pid or 'DEAD'}")
    dead = cluster.dead_components()
    if dead:
        raise ClusterError(dead)
    print(f"{'S3':30} {cluster.s3.endpoint}")
    print(cluster.kubectl("get", "nodes", "--output=wide").stdout)


def _demand(lacks: list[str]) -> None:
    if lacks:
        raise ClusterError(cannot_run(lacks))


COMMANDS = {"up": up, "down": down, "kubeconfig": kubeconfig, "status": status}


def main() -> int:
    """Run one command; a user's problem is printed without a traceback."""
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--name", default=DEFAULT_NAME, help="clusters of different names live side by side")
    parser.add_argument("--nodes", type=int, default=DEFAULT_NODES)
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # a script that starts this in the background has SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    try:
        COMMANDS[arguments.command](arguments)
    except (ClusterError, NameRefused, PrepareError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted: nothing was left behind", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
