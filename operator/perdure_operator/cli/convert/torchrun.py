"""Reads a torchrun command: Perdure starts the processes itself, so that only the script's own command is left."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from perdure.errors import UserError
from perdure_operator.cli.convert.fields import CarriedTo, Conversion, NotCarried
from perdure_operator.cli.convert.tables import TORCHRUN

FLAGS: Final = frozenset(
    {"--standalone", "--module", "--no-python", "--run-path", "--virtual-local-rank", "--help", "--use-env"}
)
"""The options without a value."""
SHORT: Final = {"-m": "--module", "-r": "--redirects", "-t": "--tee", "-h": "--help"}
VARIABLES: Final = {
    "PET_NNODES": "--nnodes",
    "PET_NPROC_PER_NODE": "--nproc-per-node",
    "PET_MAX_RESTARTS": "--max-restarts",
}
"""Variables by which torchrun takes options that its command line does not have."""
_LAUNCH: Final = "torch.distributed.launch"
_MODULES: Final = ("torch.distributed.run", _LAUNCH)
_SHELLS: Final = ("sh", "bash", "dash", "zsh")
_LAUNCHERS: Final = (
    *("torchrun", *_MODULES, "accelerate launch", "accelerate-launch", "accelerate.commands.launch", "tune run"),
    *("deepspeed", "mpirun", "horovodrun"),
)
_QUOTED: Final = re.compile(r'''\\.|'[^']*'|"(?:\\.|[^"\\])*"''', re.DOTALL)
_EXPANDED: Final = frozenset("*?[{~")
"""What a shell expands where it is not quoted, beside variables."""


@dataclass(frozen=True)
class TorchrunCommand:
    """What a torchrun command says: the script's own command, and the options that count."""

    command: tuple[str, ...]
    nodes: str = ""
    processes: str = ""
    is_alone: bool = False
    """Whether it trains without other pods."""

    @property
    def script(self) -> str:
        """The script, module or program."""
        return next(word for word in self.command[1 if "-u" in self.command[1:2] else 0 :] if word not in ("-u", "-m"))


@dataclass(frozen=True)
class _Start:
    """The interpreter that torchrun starts the script with, and the words behind torchrun."""

    python: str
    rest: list[str]
    is_given: bool
    gives_local_rank: bool = False


def read(
    command: Sequence[str], where: str, conversion: Conversion, defaults: Mapping[str, str] | None = None
) -> TorchrunCommand | None:
    """What a command that begins with torchrun says; None of another one.

    A shell that runs nothing but torchrun is left out as well, unless it has to expand the script's arguments. Other
    launchers are remarked, and what may be one. `defaults` are options that the command need not have.
    """
    of_shell = _of_shell(command)
    start = _start(of_shell or command)
    if start is not None:
        options, script = _split(start.rest, where)
        if not of_shell or not (any("$" in word for word in script) or _EXPANDED & set(_QUOTED.sub("", command[2]))):
            return _parse({**(defaults or {}), **options}, script, start, where, conversion)
    started = [name for name in _LAUNCHERS if _runs(name, command)]
    if started:
        conversion.remark(
            where,
            f"it runs {started[0]}, and Perdure starts the processes: write the script's own command, such as "
            "[python, train.py], and set spec.processesPerReplica",
        )
    elif command and not _is_python(of_shell or command):
        conversion.remark(
            where,
            "spec.processesPerReplica processes of it are started in each member: if it starts processes itself, "
            "write the script's own command, such as [python, train.py]",
        )
    return None


def _runs(launcher: str, command: Sequence[str]) -> bool:
    line = " ".join(" ".join(command).split())
    return re.search(rf"(?<![\w.-]){re.escape(launcher)}(?![\w.-])", line) is not None


def _is_python(command: Sequence[str]) -> bool:
    return PurePosixPath(command[0]).name.startswith("python")


def _start(command: Sequence[str]) -> _Start | None:
    """What begins with `torchrun` or `python -m torch.distributed.run`; None of another command."""
    if command and PurePosixPath(command[0]).name == "torchrun":
        return _Start(f"{command[0].removesuffix('torchrun')}python", list(command[1:]), is_given=False)
    if command and _is_python(command):
        for place, word in enumerate(command[1:4], start=1):
            module = command[place + 1] if word == "-m" and len(command) > place + 1 else ""
            if module in _MODULES:
                rest = list(command[place + 2 :])
                return _Start(command[0], rest, is_given=True, gives_local_rank=module == _LAUNCH)
    return None


def _of_shell(command: Sequence[str]) -> list[str] | None:
    """The words of `sh -c SCRIPT` whose script is one simple command; None of anything else."""
    if len(command) != 3 or PurePosixPath(command[0]).name not in _SHELLS:
        return None
    if not (command[1].startswith("-") and command[1].endswith("c")):
        return None
    script = command[2].replace("\\\n", " ").strip()
    lexer = shlex.shlex(script, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""  # to a shell, # begins a comment only at the beginning of a word
    try:
        found = list(lexer)
    except ValueError:
        return None
    if "\n" in script or "`" in script or any(word[:1] == "#" or set(word) <= set("();<>|&") for word in found):
        return None
    return found[1:] if found[:1] == ["exec"] else found


def _split(given: list[str], where: str) -> tuple[dict[str, str], list[str]]:
    """The options of torchrun by their long names, and the script with its arguments."""
    options: dict[str, str] = {}
    rest = list(given)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if word[:2] in SHORT:
            name, equals, value = SHORT[word[:2]], word[2:3], word[2:]
        name = name.replace("_", "-")
        if name not in TORCHRUN:
            raise UserError(f"{where}: torchrun has no option {name}: correct it, or leave it out")
        if name not in FLAGS and not equals:
            if not rest:
                raise UserError(f"{where}: {name} has no value")
            value = rest.pop(0)
        options[name] = value
    return options, rest


def _parse(
    options: dict[str, str], rest: list[str], start: _Start, where: str, conversion: Conversion
) -> TorchrunCommand:
    _follow(options, where, conversion)
    if start.gives_local_rank and "--use-env" not in options:
        conversion.remark(where, f"{_LAUNCH} gave the script --local-rank, and Perdure does not: read LOCAL_RANK")
    if "/" in start.python and not start.is_given and "--no-python" not in options:
        conversion.remark(where, f"the script is started by {start.python}: write another one if the image has none")
    return TorchrunCommand(
        _command(options, rest, start, where),
        options.get("--nnodes", ""),
        options.get("--nproc-per-node", ""),
        "--standalone" in options,
    )


def _follow(options: dict[str, str], where: str, conversion: Conversion) -> None:
    for name, value in options.items():
        match TORCHRUN[name]:
            case NotCarried(why):
                conversion.remark(f"{where}: {name}", f"not carried over: {why}")
            case CarriedTo(to, change):
                conversion.carry(f"{where}: {name}", to, whole(value, f"{where}: {name}"), change)


def _command(options: dict[str, str], rest: list[str], start: _Start, where: str) -> tuple[str, ...]:
    if not rest:
        raise UserError(f"{where}: torchrun without a script: write it behind the options")
    if "--no-python" in options:
        return tuple(rest)
    return (start.python, "-u", *(["-m"] if "--module" in options else []), *rest)


def whole(value: str, where: str) -> int:
    """A whole number in an option. UserError if it is none."""
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise UserError(f"{where}: a whole number is expected, and this is {value!r:.60}")
    return int(value)
