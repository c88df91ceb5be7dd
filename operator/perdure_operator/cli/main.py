"""`perdure-operator`: run the operator, or look at what it sees and why it decides as it does.

A user's mistake is one line on stderr and exit status 2, never a traceback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from perdure.errors import UserError
from perdure_operator.api.configured import read_rows, read_yaml
from perdure_operator.cli.explain import explain
from perdure_operator.cli.explain_signals import describe_node, describe_pod, describe_table
from perdure_operator.decide import decide
from perdure_operator.state.signal_table import table
from perdure_operator.state.snapshot import Snapshot

View = TypeVar("View")
Options = TypeVar("Options")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.command(arguments))
    except UserError as error:
        sys.stderr.write(f"perdure-operator: {error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="perdure-operator", description="Perdure's Kubernetes operator")
    parser.add_argument("--version", action="version", version=f"perdure-operator {version('perdure')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run the operator until SIGTERM")
    where = run.add_mutually_exclusive_group()
    where.add_argument("--namespace", help="serve one namespace")
    where.add_argument("--all-namespaces", action="store_true", help="serve all namespaces (the default)")
    _add_lease(run)
    run.add_argument("--health-port", type=int, default=8080, metavar="PORT", help="0: no health endpoint")
    run.add_argument("--signals", metavar="FILE.yaml", help="rows of the table of signals: see the command `signals`")
    run.add_argument("--node-claims", action="store_true", help="get the NodeClaim of a node that Karpenter takes away")
    run.add_argument(
        "--no-eviction-requests", action="store_true", help="ignore Evictions, even if Kubernetes serves them"
    )
    run.add_argument("--metrics-port", type=_port, metavar="PORT", help="serve Prometheus metrics; default: none")
    run.add_argument("--metrics-certificate", metavar="FOLDER", help="tls.crt and tls.key; default: made in memory")
    run.add_argument("--reports-port", type=_port, metavar="PORT", help="take members' reports; default: none")
    run.add_argument("--reports-url", metavar="URL", help="where members reach that port: https://host:port")
    run.add_argument("--reports-certificate", metavar="FOLDER", help="tls.crt, tls.key, and ca.crt to check them by")
    run.add_argument("--reports-secret", metavar="NAME", help="instead: where the operator keeps its own certificates")
    run.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    run.add_argument("--log-format", default="json", choices=["json", "text"])
    run.set_defaults(command=_run)

    explaining = commands.add_parser("explain", help="print what the operator would do with a snapshot, and why")
    explaining.add_argument("snapshot", metavar="SNAPSHOT.json", help="from `perdure-operator snapshot` or a debug log")
    explaining.set_defaults(command=_explain)

    snapshot = commands.add_parser("snapshot", help="print what the operator sees of a job")
    snapshot.add_argument("job", metavar="NAMESPACE/NAME")
    snapshot.add_argument("--kubeconfig", metavar="FILE")
    snapshot.set_defaults(command=_snapshot)

    signals = commands.add_parser("signals", help="print what nodes can announce, and what is done about it")
    signals.add_argument("--signals", metavar="FILE.yaml", help="rows of your own, as in the chart's value `signals`")
    seen = signals.add_mutually_exclusive_group()
    seen.add_argument("--node", metavar="FILE.yaml", help="say what this node would cause: kubectl get node -o yaml")
    seen.add_argument("--pod", metavar="FILE.yaml", help="say what this pod of a job would cause by itself")
    signals.set_defaults(command=_signals)

    verify = commands.add_parser("verify", help="say whether the CRD is served and an operator leads (helm test)")
    _add_lease(verify)
    verify.set_defaults(command=_verify)

    crd = commands.add_parser("crd", help="print the CustomResourceDefinition")
    crd.set_defaults(command=_crd)
    return parser


def _add_lease(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kubeconfig", metavar="FILE", help="instead of the pod's ServiceAccount")
    parser.add_argument("--lease-namespace", default=os.environ.get("POD_NAMESPACE", "default"), metavar="NAMESPACE")
    parser.add_argument("--lease-name", default="perdure-operator", metavar="NAME")
    parser.add_argument(
        "--lease-seconds", type=_positive, default=15, metavar="N", help="time until a dead leader is replaced"
    )


def _run(arguments: argparse.Namespace) -> int:
    from perdure_operator.cluster import election  # noqa: PLC0415 - explain and crd start without a client
    from perdure_operator.loop import logs, operator  # noqa: PLC0415

    signals = read_rows(Path(arguments.signals) if arguments.signals else None)
    logs.configure(arguments.log_level, as_json=arguments.log_format == "json")
    lease = election.LeaseSettings(arguments.lease_namespace, arguments.lease_name, arguments.lease_seconds)
    options = operator.OperatorOptions(
        lease=lease,
        identity=election.identity(os.environ.get("POD_NAME") or socket.gethostname()),
        namespace=arguments.namespace,
        kubeconfig=arguments.kubeconfig,
        health_port=arguments.health_port or None,
        signals=signals,
        node_claims=arguments.node_claims,
        evictions=not arguments.no_eviction_requests,
        metrics_port=arguments.metrics_port,
        metrics_certificate=Path(arguments.metrics_certificate) if arguments.metrics_certificate else None,
        reports=_reports(operator.ReportOptions, arguments),
    )
    return 0 if asyncio.run(operator.run(options)) else 1


def _reports(options: Callable[[int, str, Path | None, str], Options], arguments: argparse.Namespace) -> Options | None:
    """Where members report. Raises UserError for a part of it alone."""
    port, url, folder = arguments.reports_port, arguments.reports_url, arguments.reports_certificate
    secret = arguments.reports_secret
    if port is None and url is None and folder is None and secret is None:
        return None
    if port is None or url is None or (folder is None) == (secret is None):
        words = "--reports-port, --reports-url and either --reports-certificate or --reports-secret belong together"
        raise UserError(f"{words}: give all three")
    return options(port, url, Path(folder) if folder else None, secret or "")


def _explain(arguments: argparse.Namespace) -> int:
    snapshot = _read_snapshot(Path(arguments.snapshot))
    sys.stdout.write(explain(snapshot, decide(snapshot)))
    return 0


def _snapshot(arguments: argparse.Namespace) -> int:
    namespace, slash, name = arguments.job.partition("/")
    if not slash or not name:
        raise UserError(f"{arguments.job!r} is not NAMESPACE/NAME")
    sys.stdout.write(asyncio.run(_observed(arguments.kubeconfig, (namespace, name))) + "\n")
    return 0


async def _observed(kubeconfig: str | None, job: tuple[str, str]) -> str:
    from perdure_operator.cluster import kube  # noqa: PLC0415
    from perdure_operator.cluster.protocol import EVICTIONS, ApiError  # noqa: PLC0415
    from perdure_operator.cluster.read.cache import Cache  # noqa: PLC0415
    from perdure_operator.cluster.read.observe import Observer  # noqa: PLC0415

    async with await kube.login(kubeconfig) as api:
        try:
            observer = Observer(api, Cache(responds=await api.serves(EVICTIONS)), namespace=job[0])
            await observer.sync()
            seen = await observer.observe(job)
        except ApiError as error:
            raise UserError(f"trainingjob {'/'.join(job)}: {error}") from None
    if seen is None:
        raise UserError(f"trainingjob {'/'.join(job)} does not exist")
    return seen.model_dump_json(by_alias=True, exclude_none=True, indent=2)


def _signals(arguments: argparse.Namespace) -> int:
    from perdure_operator.cluster.read import parse  # noqa: PLC0415

    in_force = table(read_rows(Path(arguments.signals) if arguments.signals else None))
    if arguments.node is not None:
        text = describe_node(in_force, _object(arguments.node, "Node", lambda raw: parse.node(raw, in_force)))
    elif arguments.pod is not None:
        text = describe_pod(in_force, _object(arguments.pod, "Pod", lambda raw: parse.pod(raw, in_force)))
    else:
        text = describe_table(in_force)
    sys.stdout.write(text)
    return 0


def _object(path: str, kind: str, read: Callable[[dict[str, Any]], View]) -> View:
    """What `read` finds in a file's object of that kind. UserError if it is not such an object of an API server."""
    make = f"make it with kubectl get {kind.lower()} NAME -o yaml"
    raw = read_yaml(Path(path))
    if not isinstance(raw, dict) or raw.get("kind") != kind or "name" not in (raw.get("metadata") or {}):
        raise UserError(f"{path}: not a {kind}: {make}")
    try:
        return read(raw)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(f"{path}: no {kind} as an API server has it: {make}") from None


