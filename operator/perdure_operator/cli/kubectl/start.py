"""Where the command `kubectl-perdure` begins: what is not installed is said in one line."""

from __future__ import annotations

from typing import Final

from perdure_operator.cli.start import begin

EXTRA: Final = frozenset({"pydantic", "rich", "yaml"})
"""What the extra `kubectl` brings."""

INSTALL: Final = "install the plugin from Perdure's repository, as docs/kubectl.md says: pip install '.[kubectl]'"


def main() -> int:
    """The console script."""
    return begin("perdure_operator.cli.kubectl.command", EXTRA, f"error: {{}} is not installed: {INSTALL}", 1)
