"""Where the command `perdure-operator` begins: what is not installed is said in one line."""

from __future__ import annotations

import sys
from typing import Final

EXTRA: Final = frozenset({"aiohttp", "cryptography", "kopf", "kubernetes", "prometheus_client", "pydantic", "yaml"})
"""What the extra `operator` brings."""


def main() -> int:
    """The console script."""
    try:
        from perdure_operator.cli import main as command  # noqa: PLC0415 - it needs all of the extra

        return command()
    except ModuleNotFoundError as error:
        lacks = (error.name or "").partition(".")[0]
        if lacks not in EXTRA:
            raise
        sys.stderr.write(f"perdure-operator: {lacks} is not installed: pip install 'perdure[operator]'\n")
        return 2
