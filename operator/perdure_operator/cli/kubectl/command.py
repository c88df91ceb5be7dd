"""The command line of `kubectl perdure`. A refusal is one line on stderr and exit status 1, as kubectl's are."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn

from pydantic import BaseModel

from perdure.errors import UserError
from perdure_operator.api.configured import read_rows
from perdure_operator.api.default_signals import SAVE_ANNOTATION, VACATE_ANNOTATION
from perdure_operator.cli.kubectl import (
    bundle,
    checkpoint,
    internals,
    logs,
    moving,
    reading,
    status_page,
    timeline,
    top,
    what_if,
)
from perdure_operator.cli.kubectl.client import Kubectl, KubectlFailed
from perdure_operator.cli.kubectl.following import JobLogs
from perdure_operator.cli.kubectl.job import JobSeen, summary
from perdure_operator.cli.kubectl.logs import PAUSE_SECONDS
from perdure_operator.cli.kubectl.page import Page, clock, printable
from perdure_operator.cli.kubectl.screen import LiveScreen, draw, ended_by
from perdure_operator.cli.kubectl.timeline_html import html_page
from perdure_operator.cluster.protocol import JOBS, ApiError, Conflict, NotFound
from perdure_operator.cluster.read.records import JobRecord

logger = logging.getLogger(__name__)

PASSED_ON: Final = (
    *("context", "kubeconfig", "cluster", "user", "as", "as-uid", "as-group", "server", "token", "request-timeout"),
    *("certificate-authority", "tls-server-name", "client-certificate", "client-key"),
)
"""Flags of kubectl that choose the cluster and the user."""
NEVER_PRINTED: Final = frozenset({"token"})
ATTEMPTS: Final = 10
"""How often a job is asked again that others write meanwhile."""
MOST_LOGS: Final = 16
"""How many logs are read at a time: each is a kubectl."""
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
        description="What training jobs do, and what a drain would do to them. Only move and checkpoint write.",
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

    live = commands.add_parser("top", parents=[flags], help="how fast jobs train, refreshed on a terminal until Ctrl-C")
    live.add_argument("-l", "--selector", default="", metavar="LABELS", help="only jobs with these labels")
    live.add_argument("--once", action="store_true", help="print it once and end, as in a pipe")
    live.add_argument("--every", type=_count, default=5, metavar="SECONDS", help="how often it is read, 5 by default")
    live.set_defaults(command=_top)

    story = commands.add_parser("timeline", parents=[flags], help="a job's runs, moves, pauses and losses, by time")
    story.add_argument("job", metavar="JOB")
    story.add_argument("--html", metavar="FILE", help="write it as one page for a browser; - is stdout")
    story.set_defaults(command=_timeline)

    lines = commands.add_parser("logs", parents=[flags], help="the lines of all members by time, with run and rank")
    lines.add_argument("job", metavar="JOB")
    lines.add_argument("-f", "--follow", action="store_true", help="go on while members change, until the job is over")
    lines.add_argument(
        "--tail", type=_count, metavar="LINES", help="begin with so many of the last lines of each member"
    )
    lines.add_argument(
        "--max-log-requests", type=_count, default=MOST_LOGS, metavar="LOGS", help="read so many at a time"
    )
    lines.set_defaults(command=_logs)

    meaning = commands.add_parser("explain", parents=[flags], help="what a job's conditions mean, and what to do")
    meaning.add_argument("job", metavar="JOB")
    meaning.add_argument(
        "--internals", action="store_true", help="instead, what the operator keeps for itself in status"
    )
    meaning.set_defaults(command=_explain)

    support = commands.add_parser("bundle", parents=[flags], help="one support file of a job, without secrets")
    support.add_argument("job", metavar="JOB")
    support.add_argument("-f", "--file", metavar="FILE", help="instead of perdure-NAMESPACE-JOB.json; - is stdout")
    support.add_argument("--operator-log", metavar="FILE", help="take the job's lines from this log; - is stdin")
    support.set_defaults(command=_bundle)

    _add_requests(commands, flags)

    asked = commands.add_parser("what-if", parents=[flags], help="what something would do to training jobs: drain")
    drain = asked.add_subparsers(required=True, metavar="WHAT").add_parser(
        "drain", parents=[flags], help="the jobs on these nodes: live or not and why, and when evictions are admitted"
    )
    drain.add_argument("nodes", nargs="+", metavar="NODE")
    drain.add_argument("--each", action="store_true", help="as if each of these nodes were drained alone")
    _rows_of(drain)
    drain.set_defaults(command=_what_if_drained)
    return parser


def _add_requests(commands: argparse._SubParsersAction[_Parser], flags: _Parser) -> None:
    """The commands that write."""
    off = commands.add_parser(
        "move", parents=[flags], help="ask jobs to leave nodes: new members start elsewhere first"
    )
    off.add_argument("job", nargs="?", metavar="JOB", help="instead of all jobs of the namespace with pods there")
    off.add_argument("--off", action="append", required=True, metavar="NODE", help="may be given several times")
    instead = off.add_mutually_exclusive_group()
    instead.add_argument("--dry-run", action="store_true", help="write nothing, and tell what the jobs would do")
    instead.add_argument("--withdraw", action="store_true", help="withdraw that: members may train there again")
    _rows_of(off)
    off.set_defaults(command=_move)

    save = commands.add_parser("checkpoint", parents=[flags], help="ask a job's run to save now and to train on")
    save.add_argument("job", metavar="JOB")
    save.add_argument("--dry-run", action="store_true", help="write nothing, and tell what is known of its commits")
    save.add_argument("--wait", type=_count, metavar="SECONDS", help="until a newer commit is reported; else status 1")
    save.set_defaults(command=_checkpoint)


def _rows_of(parser: argparse.ArgumentParser) -> None:
    """Where the operator's own rows of the table of signals come from."""
    rows = parser.add_mutually_exclusive_group()
    rows.add_argument("--operator", default="perdure-system/perdure", metavar="NAMESPACE/RELEASE", help="whose rows")
    rows.add_argument("--signals", metavar="FILE.yaml", help="rows as in the chart's value signals, from this file")


