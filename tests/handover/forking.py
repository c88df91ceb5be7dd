"""Members of a job, and its undisturbed twin, whose processes are forked: each saves 4 CPU seconds of imports."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from e2e.harness import twin
from e2e.harness.lab import DIGITS
from e2e.harness.local_members import LocalMembers
from tests.support.forked import ForkedAgent, ForkedRank

SCRIPT = DIGITS / "train.py"
ENVIRON = {
    "TMPDIR": tempfile.gettempdir(),
    "LC_CTYPE": "C.UTF-8",
    "PYTHONPATH": str(Path(__file__).parents[2]),
}
"""The same for agents and ranks, so that one process forks them all: it has read this at its start. The locale is the
one that an agent without any gives its zygote."""

BUSY = {"SILENCE_SECONDS": "9"}
"""A machine that is short of cores keeps a party from sending for three seconds, which would end the test's attempt."""


def members(argv: Sequence[str], folder: Path, environ: Mapping[str, str], *, processes: int = 1) -> LocalMembers:
    """A job of these members, with so many ranks each."""
    return LocalMembers(argv, folder, {**ENVIRON, **BUSY, **environ}, start=_agent, processes=processes)


def undisturbed(arguments: Sequence[str], *, world: int, script: Path = SCRIPT) -> twin.Twin:
    """The undisturbed training of so many ranks; trained once in a test run."""
    return twin.trained_once(Path(sys.executable), script, arguments, world=world, start=_rank)


def _rank(command: Sequence[str], **options: Any) -> ForkedRank:
    options["env"] = {**ENVIRON, **options["env"]}
    return ForkedRank.start(command, **options)


def _agent(command: Sequence[str], **options: Any) -> ForkedAgent:
    return ForkedAgent(command[1:], **options)


KERNELS = {"fused": "fused=True", "foreach": "foreach=True", "loop": "foreach=False"}


def in_other_orders(folder: Path, kernel: str) -> Path:
    """The same script, with weights by channels and by columns, and an optimizer with this kernel: a fused one goes
    through memory."""
    text = SCRIPT.read_text()
    for plain, other in {
        "net = network()": "net = network().to(memory_format=torch.channels_last)\n"
        "    net[-1].weight = nn.Parameter(net[-1].weight.detach().t().contiguous().t())",
        "lr=2e-3)": f"lr=2e-3, {KERNELS[kernel]})",
    }.items():
        assert text.count(plain) == 1
        text = text.replace(plain, other)
    changed = folder / "train.py"
    changed.write_text(text)
    return changed
