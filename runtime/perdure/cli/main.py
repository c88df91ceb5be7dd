"""The command `perdure`: the agent of a member, its probe and hook, and tools for checkpoint roots.

    perdure run [options] -- COMMAND...    PID 1 of a member: follows the assignment, runs COMMAND, writes an outcome
    perdure warm [--state FOLDER]          waits until the agent has read an assignment and imported: the startup probe
    perdure stop [--state FOLDER]          tells the agent that its pod is being deleted: the preStop hook
    perdure describe [--json] -- COMMAND... what a training command would do; it ends before its first batch
    perdure log | verify [--json] ROOT     list what a checkpoint root's log says, verify all of the root
    perdure show [--json] ROOT[@ENTRY]     show its newest commit, or the one with this number in the log
    perdure diff [--json] A B              say what differs between two commits, each of them ROOT or ROOT@ENTRY
    perdure copy [--json] SOURCE TARGET    copy a root into another store, each block verified, the log last
    perdure pin | unpin [--json] ROOT[@ENTRY]  keep a commit, or let its training delete it again
    perdure gc [--json] ROOT               list the unneeded data of a root; --delete deletes it
    perdure store-check [--json] ROOT      whether the store keeps the promises that checkpoints rest on
    perdure export ROOT[@ENTRY] NAME TO    write a registered object's state as safetensors, torch.save or dcp
    perdure import FROM ROOT NAME          make a root of a file of torch.save, of dcp or of safetensors
    perdure convert FILE | -- torchrun...  make a TrainingJob of another system's job, with remarks on what differs

Modules are imported where they are used, because `perdure warm` runs again and again beside a starting pod's
imports. A user's mistake is one line on stderr and status 2; damage, a store that is silent or breaks a promise, or a
difference that `diff` finds is status 1. Long commands draw a bar on stderr where that is a terminal.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from perdure.errors import PerdureError, UserError

if TYPE_CHECKING:
    from perdure.agent.state import AgentSettings
    from perdure.checkpoint.inspect import Line
    from perdure.cli.progress import Bar
    from perdure.store import Store
    from perdure.wire import CommitSelector


INSPECTIONS: Final = {
    "log": "list what a checkpoint root's log says, newest first",
    "verify": "read every commit of a checkpoint root and check its checksums",
}


PINNINGS: Final = {
    "pin": "keep a commit: no training deletes it, the newest or one by its number",
    "unpin": "unpin a commit that was pinned by hand: its training may delete it again",
}


NEEDED: Final = {
    **dict.fromkeys(("torch", "numpy", "safetensors", "awscrt"), "runtime"),
    **dict.fromkeys(("pydantic", "yaml"), "kubectl"),
}
"""Packages that commands need, with the extra that brings each."""


WARM_SECONDS: Final = 5.0
"""Half of the time that the kubelet gives its probe. A probe that failed at once would be executed again each
second."""
WARM_POLL_SECONDS: Final = 0.1


class _Version(argparse.Action):
    """Like argparse's own, which needs the version in advance: finding it takes half of the command's start."""

    def __call__(self, parser: argparse.ArgumentParser, *_given: object) -> NoReturn:
        from importlib.metadata import version  # noqa: PLC0415

        print(f"perdure {version('perdure')}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status of `perdure ARGV`."""
    options = _parser().parse_args(argv)
    commands = {"run": _run, "warm": _warm, "stop": _stop, "describe": _describe}
    commands |= {"show": _show, "diff": _diff, "export": _export, "store-check": _check_store, "copy": _copy, "gc": _gc}
    commands |= {"pin": _pin, "unpin": _pin, "import": _import, "log": _log, "verify": _verify, "convert": _convert}
    try:
        return commands[options.command](options)
    except PerdureError as error:
        print(f"perdure: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except ModuleNotFoundError as error:
        lacks = (error.name or "").partition(".")[0]
        if lacks not in NEEDED:
            raise
        print(f"perdure: error: {lacks} is not installed: pip install 'perdure[{NEEDED[lacks]}]'", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `perdure log ROOT | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="perdure", description="The runtime of Perdure training jobs.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a training command as this member's assignment says")
    run.add_argument("--assignment", type=Path, metavar="FILE", help="default: the pod's downward-API file")
    run.add_argument("--termination-log", type=Path, metavar="FILE", help="where the outcome is written")
    run.add_argument("trainer", nargs=argparse.REMAINDER, metavar="-- COMMAND...", help="the training command")
    warm = commands.add_parser("warm", help="wait until the agent has read an assignment and imported")
    seconds = f"fail after this many seconds, default: {WARM_SECONDS:g}"
    warm.add_argument("--seconds", type=float, default=WARM_SECONDS, metavar="SECONDS", help=seconds)
    stop = commands.add_parser("stop", help="tell the agent that its pod is being deleted")
    for command in (run, warm, stop):
        command.add_argument("--state", type=Path, metavar="FOLDER", help="default: perdure below $TMPDIR")
    describe = commands.add_parser("describe", help="say what a training command would do, without training")
    describe.add_argument("--json", action="store_true", help="as JSON")
    describe.add_argument("trainer", nargs=argparse.REMAINDER, metavar="-- COMMAND...", help="the training command")
    where = "a folder or s3://BUCKET/PREFIX"
    for name, what in INSPECTIONS.items():
        inspection = commands.add_parser(name, help=what)
        inspection.add_argument("root", metavar="ROOT", help=where)
        inspection.add_argument("--json", action="store_true", help="an object a line")
    show = commands.add_parser("show", help="show a commit of a checkpoint root: the newest, or one by its number")
    show.add_argument("commit", metavar="ROOT[@ENTRY]", help=f"{where}; ENTRY: its number in the log")
    show.add_argument("--tensors", action="store_true", help="list every tensor")
    show.add_argument("--json", action="store_true", help="one object")
    diff = commands.add_parser("diff", help="say what differs between two commits; status 1 if anything does")
    diff.add_argument("a", metavar="A", help="ROOT or ROOT@ENTRY")
    diff.add_argument("b", metavar="B", help="ROOT or ROOT@ENTRY, also in another store")
    diff.add_argument("--tensors-only", action="store_true", help="leave out positions, random generators and the like")
    diff.add_argument("--json", action="store_true", help="an object a line")
    store_check = commands.add_parser("store-check", help="check whether a store keeps the promises of checkpoints")
    store_check.add_argument("root", metavar="ROOT", help=f"{where}: small objects are written there, and deleted")
    store_check.add_argument("--json", action="store_true", help="an object a line")
    copy = commands.add_parser("copy", help="copy a checkpoint root into another store, each block verified")
    copy.add_argument("source", metavar="SOURCE", help=where)
    copy.add_argument("target", metavar="TARGET", help=f"{where}: without a log, or with an older copy of this one")
    copy.add_argument("--json", action="store_true", help="an object a line")
    for name, what in PINNINGS.items():
        pinning = commands.add_parser(name, help=what)
        pinning.add_argument("commit", metavar="ROOT[@ENTRY]", help=f"{where}; ENTRY: its number in the log")
        pinning.add_argument("--json", action="store_true", help="one object")
    gc = commands.add_parser("gc", help="list the unneeded data of a checkpoint root, and delete it")
    gc.add_argument("root", metavar="ROOT", help=where)
    gc.add_argument("--keep", type=int, metavar="N", help="also all but the newest N commits; pinned ones stay")
    gc.add_argument("--keep-every-steps", type=int, metavar="N", help="with --keep: not the first of every N steps")
    gc.add_argument("--delete", action="store_true", help="delete what is listed")
    gc.add_argument("--json", action="store_true", help="an object a line")
    _add_files(commands, where)
    return parser


def _add_files(commands: argparse._SubParsersAction[argparse.ArgumentParser], where: str) -> None:
    """The commands that write and read files of other programs."""
    export = commands.add_parser("export", help="write a registered object's state as a file that needs no Perdure")
    export.add_argument("commit", metavar="ROOT[@ENTRY]", help=f"{where}; ENTRY: its number in the log")
    export.add_argument("name", metavar="NAME", help="its name in the script's register(), such as model")
    export.add_argument("to", metavar="TO", type=Path, help="a file or folder that does not exist yet")
    export.add_argument(
        "--format",
        choices=["hf", "torch", "dcp"],
        default="hf",
        help="hf: a folder with model.safetensors (default); torch: a file for torch.load; dcp: a folder for "
        "torch.distributed.checkpoint",
    )
    export.add_argument("--json", action="store_true", help="one object")
    importing = commands.add_parser("import", help="make a checkpoint root from a file of another program")
    importing.add_argument(
        "source",
        metavar="FROM",
        type=Path,
        help="a file of torch.save or safetensors, or a folder of dcp or safetensors",
    )
    importing.add_argument("root", metavar="ROOT", help=f"{where}, where nothing was trained")
    importing.add_argument("name", metavar="NAME", help="its name in a script's register(), such as model")
    importing.add_argument("--take", metavar="KEY", help="where in it the state_dict is, such as model or state.model")
    importing.add_argument("--json", action="store_true", help="one object")
    convert = commands.add_parser("convert", help="make a TrainingJob of a job of another system")
    what = "a PyTorchJob, TrainJob, JobSet or Job in YAML or JSON, - for stdin; or -- and a torchrun command line"
    convert.add_argument("source", metavar="FILE", nargs="+", help=what)
    convert.add_argument("--checkpoint", default="", metavar="ROOT", help="where it checkpoints: s3://BUCKET/PREFIX")
    convert.add_argument("--image", default="", metavar="IMAGE", help="of a command line: the image of its script")
    convert.add_argument("--comments", action="store_true", help="write the remarks into the manifest, too")


def _convert(options: argparse.Namespace) -> int:
    from perdure_operator.cli.convert import command  # noqa: PLC0415 - the operator has the TrainingJob's schema

    return command.run(options.source, checkpoint=options.checkpoint, image=options.image, comments=options.comments)


def _warm(options: argparse.Namespace) -> int:
    from perdure.agent.paths import default_scratch, warm_marker  # noqa: PLC0415

    marker, deadline = warm_marker(options.state or default_scratch(os.environ)), time.monotonic() + options.seconds
    while not marker.exists():
        if time.monotonic() >= deadline:
            print("not warm yet: the agent waits for its assignment, or imports what the script needs")  # in an event
            return 1
        time.sleep(WARM_POLL_SECONDS)
    return 0


def _stop(options: argparse.Namespace) -> int:
    from perdure.agent.paths import default_scratch  # noqa: PLC0415
    from perdure.agent.stop import write_stop  # noqa: PLC0415

    scratch = options.state or default_scratch(os.environ)
    try:
        write_stop(scratch)
    except OSError as error:
        raise UserError(f"{scratch} is not writable: {error.strerror}: name the agent's folder with --state") from None
    return 0


def _log(options: argparse.Namespace) -> int:
    from perdure.checkpoint import inspect  # noqa: PLC0415
    from perdure.wire.settings import as_uri  # noqa: PLC0415

    _print(inspect.log(as_uri(options.root), os.environ), options)
    return 0


def _verify(options: argparse.Namespace) -> int:
    from perdure.checkpoint import inspect  # noqa: PLC0415
    from perdure.wire.settings import as_uri  # noqa: PLC0415

    with _bar(options) as bar:
        _print(inspect.verify(as_uri(options.root), os.environ, bar.expect), options, bar)
    return 0


def _show(options: argparse.Namespace) -> int:
    from perdure.checkpoint import inspect  # noqa: PLC0415

    _print(inspect.show(*_named(options.commit), os.environ, tensors=options.tensors), options)
    return 0


def _diff(options: argparse.Namespace) -> int:
    from perdure.checkpoint.compare import Side, diff  # noqa: PLC0415

    with _bar(options) as bar:
        left, right = (Side.read(*_named(text), os.environ) for text in (options.a, options.b))
        *_, summary = _print(diff(left, right, tensors_only=options.tensors_only), options, bar)
    return 0 if summary["equal"] else 1


def _check_store(options: argparse.Namespace) -> int:
    from perdure.checkpoint.inspect import Line  # noqa: PLC0415
    from perdure.store.check import check  # noqa: PLC0415

    lines = (Line(finding.text, asdict(finding)) for finding in check(_store(options.root)))
    return int(any(found["problem"] and found["fatal"] for found in _print(lines, options)))


def _copy(options: argparse.Namespace) -> int:
    from perdure.checkpoint.copying import copy  # noqa: PLC0415

    with _bar(options) as bar:
        lines = copy(_store(options.source), _store(options.target), bar.expect)
        return int(any("problem" in found for found in _print(lines, options, bar)))


def _pin(options: argparse.Namespace) -> int:
    from perdure.checkpoint.pinning import pin, unpin  # noqa: PLC0415

    root, wanted = _named(options.commit)
    _print({"pin": pin, "unpin": unpin}[options.command](_store(root), wanted), options)
    return 0


def _gc(options: argparse.Namespace) -> int:
    from perdure.checkpoint.garbage import gc  # noqa: PLC0415

    with _bar(options) as bar:
        store, deletes = _store(options.root), options.delete
        found = gc(store, keep=options.keep, keep_every=options.keep_every_steps, deletes=deletes, coming=bar.expect)
        _print(found, options, bar)
    return 0


def _bar(options: argparse.Namespace) -> AbstractContextManager[Bar]:
    from perdure.cli.progress import progress  # noqa: PLC0415

    return progress(options.command, as_json=options.json)


def _print(lines: Iterable[Line], options: argparse.Namespace, bar: Bar | None = None) -> list[Mapping[str, Any]]:
    """Each line as soon as it is known, as text or JSON; returns what they say."""
    found = []
    for line in lines:
        with bar.aside() if bar else nullcontext():
            print(line.printed(as_json=options.json), flush=True)
        if bar:
            bar.step()
        found.append(line.data)
    return found


def _store(root: str) -> Store:
    from perdure.store import open_store  # noqa: PLC0415
    from perdure.wire.settings import as_uri  # noqa: PLC0415

    return open_store(as_uri(root), os.environ)


def _export(options: argparse.Namespace) -> int:
    from perdure.cli.export import Format, export  # noqa: PLC0415

    with _bar(options) as bar:
        written = export(*_named(options.commit), options.name, options.to, Format(options.format))
        _print([written], options, bar)
    return 0


def _import(options: argparse.Namespace) -> int:
    from perdure.cli.importing import import_into  # noqa: PLC0415

    with _bar(options) as bar:
        written = import_into(_store(options.root), options.name, options.source, options.take)
        _print([written], options, bar)
    return 0


def _named(text: str) -> tuple[str, CommitSelector]:
    """A root's URI and the commit that is meant: ROOT, whose newest it is, or ROOT@ENTRY."""
    from perdure.wire import CommitSelector  # noqa: PLC0415
    from perdure.wire.settings import as_uri  # noqa: PLC0415

    root, at, entry = text.rpartition("@")
    if root and at and entry.isascii() and entry.isdigit() and not Path(text).is_dir():
        return as_uri(root), CommitSelector(seq=int(entry))
    return as_uri(text), CommitSelector()


def _describe(options: argparse.Namespace) -> int:
    from perdure.cli.describe import described  # noqa: PLC0415

    found = described(_command(options, "perdure describe -- python train.py"), os.environ)
    print(found.json if options.json else found.text)
    return int(found.wrong)


def _command(options: argparse.Namespace, example: str) -> list[str]:
    command: list[str] = options.trainer[1:] if options.trainer[:1] == ["--"] else options.trainer
    if not command:
        raise UserError(f"no training command: write it after two dashes: {example}")
    return command


def _run(options: argparse.Namespace) -> int:
    from perdure.agent.paths import Paths, default_scratch  # noqa: PLC0415
    from perdure.agent.shell import Agent  # noqa: PLC0415
    from perdure.agent.zygote import launcher_for  # noqa: PLC0415
    from perdure.wire import (  # noqa: PLC0415
        ASSIGNMENT_FILE,
        CHANNEL_FILE,
        REPORT_TOKEN_FILE,
        TERMINATION_LOG,
    )

    command = _command(options, "perdure run -- python train.py")
    paths = Paths(
        assignment=options.assignment or Path(ASSIGNMENT_FILE),
        termination_log=options.termination_log or Path(TERMINATION_LOG),
        scratch=options.state or default_scratch(os.environ),
        channel=Path(CHANNEL_FILE),
        report_token=Path(REPORT_TOKEN_FILE),
    )
    _check(paths.assignment, paths.scratch)
    settings = settings_from(os.environ)
    launcher = launcher_for(command, os.environ, settings.processes, sys.executable)
    return Agent(command, paths, settings, os.environ, launcher).run()


def _check(assignment: Path, scratch: Path) -> None:
    """Raise UserError for unusable paths; in a pod the operator provides both."""
    if sys.platform != "linux":
        raise UserError("perdure run needs Linux: elsewhere start the script itself, it saves on SIGTERM and Ctrl-C")
    if not assignment.parent.is_dir():
        raise UserError(
            f"there is no {assignment}: in a pod the operator mounts it; elsewhere name a file with --assignment, "
            "or start the script itself without an agent"
        )
    try:
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{scratch} cannot be created: {error.strerror}: name a folder with --state") from None
    if not os.access(scratch, os.W_OK | os.X_OK):
        raise UserError(f"{scratch} is not writable: name another folder with --state")


def settings_from(environ: Mapping[str, str]) -> AgentSettings:
    """The agent's settings, from the operator's variables."""
    from perdure.agent.state import AgentSettings  # noqa: PLC0415
    from perdure.wire import DEFAULT_GRACE_SECONDS, Completion, Env  # noqa: PLC0415

    completion = environ.get(Env.COMPLETION) or Completion.LOG
    if completion not in set(Completion):
        raise UserError(f"{Env.COMPLETION} is {completion!r}: set it to {' or '.join(Completion)}, or unset it")

    return AgentSettings(
        processes=_number(environ, Env.PROCESSES, default=1, least=1),
        completion=Completion(completion),
        grace=_number(environ, Env.GRACE_SECONDS, default=DEFAULT_GRACE_SECONDS, least=0),
        ends_hangs=_number(environ, Env.PROGRESS_TIMEOUT_SECONDS, default=0, least=0) > 0,
    )


def _number(environ: Mapping[str, str], name: str, *, default: int, least: int) -> int:
    text = environ.get(name)
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise UserError(f"{name} is {text!r}: set it to an integer of at least {least}, or unset it")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