def _count(given: str) -> int:
    """A whole number from 0 on; argparse tells what is none."""
    if not given.isdecimal():
        raise argparse.ArgumentTypeError(f'"{given}" is no number from 0 on')
    return int(given)


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
        sys.stderr.write(f"No training jobs found {_there(namespace)}.\n")
        return
    _show(arguments, rows, status_page.table_of_jobs(rows, api.server_time(), namespaces=namespace is None))


def _there(namespace: str | None) -> str:
    return "in any namespace" if namespace is None else f"in {namespace} namespace"


async def _top(arguments: argparse.Namespace) -> None:
    api, namespace = await _where(arguments)
    rows = await _paces(arguments, api, namespace)
    if arguments.once or arguments.output == "json" or not sys.stdout.isatty():
        if rows or arguments.output == "json":
            _show(arguments, rows, top.page(rows, api.server_time(), namespaces=namespace is None))
        else:
            sys.stderr.write(f"No training job trains {_there(namespace)}.\n")
        return
    try:
        with LiveScreen(sys.stdout) as screen, ended_by(signal.SIGTERM):
            await _refreshed(arguments, api, namespace, rows, screen)
    except asyncio.CancelledError:  # Ctrl-C is how a user leaves it
        return


async def _refreshed(
    arguments: argparse.Namespace, api: Kubectl, namespace: str | None, rows: list[top.JobPace], screen: LiveScreen
) -> NoReturn:
    trouble = ""
    while True:
        page = top.page(rows, api.server_time(), namespaces=namespace is None)
        screen.show((*page, trouble) if trouble else page)
        await asyncio.sleep(max(1, arguments.every))
        try:
            rows, trouble = await _paces(arguments, api, namespace), ""
        except (ApiError, KubectlFailed) as error:
            trouble = trouble or f"Not read since {clock(api.server_time(), api.server_time())}: {error}"


