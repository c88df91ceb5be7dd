"""`kubectl perdure logs`: the lines of a job's members in the order of time, each with its run, ranks and pod. Pure.

Which ranks a pod has changes with the runs, and its log outlives them: the agent's own lines there say from which line
on it has which. A log is read again from the second of its newest line on, so what was shown is told by time and
count. A line may be older than the one before it: a node's clock steps back, and stdout and stderr overtake each other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from perdure_operator.api.model import Model
from perdure_operator.api.reasons import ConditionType
from perdure_operator.cli.kubectl.job import JobSeen
from perdure_operator.cli.kubectl.page import printable_line
from perdure_operator.cluster.protocol import PODS, Json
from perdure_operator.cluster.read import parse
from perdure_operator.cluster.read.containers import Containers, trainer
from perdure_operator.state.snapshot import PodView

LogTime = tuple[datetime, str]
"""When a line was written: the second, and its digits behind the point."""

PAUSE_SECONDS: Final = 2.0
"""Between two looks at a job without pods."""
PODS_A_SECOND: Final = 50
"""Each second more between two looks is for so many pods."""
NEVER: Final[LogTime] = (datetime.min.replace(tzinfo=UTC), "")
_STAMP: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d) ?")
_STARTS: Final = re.compile(r"perdure: run (\d+) starts: ranks? (\d+)(?: to (\d+))? of ")
_TOOK_OVER: Final = re.compile(r"perdure: run (\d+) has taken over: rank (\d+) of ")


@dataclass(frozen=True)
class RanksInRun:
    """The ranks of a pod in a run."""

    run: int
    first: int
    last: int

    @property
    def ranks(self) -> str:
        """Such as 0, or 0-7."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


class LogLine(Model):
    """A line of a member's log."""

    time: datetime | None = None
    """To the second; null for words of the kubelet's."""
    pod: str
    run: int | None = None
    """The run that the pod was in; null before its first one, or if the log's beginning is not read."""
    ranks: str = ""
    text: str
    """Without what a terminal would obey."""


@dataclass(frozen=True)
class LogSource:
    """A pod's log."""

    pod: str
    uid: str
    container: str
    started: bool
    """Whether there is a log: its trainer runs, or has run."""
    ended: bool
    """Whether nothing more will come."""

    @property
    def path(self) -> str:
        """Where the API server has it, without a namespace."""
        return f"{self.pod}/log"


def source(raw: Json) -> LogSource:
    """The log of this pod's trainer."""
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    state, view = Containers(spec, status).trainer, parse.pod(raw)
    return LogSource(
        pod=view.name,
        uid=view.uid,
        container=str(trainer(spec).get("name") or ""),
        started="running" in state or "terminated" in state,
        ended=_ended(view),
    )


def _ended(pod: PodView) -> bool:
    return pod.terminated is not None or pod.phase in ("Succeeded", "Failed")


class PodLog:
    """How far a pod's log was read, and who speaks there."""

    def __init__(self, pod: str, tail: int | None = None) -> None:
        """`tail`: only so many of its last lines are wanted."""
        self.pod = pod
        self.last: LogTime = NEVER
        """When the newest line was written."""
        self._tail = tail
        self._since = NEVER
        """When the oldest was written of those from the newest one on."""
        self._count = 0
        """How many those are: they have that moment, or are older and came later."""
        self._resume = NEVER
        """In this reading, all before the first line of this moment was read before; NEVER once that one has come."""
        self._again = 0
        """How many come again from there on."""
        self._place: RanksInRun | None = None

    def query(self, container: str, *, follow: bool) -> str:
        """Asks for what was not read yet, and perhaps a second more; `take` leaves that out."""
        self._resume, self._again = self.last, self._count
        asked = {"container": container, "timestamps": "true"} | ({"follow": "true"} if follow else {})
        if self.last != NEVER:
            asked |= {"sinceTime": self._since[0].strftime("%Y-%m-%dT%H:%M:%SZ")}
        elif self._tail is not None:
            asked |= {"tailLines": str(self._tail)}
        return urlencode(asked)

    def take(self, line: str) -> LogLine | None:
        """The line, as the API server sends it; None if it was read before."""
        found = _STAMP.match(line)
        if found is None:
            return self._shown(None, line)
        written, text = _moment(found), line[found.end() :]
        if written < self._resume:
            return None
        self._resume = NEVER
        if written <= self.last and self._again:
            self._again -= 1
            return None
        self._again = 0
        if written > self.last:
            self.last, self._since, self._count = written, written, 1
        else:
            self._since, self._count = min(self._since, written), self._count + 1
        self._place = _place(text, self._place)
        return self._shown(written[0], text)

    def _shown(self, time: datetime | None, text: str) -> LogLine:
        place = self._place
        return LogLine(
            time=time,
            pod=self.pod,
            run=place.run if place else None,
            ranks=place.ranks if place else "",
            text=printable_line(text),
        )


def _moment(found: re.Match[str]) -> LogTime:
    seconds, digits, zone = found.groups()
    return datetime.fromisoformat(f"{seconds}{zone}").astimezone(UTC), (digits or "").rstrip("0")


def _place(text: str, before: RanksInRun | None) -> RanksInRun | None:
    """The pod's place from this line on, which may be one of its agent's own."""
    if found := _STARTS.match(text):
        run, first, last = found.groups()
        return RanksInRun(int(run), int(first), int(last or first))
    if found := _TOOK_OVER.match(text):
        run, rank, each = int(found.group(1)), int(found.group(2)), before.last - before.first + 1 if before else 1
        first = rank - rank % each
        return RanksInRun(run, first, first + each - 1)
    return before


def in_words(line: LogLine) -> str:
    """Such as `[run 2 rank 0 digits-3f2a-0] step 450`."""
    many = "ranks" if "-" in line.ranks else "rank"
    who = f"run {line.run} {many} {line.ranks} " if line.run is not None else ""
    return f"[{who}{line.pod}] {line.text}"


def pause_seconds(pods: int) -> float:
    """Between two looks at a job and its pods, which are listed each time."""
    return PAUSE_SECONDS + pods / PODS_A_SECOND


def too_many(sources: Sequence[LogSource], most: int) -> str:
    """The refusal to read more logs at a time than wanted; "" if they are not too many."""
    count = sum(one.started for one in sources)
    if count <= most:
        return ""
    return f"the job has {count} logs, and {most} are read at a time, each by a kubectl: allow more with " + (
        f"--max-log-requests={count}, or read one with kubectl logs POD"
    )


def how_it_ended(seen: JobSeen) -> str:
    """Why no more lines come, in words; "" while the job goes on."""
    for kind in (ConditionType.COMPLETED, ConditionType.FAILED):
        found = seen.status.find(kind)
        if found and found.status == "True":
            return f"{'/'.join(seen.record.key)} is {kind.value}: {found.message}".removesuffix(": ")
    return ""


def log_path(namespace: str, found: LogSource, query: str) -> str:
    """The path of a log that is read like this."""
    return f"{PODS.path(namespace, found.path)}?{query}"