def _verify(arguments: argparse.Namespace) -> int:
    found = asyncio.run(_problems(arguments))
    for problem in found:
        sys.stderr.write(f"perdure-operator: {problem}\n")
    if not found:
        sys.stdout.write("the CustomResourceDefinition is served and knows all fields, and an operator leads\n")
    return 1 if found else 0


async def _problems(arguments: argparse.Namespace) -> list[str]:
    from perdure_operator.cluster import kube  # noqa: PLC0415
    from perdure_operator.cluster.election import LeaseSettings  # noqa: PLC0415
    from perdure_operator.cluster.protocol import ApiError  # noqa: PLC0415
    from perdure_operator.loop.verify import problems  # noqa: PLC0415

    lease = LeaseSettings(arguments.lease_namespace, arguments.lease_name, arguments.lease_seconds)
    async with await kube.login(arguments.kubeconfig) as api:
        try:
            return await problems(api, lease)
        except ApiError as error:
            raise UserError(f"the installation cannot be verified: {error}") from None


def _crd(_: argparse.Namespace) -> int:
    from perdure_operator.schema import crd  # noqa: PLC0415

    sys.stdout.write(crd.text())
    return 0


def _read_snapshot(path: Path) -> Snapshot:
    try:
        text = path.read_text() if str(path) != "-" else sys.stdin.read()
        return Snapshot.model_validate(json.loads(text))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{path}: not a snapshot of this version: field {where}: {first['msg']}") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 < value < 65536:
        raise argparse.ArgumentTypeError(f"{text} is not a port: give a number from 1 to 65535")
    return value


if __name__ == "__main__":
    sys.exit(main())