async def _paces(arguments: argparse.Namespace, api: Kubectl, namespace: str | None) -> list[top.JobPace]:
    """Of the jobs that are not over."""
    return [top.pace(one) for one in await reading.jobs(api, namespace, arguments.selector) if top.goes_on(one)]


def _readable(seen: JobSeen) -> JobSeen:
    if not seen.known:
        raise UserError(f"the status of {'/'.join(seen.record.key)} cannot be read: {seen.record.fault}")
    return seen


async def _timeline(arguments: argparse.Namespace) -> None:
    if arguments.html and arguments.output:
        raise UserError(f"--html and -o {arguments.output} exclude each other")
    api, namespace = await _where(arguments)
    seen = _readable(await reading.job_alone(api, _one(namespace), arguments.job))
    found = timeline.timeline(seen, await reading.events(api, seen))
    if arguments.html:
        _write_html(arguments.html, html_page(found, seen.now))
        return
    _show(arguments, found, timeline.page(found, seen.now))


async def _logs(arguments: argparse.Namespace) -> None:
    api, namespace = await _where(arguments)
    seen = await reading.job_alone(api, _one(namespace), arguments.job)

    def show(line: logs.LogLine) -> None:
        text = json.dumps(_plain(line)) if arguments.output == "json" else logs.in_words(line)
        sys.stdout.write(f"{text}\n")
        if arguments.follow:
            sys.stdout.flush()

    found = JobLogs(api, seen, show, most=arguments.max_log_requests, tail=arguments.tail)
    if arguments.follow:
        sys.stderr.write(f"{printable(await found.follow())}\n")
    else:
        await found.show()


def _write_html(file: str, text: str) -> None:
    if file == "-":
        sys.stdout.write(text)
        return
    _create(Path(file), text, "--html")
    words = "open it in a browser. It has names of nodes, and errors as they were"
    sys.stderr.write(f"{file}: one page, which needs no other file: {words}.\n")


async def _explain(arguments: argparse.Namespace) -> None:
    api, namespace = await _where(arguments)
    seen = _readable(await reading.job_alone(api, _one(namespace), arguments.job))
    if arguments.internals:
        kept = internals.internals(seen.status)
        _show(arguments, kept, internals.page(kept))
        return
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
    _create(path, text, "--file")
    counts = f"{len(made['pods'])} pods, {len(made['events'])} events, {len(made['operatorLog'])} lines of the operator"
    missing = f"; without {', '.join(made['missing'])}, which you may not read" if made["missing"] else ""
    sys.stderr.write(f"{path}: the job, {counts}{missing}. Read it before you send it: tracebacks are as they were.\n")


def _lines(path: str) -> list[str]:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(errors="replace")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    return text.splitlines()


