"""The command line of `perdure convert`: reads a file, prints the manifest, and the remarks on stderr."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from perdure.errors import UserError
from perdure_operator.cli.convert import documents
from perdure_operator.cli.convert.fields import Conversion
from perdure_operator.cli.convert.sources import convert, convert_command

_FILES: Final = (".yaml", ".yml", ".json")


def run(source: Sequence[str], *, checkpoint: str = "", image: str = "", comments: bool = False) -> int:
    """Convert a file, `-` for stdin, or the words of a torchrun command line; returns the exit status."""
    if len(source) > 1 and all(word.endswith(_FILES) for word in source):
        raise UserError("these are several files: convert one at a time, see docs/migrate.md for a loop")
    if len(source) > 1:
        conversion = convert_command(source, checkpoint, image)
    else:
        if image:
            raise UserError("--image is for a command line: a manifest has its own image")
        conversion = convert(_read(source[0]), checkpoint)
    if comments:
        sys.stdout.write("".join(f"# {one}\n" for one in conversion.remarks))
    sys.stdout.write(as_yaml(conversion))
    sys.stderr.write("".join(f"remark: {one}\n" for one in conversion.remarks))
    return 0


def _read(path: str) -> list[dict[str, Any]]:
    try:
        if path == "-":
            given = sys.stdin.read(documents.MOST_CHARACTERS + 1)
        else:
            with Path(path).open(encoding="utf-8") as file:
                given = file.read(documents.MOST_CHARACTERS + 1)
        return documents.read(given)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: no text") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


_LIKE_A_NUMBER: Final = re.compile(r"[-+]?\.?[0-9][-+.:0-9a-fA-F_oOxXtTzZ ]*|[yYnN]")
"""Words that kubectl, whose YAML is that of Go, may read as a number, a time or a boolean, and PyYAML does not."""


class _Readable(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and no aliases."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else "'" if _LIKE_A_NUMBER.fullmatch(value) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Readable.add_representer(str, _text)


def as_yaml(conversion: Conversion) -> str:
    """The manifest as people write one."""
    return yaml.dump(conversion.manifest, Dumper=_Readable, sort_keys=False, width=120)
