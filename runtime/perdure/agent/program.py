"""Which commands the zygote can run in place of a new interpreter. Pure, except for a lookup in PATH.

These are `python [-u] script.py ...` and `python [-u] -m module ...`, with the agent's own interpreter, whose packages
the zygote imported. Everything else is executed. Used by `perdure.agent.zygote`; `perdure.agent.fork` runs the program.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Program:
    """A program that an interpreter runs."""

    interpreter: str
    target: str
    """A script's path as given, or a module's name."""
    module: bool
    unbuffered: bool
    arguments: tuple[str, ...]

    @property
    def argv(self) -> list[str]:
        """sys.argv as the interpreter sets it at first."""
        return ["-m" if self.module else self.target, *self.arguments]

    @property
    def folder(self) -> str:
        """The first entry of sys.path."""
        return os.getcwd() if self.module else os.path.dirname(os.path.realpath(self.target))  # noqa: PTH109, PTH120 - as Python does


@dataclass(frozen=True)
class Unsuited:
    """Why a command is executed; it completes 'there is no zygote: ...'."""

    why: str


def read_program(command: Sequence[str], environ: Mapping[str, str], executable: str) -> Program | Unsuited:
    """The program in `command`; `executable` is the interpreter that runs the agent."""
    interpreter = shutil.which(command[0], path=environ.get("PATH")) if command else None
    if interpreter is None or not _same(interpreter, executable):
        return Unsuited(f"{command[0]!r} is not the agent's own interpreter {executable}")
    rest = list(command[1:])
    unbuffered = rest[:1] == ["-u"]
    rest = rest[1:] if unbuffered else rest
    module = rest[:1] == ["-m"]
    rest = rest[1:] if module else rest
    if not rest or rest[0].startswith("-"):
        return Unsuited("it is neither `python [-u] SCRIPT` nor `python [-u] -m MODULE`")
    return Program(interpreter, rest[0], module, unbuffered, tuple(rest[1:]))


def _same(one: str, other: str) -> bool:
    """Whether both are the same file in the same folder: virtual environments link to one interpreter."""
    try:
        folders = [os.path.realpath(os.path.dirname(path)) for path in (one, other)]  # noqa: PTH120 - not the link's target
        return folders[0] == folders[1] and os.path.samefile(one, other)  # noqa: PTH121
    except OSError:
        return False
