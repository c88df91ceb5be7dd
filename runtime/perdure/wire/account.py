"""What a process did with its time in one run: productive steps, and all else by its cause.

The trainer keeps it (`perdure.loop.telemetry.ledger`), and its agent passes it on in reports and in the pod's outcome.
Each account tells of the whole run so far, so one that is lost costs nothing. The operator adds up those of a job.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from perdure.wire.codec import Amount, Natural, Positive, from_json
from perdure.wire.reading import LARGEST, ContractError

ACCOUNTS_KEPT: Final = 2
"""Runs that a pod gives an account of: a newer one often begins before the end of the older one was reported."""


@dataclass(frozen=True)
class RunAccount:
    """The seconds of one process in one run, each of them once."""

    run: Positive
    began: Natural
    """The step at which the process began with that run."""
    step: Natural
    """Steps done."""
    live: bool = False
    """Whether the run has taken over living processes. Then it repeats no step of the run before."""
    productive: Amount = 0.0
    """In finished steps, as far as the time has none of the causes below."""
    start: Amount = 0.0
    """From the start of the process to the end of the restore, that apart: imports, the script's own set-up, ranks that
    look for each other."""
    restore: Amount = 0.0
    """Restoring the newest commit."""
    data: Amount = 0.0
    """Waiting for batches of the session's loaders, to train on."""
    save: Amount = 0.0
    """Standing still for a save, also for the one before it leaves."""
    evaluation: Amount = 0.0
    """Passes over an evaluation's loader."""
    handover: Amount = 0.0
    """Standing still for a live hand-over."""
    hang: Amount = 0.0
    """Without any progress, where the process said that it hangs."""
    unfinished: Amount = 0.0
    """Since the last step, and in none of the above. It belongs to the next step, if there is one."""
    unsaved: Amount = 0.0
    """The part of the productive seconds, also of earlier runs, whose steps are in no commit that the process knows."""
    unsaved_steps: Natural = 0
    """The number of these steps."""
    joined: bool = False
    """Whether its process joined a living run, and knows of no commit of the step of then, or of a later one. Then the
    unsaved steps are its own alone."""


CAUSES: Final = ("start", "restore", "data", "save", "evaluation", "handover", "hang")
"""The fields of RunAccount with seconds that are lost for good."""


def merged(known: Iterable[RunAccount], news: Iterable[RunAccount]) -> tuple[RunAccount, ...]:
    """The newest account of each run, of the newest runs, oldest first."""
    by_run = {one.run: one for one in (*known, *news)}
    return tuple(by_run[run] for run in sorted(by_run))[-ACCOUNTS_KEPT:]


def write_accounts(accounts: Iterable[RunAccount], room: int) -> list[dict[str, Any]]:
    """The newest of them as JSON objects without zeros, as far as they fit into `room` bytes, oldest first."""
    written = [_written(one) for one in accounts][-ACCOUNTS_KEPT:]
    while written and len(json.dumps(written, separators=(",", ":"))) > room:
        written = written[1:]
    return written


def _written(account: RunAccount) -> dict[str, Any]:
    values = {name: round(one, 3) if isinstance(one, float) else one for name, one in asdict(account).items()}
    needed = ("run", "began", "step")
    return {name: one for name, one in values.items() if name in needed or (one and 0 <= one <= LARGEST)}


def read_accounts(value: Any) -> tuple[RunAccount, ...]:
    """The accounts in a JSON value, the newest of them. What is no account is left out: it is for people."""
    return merged((), filter(None, map(_read, value if isinstance(value, list) else ())))


def _read(value: Any) -> RunAccount | None:
    try:
        return from_json(RunAccount, value) if isinstance(value, dict) else None
    except ContractError:
        return None
