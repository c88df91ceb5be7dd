"""Entry point of `perdure-operator`: reports a missing package in one line. `kubectl.start` uses it too."""

from __future__ import annotations

import sys
from collections.abc import Set
from importlib import import_module
from typing import Final

EXTRA: Final = frozenset({"aiohttp", "cryptography", "kopf", "kubernetes", "prometheus_client", "pydantic", "yaml"})
"""What the extra `operator` brings."""


def begin(module: str, extra: Set[str], refusal: str, status: int) -> int:
    """Run `main` of this module, which needs all of `extra`; returns the exit status.

    If a package of it is not installed, that is `status`, and stderr gets `refusal`, in which {} is the package.
    """
    try:
        return int(import_module(module).main())
    except ModuleNotFoundError as error:
        lacks = (error.name or "").partition(".")[0]
        if lacks not in extra:
            raise
        sys.stderr.write(f"{refusal.format(lacks)}\n")
        return status


def main() -> int:
    """The console script."""
    refusal = "perdure-operator: {} is not installed: pip install 'perdure[operator]'"
    return begin("perdure_operator.cli.main", EXTRA, refusal, 2)