def _create(path: Path, text: str, flag: str) -> None:
    """Write a new file that only its owner may read. `flag` is what names it."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path} exists: remove it, or name another with {flag}") from None
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


async def _checkpoint(arguments: argparse.Namespace) -> int:
    api, namespace = await _where(arguments)
    namespace = _one(namespace)
    before = seen = await reading.job_alone(api, namespace, arguments.job)
    if refusal := checkpoint.refusal(before, wait=arguments.wait is not None):
        raise UserError(refusal)
    asked, newer = None, None
    if not arguments.dry_run:
        asked = checkpoint.value(api.server_time())
        await api.annotate(JOBS, namespace, arguments.job, {SAVE_ANNOTATION: asked})
        if arguments.wait is not None:
            seen = await _saved_since(api, before, asked, arguments.wait)
            newer = checkpoint.is_newer(before, seen, asked)
    found = checkpoint.answer(seen, asked, newer=newer)
    _show(arguments, found, checkpoint.page(seen, found, _flags_to_print(arguments)))
    if newer is False:
        over = logs.how_it_ended(seen)
        logger.error("no newer commit was reported%s", f": {over}" if over else f" within {arguments.wait} s")
    return 0


async def _saved_since(api: Kubectl, before: JobSeen, asked: str, seconds: int) -> JobSeen:
    """The job once a commit for this request is reported, or it is over, or after so many seconds."""
    until, seen, trouble = time.monotonic() + seconds, before, ""
    try:
        while not (checkpoint.is_newer(before, seen, asked) or logs.how_it_ended(seen)):
            left = until - time.monotonic()
            if left <= 0:
                break
            await asyncio.sleep(min(left, PAUSE_SECONDS))
            try:
                seen = await reading.job_alone(api, *before.record.key)
            except NotFound:
                raise
            except (ApiError, KubectlFailed) as error:
                if trouble != str(error):
                    trouble = str(error)
                    logger.warning("the job cannot be read, and is tried again: %s", trouble)
    except asyncio.CancelledError:
        logger.warning("the request stands: %s/%s saves all the same", *before.record.key)
        raise
    return seen


async def _move(arguments: argparse.Namespace) -> int:
    api, namespace = await _where(arguments)
    name: str | None = arguments.job
    nodes = tuple(dict.fromkeys(reading.name_of("node", one.removeprefix("node/")) for one in arguments.off))
    if arguments.withdraw:
        return await _withdraw(arguments, api, namespace, nodes)
    found = await reading.on_nodes(api, _one(namespace) if name else namespace, name, nodes)
    if not found:
        if name:
            raise UserError(f"{namespace}/{name} has no pod on {', '.join(nodes)}")
        nothing = moving.Foretold(requests=(), moves=()) if arguments.dry_run else ()
        return _nobody(arguments, nothing, moving.nobody(nodes, namespace))
    flags, willing = _flags_to_print(arguments), list[moving.JobThere]()
    for one in found:
        refusal = moving.refusal(one, flags)
        if refusal and len(found) == 1:
            raise UserError(refusal)
        if refusal:
            logger.error("%s", refusal)
        else:
            willing.append(one)
    if arguments.dry_run:
        requests = [moving.request(one, flags) for one in willing]
        return await _move_foretold(arguments, api, namespace, nodes, requests)
    await _of_each(
        arguments, willing, lambda one: _asked(api, one, nodes, flags), "was not asked to leave", moving.page
    )
    return 0


def _nobody(arguments: argparse.Namespace, nothing: BaseModel | Sequence[BaseModel], words: str) -> int:
    if arguments.output == "json":
        _show(arguments, nothing, ())
    else:
        sys.stderr.write(f"{words}\n")
    return 0


async def _of_each(
    arguments: argparse.Namespace,
    jobs: Sequence[moving.JobThere],
    write: Callable[[moving.JobThere], Awaitable[Sequence[BaseModel]]],
    failed: str,
    page: Callable[[Sequence[Any]], Page],
) -> None:
    """Write to one job after the other, and show what was written, also if that is cut short.

    Of several jobs one that cannot be written is named with these words, and the others follow.
    """
    written = list[BaseModel]()
    try:
        for one in jobs:
            try:
                written += await write(one)
            except (ApiError, KubectlFailed, UserError) as error:
                if len(jobs) == 1:
                    raise
                logger.error("%s/%s %s: %s", *one.record.key, failed, error)
    finally:
        if written:
            _show(arguments, written, page(written))


async def _withdraw(arguments: argparse.Namespace, api: Kubectl, namespace: str | None, nodes: Sequence[str]) -> int:
    if arguments.job:
        known = [await reading.job_alone(api, _one(namespace), arguments.job)]
    else:
        known = await reading.jobs(api, namespace)
    asked = [moving.JobThere(one.record, ()) for one in known if moving.withdrawal(one.record, nodes)]
    if not asked and arguments.job:
        raise UserError(moving.not_asked(known[0].record, nodes))
    if not asked:
        return _nobody(arguments, (), moving.nobody(nodes, namespace, "is asked to leave"))
    words = "has its request as before"
    await _of_each(arguments, asked, lambda one: _withdrawn(api, one.record, nodes), words, moving.page_of_withdrawals)
    return 0


async def _withdrawn(api: Kubectl, record: JobRecord, nodes: Sequence[str]) -> list[moving.Withdrawal]:
    """Ask the job for no more than is left without these nodes; [] if somebody else has done that meanwhile."""
    for attempt in range(ATTEMPTS):
        found = moving.withdrawal(record, nodes)
        if found is None:
            break
        try:
            annotations = {VACATE_ANNOTATION: found.vacate or None}
            await api.annotate(JOBS, *record.key, annotations, version=record.resource_version)
        except Conflict:
            if attempt + 1 == ATTEMPTS:
                raise
            record = (await reading.job_alone(api, *record.key)).record
        else:
            return [found]
    return []


async def _asked(
    api: Kubectl, found: moving.JobThere, nodes: Sequence[str], flags: Sequence[str]
) -> list[moving.LeaveRequest]:
    """Ask the job to leave the nodes; [] if it has left them meanwhile."""
    namespace, name = found.record.key
    for attempt in range(ATTEMPTS):
        if refusal := moving.refusal(found, flags):
            raise UserError(refusal)
        request = moving.request(found, flags)
        if request.asked_before:
            return [request]
        try:
            annotations = {VACATE_ANNOTATION: request.vacate}
            await api.annotate(JOBS, namespace, name, annotations, version=found.record.resource_version)
        except Conflict:  # somebody has written it meanwhile, as the operator does
            if attempt + 1 == ATTEMPTS:
                raise
            newer = await reading.on_nodes(api, namespace, name, nodes)
            if not newer:
                break
            (found,) = newer
        else:
            return [request]
    return []


async def _move_foretold(
    arguments: argparse.Namespace,
    api: Kubectl,
    namespace: str | None,
    nodes: Sequence[str],
    requests: list[moving.LeaveRequest],
) -> int:
    operator = await _operator(arguments, api)
    rules = what_if.Rules(operator.row_source, version("perdure"), operator.version, namespace)
    asked = {(one.namespace, one.name): one for one in requests if not one.asked_before}
    moves, unreadable = [], False
    for one in await reading.before_a_drain(api, namespace, nodes, operator.rows):
        if isinstance(one, what_if.Unseen):
            if (one.namespace, one.name) in asked:
                unreadable = True
                logger.error("%s/%s cannot be read, so it is not judged: %s", one.namespace, one.name, one.why)
        elif request := asked.get((one.snapshot.namespace, one.snapshot.name)):
            moves.append(what_if.move(one, nodes, request.vacate))
    foretold = moving.Foretold(requests=tuple(requests), moves=tuple(moves))
    _show(arguments, foretold, moving.page_of_foretold(foretold, rules, api.server_time()))
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
    return Kubectl(_flags(arguments, PASSED_ON))


def _flags_to_print(arguments: argparse.Namespace) -> list[str]:
    """Those that a command for the same cluster and user needs, without what nobody may see."""
    return _flags(arguments, [one for one in PASSED_ON if one not in NEVER_PRINTED])


def _flags(arguments: argparse.Namespace, names: Sequence[str]) -> list[str]:
    given = {name: getattr(arguments, name.replace("-", "_")) for name in names}
    many = {name: [value] if isinstance(value, str) else value for name, value in given.items() if value is not None}
    return [f"--{name}={value}" for name, values in many.items() for value in values]


def _show(arguments: argparse.Namespace, content: BaseModel | Sequence[BaseModel], page: Page) -> None:
    if arguments.output != "json":
        whole = arguments.output == "wide" or not sys.stdout.isatty()
        draw(page, sys.stdout, columns=None if whole else shutil.get_terminal_size().columns)
        return
    plain = _plain(content) if isinstance(content, BaseModel) else {"items": [_plain(one) for one in content]}
    sys.stdout.write(json.dumps(plain, indent=2) + "\n")


def _plain(content: BaseModel) -> dict[str, Any]:
    return content.model_dump(mode="json", by_alias=True)
