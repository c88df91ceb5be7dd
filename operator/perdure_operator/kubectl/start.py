"""Where the command `kubectl-perdure` begins: what is not installed is said in one line."""

from __future__ import annotations

import sys
from typing import Final

EXTRA: Final = frozenset({"pydantic", "rich", "yaml"})
"""What the extra `kubectl` brings."""

INSTALL: Final = "install the plugin from Perdure's repository, as docs/kubectl.md says: pip install '.[kubectl]'"


def main() -> int:
    """The console script."""
    try:
        from perdure_operator.kubectl.command import main as command  # noqa: PLC0415 - it needs all of the extra

        return command()
    except ModuleNotFoundError as error:
        lacks = (error.name or "").partition(".")[0]
        if lacks not in EXTRA:
            raise
        sys.stderr.write(f"error: {lacks} is not installed: {INSTALL}\n")
        return 1
