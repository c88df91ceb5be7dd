"""One history in TensorBoard, MLflow or Weights & Biases, however often the training is interrupted.

A value is written when the commit that follows it is in the log, so no later run makes its step again. The tracker's
run id, and the values that wait, are part of the checkpoint: a resumed run continues the same history, and writes what
an earlier run had no time for. On other ranks than 0 the values only wait, for the case that rank 0 is lost.

tensorboard  event files
mlflow       an MLflow server
wandb        Weights & Biases
sink         what a Tracker needs of one of these
"""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from perdure.adapters.tracking.sink import HistorySink
from perdure.errors import UserError
from perdure.session.driven import NewCommit, called, read_values, step_in_work
from perdure.session.functions import gather
from perdure.session.session import Session

RETRY_SECONDS: Final = 60.0
"""A sink that has failed is left alone for so long."""
MOST_WAITING: Final = 2**20
"""Characters that wait at most for a sink that fails. They are copied at each call, and are part of each checkpoint."""
MOST_IN_ALL: Final = 16 * 2**20
"""The same, for the next commit."""
MEMBERS: Final = "perdure/members"
"""The name of the mark at a step from which on other pods train."""
_log: Final = logging.getLogger("perdure")
_Record = tuple[int, Mapping[str, Any]]


class Tracker:
    """The history of one training. Make it before `session.epochs()`, on all ranks."""

    def __init__(self, session: Session, sink: HistorySink, *, name: str = "tracker") -> None:
        """Registers itself with the session.

        Args:
            session: The training.
            sink: Where the history goes. Only rank 0 opens it.
            name: The name in the checkpoint. A checkpoint without it begins a new history.

        Raises:
            UserError: If training is restored already, or the name is taken.
        """
        self._session, self._sink = session, sink
        self._key = ""
        self._waiting = ""
        """A line of JSON for each record that is not known to be written. It is copied at each step, so it is one
        string."""
        self._members = ""
        self._opened = False
        self._failed_at: float | None = None
        """When the sink failed last."""
        self._known: dict[str, int] = {}
        """The newest step that the sink had of each name when it was opened."""
        session.on("init", self._begin)
        session.on("resumed", self._begin)
        session.on("committed", self._committed)
        session.on("leaving", lambda _: self._close())
        session.on("exit", self._end)
        own: dict[str, Any] = {name: self}
        session.register(absent="keep", **own)

    def log(self, **values: Any) -> None:
        """Records numbers, or tensors of one element, for the present step. Call it on all ranks, equally often.

        The step is the one that the script works on until it calls `session.step()`, and the finished one after that.
        Rank 0's values are written, or those of the rank that takes its place: so give the same on all ranks, such as
        `perdure.all_reduce` returns.

        Raises:
            UserError: For a value that is no number, or a bad name.
        """
        plain = read_values(values)
        for name, value in plain.items():
            if not isinstance(value, int | float):
                raise UserError(f"tracker.log({name}=...): a {type(value).__name__} is no number")
        self._record(step_in_work(self._session), plain)

    def state_dict(self) -> dict[str, Any]:
        """The run id, and what waits."""
        return {"key": self._key, "waiting": self._waiting, "members": self._members}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores it."""
        if not re.fullmatch("[0-9a-f]{0,16}", state["key"]):
            raise UserError(f"the tracker's key in the checkpoint is {state['key']!r}, which Perdure has not made")
        self._key, self._waiting, self._members = state["key"], state["waiting"], state["members"]

    def _record(self, step: int, values: Mapping[str, Any]) -> None:
        self._waiting += json.dumps([step, values]) + "\n"
        if len(self._waiting) > (MOST_WAITING if self._failed_at is not None else MOST_IN_ALL):
            half = self._waiting.index("\n", len(self._waiting) // 2) + 1
            lost = self._waiting[:half].count("\n")
            self._waiting = self._waiting[half:]
            if self._session.rank == 0:
                _log.warning(
                    "the tracker has taken nothing for long: the oldest %d records that waited are dropped", lost
                )

    def _begin(self, _commit: Any = None) -> None:
        if not self._key:
            self._key = gather(self._session, uuid.uuid4().hex[:16])[0]

    def _committed(self, commit: NewCommit) -> None:
        members = json.dumps([[member.name, member.node] for member in commit.members])
        if self._members and members != self._members:
            self._record(commit.step, {MEMBERS: _change(json.loads(self._members), json.loads(members))})
        self._members = members
        self._write(commit.step)

    def _end(self) -> None:
        """The job is complete."""
        self._failed_at = None
        self._write(self._session.steps_done)
        self._close()

    def _close(self) -> None:
        if self._opened:
            self._opened = False
            called("the tracker's end", self._sink.close)

    def _write(self, step: int) -> None:
        """Writes what waits up to this step: it is committed."""
        records: list[_Record] = [tuple(json.loads(line)) for line in self._waiting.splitlines()]
        ready = [record for record in records if record[0] <= step]
        if self._session.rank == 0 and ready:
            if self._failed_at is not None and time.monotonic() - self._failed_at < RETRY_SECONDS:
                return
            try:
                self._open({name for _, values in ready for name in values})
                for at, values in _by_step(ready):
                    new = {name: value for name, value in values.items() if at > self._known[name]}
                    if new:
                        self._sink.write(at, new)
                        self._known |= dict.fromkeys(new, at)
                self._sink.flush()
                self._failed_at = None
            except Exception:  # noqa: BLE001 - whatever a client raises
                self._failed_at = time.monotonic()
                _log.exception("the tracker failed, training goes on: its values wait for a later commit")
                return
        self._waiting = "".join(json.dumps(record) + "\n" for record in records if record[0] > step)

    def _open(self, names: Iterable[str]) -> None:
        if not self._opened:
            self._sink.open(self._key)
            self._opened = True
            self._known.clear()
        for name in names:
            if name not in self._known:
                self._known[name] = self._sink.last_step(name)


def _by_step(records: Iterable[_Record]) -> list[_Record]:
    """One record for each step, in order; the newest value of a name counts."""
    found: dict[int, dict[str, Any]] = {}
    for step, values in records:
        found.setdefault(step, {}).update(values)
    return sorted(found.items())


def _change(before: list[list[str]], now: list[list[str]]) -> str:
    """What happened to the members, for people."""
    left, joined = (
        [f"{name} on {node}" for name, node in some if [name, node] not in others]
        for some, others in ((before, now), (now, before))
    )
    parts = [f"{len(before)} -> {len(now)} ranks"] if len(before) != len(now) else []
    parts += [f"left: {', '.join(left)}"] if left else []
    parts += [f"joined: {', '.join(joined)}"] if joined else []
    return "; ".join(parts or ["the same members in another order"])
