"""The command line of `kubectl perdure`. A refusal is one line on stderr and exit status 1, as kubectl's are."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import logging
import os
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn

from pydantic import BaseModel

from perdure.errors import UserError
from perdure_operator.api.configured import read_rows
from perdure_operator.cli.kubectl import bundle, reading, status_page, timeline, what_if
from perdure_operator.cli.kubectl.client import Kubectl, KubectlFailed
from perdure_operator.cli.kubectl.job import JobSeen, summary
from perdure_operator.cli.kubectl.page import Page, printable
from perdure_operator.cli.kubectl.screen import draw
from perdure_operator.cluster.protocol import ApiError, Conflict

PASSED_ON: Final = (
    *("context", "kubeconfig", "cluster", "user", "as", "as-uid", "as-group", "server", "token", "request-timeout"),
    *("certificate-authority", "tls-server-name", "client-certificate", "client-key"),
)
"""Flags of kubectl that choose the cluster and the user."""
KILLED_BY_SIGINT: Final = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = _parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode still shows the rest
    logger, on_stderr = logging.getLogger("perdure_operator"), _OnStderr(logging.WARNING)
    logger.addHandler(on_stderr)
    try:
        status = _run(arguments)
    finally:
        logger.removeHandler(on_stderr)
    return 1 if on_stderr.errors else status


class _OnStderr(logging.Handler):
    """Shows in a line each what the operator's code would log: above all that an object cannot be read."""

    errors = 0
    """How many of them mean that a page lacks something."""

    def emit(self, record: logging.LogRecord) -> None:
        self.errors += record.levelno >= logging.ERROR
        sys.stderr.write(f"{printable(f'Warning: {record.getMessage()}')}\n")


def _run(arguments: argparse.Namespace) -> int:
    try:
        asked: int | None = asyncio.run(arguments.command(arguments))
        sys.stdout.flush()
    except ApiError as error:
        overtaken = isinstance(error, Conflict) and not error.status
        return _refused(f"error: {error}: try again" if overtaken else str(error))
    except UserError as error:
        return _refused(f"error: {error}")
    except KubectlFailed as error:
        return error.status
    except KeyboardInterrupt:
        return KILLED_BY_SIGINT
    except BrokenPipeError:  # `| head` has read enough; the interpreter must not flush into it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return asked or 0


def _refused(words: str) -> int:
    sys.stderr.write(f"{printable(words)}\n")
    return 1


class _Parser(argparse.ArgumentParser):
    """Tells a wrong command line in one line, with exit status 1, as kubectl does."""

    def __init__(self, **given: Any) -> None:
        super().__init__(allow_abbrev=False, **given)

    def error(self, message: str) -> NoReturn:
        raise SystemExit(_refused(f"error: {message}: see '{self.prog} --help'"))


