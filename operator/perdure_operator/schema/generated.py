"""Prints, writes or checks files generated from the models."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def main(command: str, text: Callable[[], str], files: Sequence[Path], argv: Sequence[str] | None = None) -> int:
    """Run `command`; returns the exit status. The files' paths start at the repository's root."""
    parser = argparse.ArgumentParser(prog=command)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="write the generated files")
    what.add_argument("--check", action="store_true", help="exit status 1 if they differ")
    options = parser.parse_args(argv)
    if options.check:
        return _check(command, text(), files)
    if options.write:
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text(), encoding="utf-8")
        return 0
    sys.stdout.write(text())
    return 0


def _check(command: str, text: str, files: Sequence[Path]) -> int:
    stale = [file for file in files if not file.exists() or file.read_text(encoding="utf-8") != text]
    for file in stale:
        sys.stderr.write(f"{file} is not what the models say: run `{command} --write`\n")
    return 1 if stale else 0