def _parser() -> _Parser:
    parser = _Parser(
        prog="kubectl perdure",
        description="What training jobs do, what they wait for, and what a drain would do to them. It only reads.",
        parents=[_kubectl_flags(default=None)],
    )
    parser.add_argument("--version", action="version", version=f"kubectl-perdure {version('perdure')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    flags = _kubectl_flags(default=argparse.SUPPRESS)  # what stands before COMMAND is kept

    status = commands.add_parser("status", parents=[flags], help="all jobs in one table, or one job with its members")
    status.add_argument("job", nargs="?", metavar="JOB")
    status.add_argument("-l", "--selector", default="", metavar="LABELS", help="only jobs with these labels")
    status.add_argument("--members", action="store_true", help="list all members, also if many are Ready")
    status.set_defaults(command=_status)

    story = commands.add_parser("timeline", parents=[flags], help="a job's runs, moves, pauses and losses, by time")
    story.add_argument("job", metavar="JOB")
    story.set_defaults(command=_timeline)

    meaning = commands.add_parser("explain", parents=[flags], help="what a job's conditions mean, and what to do")
    meaning.add_argument("job", metavar="JOB")
    meaning.set_defaults(command=_explain)

    support = commands.add_parser("bundle", parents=[flags], help="one support file of a job, without secrets")
    support.add_argument("job", metavar="JOB")
    support.add_argument("-f", "--file", metavar="FILE", help="instead of perdure-NAMESPACE-JOB.json; - is stdout")
    support.add_argument("--operator-log", metavar="FILE", help="take the job's lines from this log; - is stdin")
    support.set_defaults(command=_bundle)

    asked = commands.add_parser("what-if", parents=[flags], help="what something would do to training jobs: drain")
    drain = asked.add_subparsers(required=True, metavar="WHAT").add_parser(
        "drain", parents=[flags], help="the jobs on these nodes: live or not and why, and when evictions are admitted"
    )
    drain.add_argument("nodes", nargs="+", metavar="NODE")
    drain.add_argument("--each", action="store_true", help="as if each of these nodes were drained alone")
    rows = drain.add_mutually_exclusive_group()
    rows.add_argument("--operator", default="perdure-system/perdure", metavar="NAMESPACE/RELEASE", help="whose rows")
    rows.add_argument("--signals", metavar="FILE.yaml", help="rows as in the chart's value signals, from this file")
    drain.set_defaults(command=_what_if_drained)
    return parser


def _kubectl_flags(default: Any) -> _Parser:
    """The flags of kubectl itself, accepted before and after the command."""
    flags = _Parser(add_help=False, argument_default=default)
    flags.add_argument("-n", "--namespace", metavar="NAMESPACE", help="instead of the context's")
    flags.add_argument("-A", "--all-namespaces", action="store_true", default=default or False)
    passed = flags.add_argument_group("flags that kubectl gets as they are, see kubectl options")
    for name in PASSED_ON:
        short = ["-s"] if name == "server" else []
        passed.add_argument(*short, f"--{name}", metavar="...", action="append" if name == "as-group" else "store")
    output = flags.add_mutually_exclusive_group()
    output.add_argument("-o", "--output", choices=["json", "wide"], help="wide: whole texts on a terminal")
    output.add_argument("--json", dest="output", action="store_const", const="json", help="the same as -o json")
    return flags


async def _status(arguments: argparse.Namespace) -> None:
    api, namespace = await _where(arguments)
    if arguments.job is not None:
        seen = await reading.job(api, _one(namespace), arguments.job)
        page = status_page.job_page(seen)
        _show(arguments, page, status_page.page_of_job(page, seen.now, every=arguments.members))
        return
    rows = [summary(one) for one in await reading.jobs(api, namespace, arguments.selector)]
    if not rows and arguments.output != "json":
        there = "in any namespace" if namespace is None else f"in {namespace} namespace"
        sys.stderr.write(f"No training jobs found {there}.\n")
        return
    _show(arguments, rows, status_page.table_of_jobs(rows, api.server_time(), namespaces=namespace is None))


def _readable(seen: JobSeen) -> JobSeen:
    if not seen.known:
        raise UserError(f"the status of {'/'.join(seen.record.key)} cannot be read: {seen.record.fault}")
    return seen


async def _timeline(arguments: argparse.Namespace) -> None:
    api, namespace = await _where(arguments)
    seen = _readable(await reading.job_alone(api, _one(namespace), arguments.job))
    found = timeline.timeline(seen, await reading.events(api, seen))
    _show(arguments, found, timeline.page(found, seen.now))


async def _explain(arguments: argparse.Namespace) -> None:
    api, namespace = await _where(arguments)
    seen = _readable(await reading.job_alone(api, _one(namespace), arguments.job))
    meanings = timeline.explain(seen.status)
    _show(arguments, meanings, timeline.page_of_meanings(meanings))


async def _bundle(arguments: argparse.Namespace) -> None:
    log = _lines(arguments.operator_log) if arguments.operator_log else []
    api, namespace = await _where(arguments)
    parts = await reading.for_a_bundle(api, _one(namespace), arguments.job)
    made = bundle.bundle(parts, log, version=version("perdure"), now=api.server_time())
    text = json.dumps(made, indent=2) + "\n"
    if arguments.file == "-":
        sys.stdout.write(text)
        return
    path = Path(arguments.file or f"perdure-{namespace}-{arguments.job}.json")
    _create(path, text)
    counts = f"{len(made['pods'])} pods, {len(made['events'])} events, {len(made['operatorLog'])} lines of the operator"
    missing = f"; without {', '.join(made['missing'])}, which you may not read" if made["missing"] else ""
    sys.stderr.write(f"{path}: the job, {counts}{missing}. Read it before you send it: tracebacks are as they were.\n")


def _lines(path: str) -> list[str]:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(errors="replace")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    return text.splitlines()


def _create(path: Path, text: str) -> None:
    """Write a new file that only its owner may read."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path} exists: remove it, or name another with --file") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None


async def _what_if_drained(arguments: argparse.Namespace) -> int:
    api, nodes = _kubectl(arguments), tuple(dict.fromkeys(one.removeprefix("node/") for one in arguments.nodes))
    namespace = None if arguments.all_namespaces else _given(arguments)
    operator = await _operator(arguments, api)
    rules = what_if.Rules(operator.row_source, version("perdure"), operator.version, namespace)
    seen = await reading.before_a_drain(api, namespace, nodes, operator.rows)
    now, unreadable = api.server_time(), any(isinstance(one, what_if.Unseen) for one in seen)
    if arguments.each:
        drains = [what_if.what_if(seen, [node], now, rules) for node in nodes]
        _show(arguments, drains, what_if.table_of_each(drains))
    else:
        found = what_if.what_if(seen, nodes, now, rules)
        _show(arguments, found, what_if.page(found))
    return 1 if unreadable else 0


async def _operator(arguments: argparse.Namespace, api: Kubectl) -> reading.Operator:
    if arguments.signals:
        return reading.Operator(read_rows(Path(arguments.signals)), f"those of {arguments.signals}")
    namespace, _, release = arguments.operator.partition("/")
    return await reading.operator(api, namespace, release)


async def _where(arguments: argparse.Namespace) -> tuple[Kubectl, str | None]:
    """The cluster, and the namespace to look at; None for all."""
    api = _kubectl(arguments)
    return api, None if arguments.all_namespaces else _given(arguments) or await api.namespace()


def _given(arguments: argparse.Namespace) -> str | None:
    given: str | None = arguments.namespace
    return None if given is None else reading.name_of("namespace", given)


def _one(namespace: str | None) -> str:
    if namespace is None:
        raise UserError("a resource cannot be retrieved by name across all namespaces")
    return namespace


def _kubectl(arguments: argparse.Namespace) -> Kubectl:
    given = {name: getattr(arguments, name.replace("-", "_")) for name in PASSED_ON}
    many = {name: [value] if isinstance(value, str) else value for name, value in given.items() if value is not None}
    return Kubectl([f"--{name}={value}" for name, values in many.items() for value in values])


def _show(arguments: argparse.Namespace, content: BaseModel | Sequence[BaseModel], page: Page) -> None:
    if arguments.output != "json":
        whole = arguments.output == "wide" or not sys.stdout.isatty()
        draw(page, sys.stdout, columns=None if whole else shutil.get_terminal_size().columns)
        return
    plain = _plain(content) if isinstance(content, BaseModel) else {"items": [_plain(one) for one in content]}
    sys.stdout.write(json.dumps(plain, indent=2) + "\n")


def _plain(content: BaseModel) -> dict[str, Any]:
    return content.model_dump(mode="json", by_alias=True)
