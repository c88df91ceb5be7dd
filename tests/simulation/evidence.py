"""Reads a log as any client could: objects, JSON and checksums, by code that shares nothing with its writers.

`LogReader` looks at each new entry once, so it may be asked after every event; `verdict` compares the whole log with
what the trainers really did. Each finding is one line that begins with the invariant it breaks:

    I1  a run resumes from the newest commit before it, or from an image of a run on the way there, which it commits
    I2  nothing of a run is appended once a later run is open
    I4  an announced disruption that left time for a save costs no step
    I7  committed steps consume every sample of an epoch exactly once
    H2  a run takes over the living one that opened last
    H3  a run that was taken over trains no further
    H9  a run whose hand-over was refused or aborted never opens
    log numbers without gaps, a chain of checksums, one writer per run, nothing changed or deleted, whole commits
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.simulation.interface import Network
from tests.simulation.witness import TakenOver, Trained, Trouble, Witness, roots

TOP: Final = 9_999_999_999_999_999
LATE_SECONDS: Final = 5.0
BEFORE_SECONDS: Final = 30.0
"""Trouble this long before a request may still be felt."""
Run = tuple[str, int]
"""A run and whose it is."""


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x9A6C9329AC4BC9B5 if byte & 1 else 0)  # noqa: PLW2901
        table.append(byte)
    return table


_TABLE: Final = _table()


def crc64(data: bytes) -> str:
    """CRC64NVME in 16 hex digits, as the standard's text has it."""
    crc = 0xFFFF_FFFF_FFFF_FFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return f"{crc ^ 0xFFFF_FFFF_FFFF_FFFF:016x}"


@dataclass(frozen=True)
class Line:
    """One entry."""

    seq: int
    data: bytes
    body: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return str(self.body["kind"])

    @property
    def run(self) -> Run:
        return str(self.body["uid"]), int(self.body["run"])

    @property
    def step(self) -> int:
        return int(self.body["step"])

    @property
    def ends(self) -> bool:
        """Whether its run's turn is over."""
        return self.kind in ("Closed", "Completed") or bool(self.body.get("final"))


@dataclass(frozen=True)
class Figures:
    """One root's history in numbers."""

    runs: int = 0
    commits: int = 0
    steps: int = 0
    """Trained, those that were lost again included."""
    step: int = 0
    """Of the newest commit."""
    lost: int = 0
    """Of runs that are over."""
    completed: bool = False


@dataclass
class LogReader:
    """The entries of one root, as far as they are read."""

    objects: Mapping[str, bytes]
    root: str
    lines: list[Line] = field(default_factory=list)
    _writers: dict[Run, str] = field(default_factory=dict)
    _newest: dict[str, int] = field(default_factory=dict)
    """By uid the highest run that was opened."""
    _refused: dict[str, int] = field(default_factory=dict)
    """By uid the highest run that may never open."""
    _owner: str = ""
    _commit: Line | None = None
    """The newest."""
    _told: int | None = None
    _unaware: frozenset[Run] = frozenset()
    """Runs planned before any commit was known: none of their members can know that the log has lost one."""
    _damaged: set[int] = field(default_factory=set)
    """Commits of which the history changed or deleted an object on purpose."""
    _bare: int = 0
    """Up to this entry commits have lost their content, and not by retention."""

    def advance(self) -> list[str]:
        """What is wrong with the new entries."""
        if self._told is not None:
            return self._begun_anew(self._told)
        found: list[str] = []
        before = len(self.lines)
        while (data := self.objects.get(self._key(len(self.lines) + 1))) is not None:
            found += self._read(data)
        return [*found, *self._newest_is_whole(before), *self._newest_is_there()]

    def emptied(self, told: int, unaware: Iterable[Run] = ()) -> None:
        """The history emptied the root on purpose; commit `told` was known from outcomes by then.

        The `unaware` runs, planned before that, may begin from nothing: a plan is written once, and an empty log looks
        new to their members. Only the plans made since ask for a commit.

        Further appends continue beyond a gap, so the rest of the log is only checked for runs that begin from nothing.
        """
        self._told, self._unaware = told, frozenset(unaware)

    def forgotten(self, told: int) -> None:
        """The status of an emptied root's job is restored from a backup: it knows commit `told`, or 0 for none.

        Status was the last to remember more: the log is gone, and ended pods may be, too.
        """
        if self._told is not None:
            self._told = min(self._told, told)

    def stripped(self) -> None:
        """The history deleted the contents of all present commits on purpose."""
        self._bare = len(self.lines)

    def lost(self, line: Line) -> bool:
        """Whether it is one of those."""
        return line.seq <= self._bare

    def damaged(self, seq: int) -> None:
        """The history changed or deleted this commit's content on purpose."""
        self._damaged.add(seq)

    @property
    def harmed(self) -> bool:
        """Whether a run's saved content may have been gone."""
        return bool(self._damaged)

    def is_usable(self, line: Line) -> bool:
        """Whether it is a commit that a run can go on from."""
        return line.kind == "Committed" and line.seq not in self._damaged

    @property
    def readable(self) -> bool:
        """Whether there is a whole log to judge."""
        return self._told is None

    def commits(self) -> list[Line]:
        """The commits, oldest first."""
        return [line for line in self.lines if line.kind == "Committed"]

    def intact(self) -> list[str]:
        """Entries that were changed or deleted after they had been read, and those beyond a gap."""
        found = [
            f"log: entry {line.seq} was changed or deleted"
            for line in self.lines
            if self.objects.get(self._key(line.seq)) != line.data
        ]
        prefix = f"{self.root}/log/"
        there = sum(key.startswith(prefix) for key in self.objects)
        if there > len(self.lines):
            found.append(f"log: {there} objects, {len(self.lines)} entries without a gap")
        return found

    def _begun_anew(self, told: int) -> list[str]:
        prefix = f"{self.root}/log/"
        bodies = [json.loads(data) for key, data in self.objects.items() if key.startswith(prefix)]
        return [
            f"I1: run {body['run']} began from nothing, and commit {told} was known"
            for body in bodies
            if told
            and body["kind"] == "Opened"
            and body["resumes"] is None
            and (body["uid"], body["run"]) not in self._unaware
        ]

    def _key(self, seq: int) -> str:
        return f"{self.root}/log/{TOP - seq:016d}.json"

    def _read(self, data: bytes) -> list[str]:
        seq = len(self.lines) + 1
        try:
            line = Line(seq, data, json.loads(data))
            found = [*self._chain(line), *self._order(line), *self._links(line)]
        except (ValueError, KeyError, TypeError) as error:
            self.lines.append(Line(seq, data, {"kind": "?", "uid": "?", "run": 0}))
            return [f"log: entry {seq} cannot be read: {error!r}"]
        self.lines.append(line)
        self._commit = line if line.kind == "Committed" else self._commit
        return [f"{text} (entry {seq}, {line.kind} of run {line.run[1]})" for text in found]

    def _chain(self, line: Line) -> Iterable[str]:
        before = self.lines[-1] if self.lines else None
        if line.body["seq"] != line.seq:
            yield f"log: it says that it is number {line.body['seq']}"
        if line.body["prev"] != (crc64(before.data) if before else None):
            yield "log: prev is not the checksum of the entry before"

    def _order(self, line: Line) -> Iterable[str]:
        """Who may append here."""
        uid, run = line.run
        newest = self._newest.get(uid, 0)
        if line.kind == "Opened":
            if run <= newest:
                yield f"I2: run {newest} was open already"
            if run <= self._refused.get(uid, 0):
                yield f"H9: no run up to {self._refused[uid]} may open"
            yield from self._takeover(line, newest)
            yield from self._begins(line)
            self._newest[uid], self._owner = max(run, newest), uid
            self._writers[line.run] = str(line.body["writer"])
            return
        if run != newest:
            yield f"I2: appended after run {newest} was opened" if newest else "log: the run was never opened"
        elif uid != self._owner:
            yield f"I2: the root belongs to uid {self._owner} now"
        self._refused[uid] = max(
            self._refused.get(uid, 0), int(line.body.get("aborted", 0)), int(line.body.get("refuses", 0))
        )
        rescued = line.kind == "Committed" and line.ends  # by the agent of any of its ranks, as the run's last word
        known = self._writers.get(line.run, line.body["writer"])
        if line.kind != "Refused" and not rescued and known != line.body["writer"]:
            yield "log: a second writer of one run"
        last = next((old for old in reversed(self.lines) if old.run == line.run), None)
        if last and last.ends and not (line.kind == "Completed" and last.kind == "Committed"):
            yield f"log: the run's turn ended with entry {last.seq}"

    def _takeover(self, line: Line, newest: int) -> Iterable[str]:
        """A living run is taken over, not one that has ended, and the newest there is."""
        uid, taken = line.run[0], line.body.get("takesOver")
        if taken is None:
            return
        if (uid, taken) != (self._owner, newest):
            yield f"H2: it takes over run {taken}, and run {newest} was the last to open"
        if any(old.ends for old in reversed(self.lines) if old.run == (uid, taken)):
            yield f"H2: it takes over run {taken}, which had ended"

    def _begins(self, line: Line) -> Iterable[str]:
        """An image is ahead of the newest usable commit, and of a run that led to where the newest one stood."""
        image, usable = line.body.get("image"), [old.step for old in self.lines if self.is_usable(old)]
        step = usable[-1] if usable else 0
        if image is None:
            return
        if int(image["step"]) <= step:
            yield f"I1: it begins from an image of step {image['step']}, and step {step} is committed"
        opened = {old.run: old.body for old in self.lines if old.kind == "Opened"}
        run, way = max((known for known in opened if known[0] == line.run[0]), default=line.run), list[int]()
        while run in opened and run[1] not in way:
            way.append(run[1])
            before = opened[run].get("takesOver") or (opened[run].get("image") or {}).get("run") or 0
            run = run[0], int(before)
        if int(image["run"]) not in way:
            yield f"I1: it begins from an image of run {image['run']}, and the newest one came by {way}"

    def _links(self, line: Line) -> Iterable[str]:
        """What it says about the entries before it, and whether a commit is whole."""
        body = line.body
        commit = self._commit
        opened = next((old.seq for old in reversed(self.lines) if old.kind == "Opened"), None)
        seq = commit.seq if commit else None
        if body["lastCommit"] != seq or body["lastOpened"] != opened:
            yield f"log: its links are {body['lastCommit']} and {body['lastOpened']}, they must be {seq} and {opened}"
        if line.kind == "Opened" and body["resumes"] != seq:
            yield f"I1: it resumes commit {body['resumes']}, the newest is {seq}"
        if line.kind == "Completed" and (commit is None or commit.step != line.step):
            yield f"log: completed at step {line.step}, the newest commit is {commit and commit.step}"

    def _newest_is_whole(self, before: int) -> Iterable[str]:
        """A commit exists as a whole or not at all; older ones may be retired by now."""
        new = [line for line in self.lines[before:] if line.kind == "Committed"]
        return self._whole(new[-1].body["manifest"]) if new else ()

    def _newest_is_there(self) -> Iterable[str]:
        """Whichever commits are retired, the newest stays."""
        if (
            self._commit
            and not self.lost(self._commit)
            and f"{self.root}/{self._commit.body['manifest']['key']}" not in self.objects
        ):
            yield f"log: the newest commit, entry {self._commit.seq} of step {self._commit.step}, has lost its manifest"

    def _whole(self, reference: Mapping[str, Any]) -> Iterable[str]:
        data = self.objects.get(f"{self.root}/{reference['key']}")
        if data is None or len(data) != reference["size"] or crc64(data) != reference["crc"]:
            yield "log: committed, and its manifest is missing or damaged"
            return
        for index in json.loads(data)["indexes"]:
            shard = index["shard"]
            stored = self.objects.get(f"{self.root}/{shard['key']}")
            if stored is None or len(stored) != shard["size"] or crc64(stored) != shard["crc"]:
                yield f"log: committed, and {shard['key']} is missing or damaged"


def verdict(
    reader: LogReader,
    witness: Witness,
    *,
    goal: int | None = None,
    keep: int = 1,
    announced: Iterable[Run] = (),
    done: bool = False,
) -> list[str]:
    """What is wrong with the whole history: the log compared with the training.

    `keep`: so many of the newest commits exist. `announced`: runs ended by a disruption that was announced in time for
    a save, beside those that `asked_in_time` finds. `done`: the job counts as completed, so the log must say so too.
    """
    found = [*reader.intact(), *_resumptions(reader, witness), *_takeovers(reader, witness), *_samples(reader, witness)]
    found += _retired(reader, keep)
    found += _announced(reader, witness, {*announced, *asked_in_time(witness)})
    completed = [line for line in reader.lines if line.kind == "Completed"]
    if done and not completed:
        found.append("log: the job is completed, and the log does not say so")
    for line in completed:
        if goal is not None and line.step != goal:
            found.append(f"log: completed at step {line.step}, the goal is {goal} (entry {line.seq})")
    for run in {line.run for line in completed}:
        if sum(line.run == run for line in completed) > 1:
            found.append(f"log: run {run[1]} has completed twice")
    return found


def figures(reader: LogReader, witness: Witness) -> Figures:
    """The history in numbers."""
    commits = reader.commits()
    opened = [line.run for line in reader.lines if line.kind == "Opened"]
    over = {*opened[:-1], *(line.run for line in reader.lines if line.ends)}
    return Figures(
        runs=sum(line.kind == "Opened" for line in reader.lines),
        commits=len(commits),
        steps=len(witness.trained),
        step=commits[-1].step if commits else 0,
        lost=sum(lost for run, lost in steps_lost(reader, witness).items() if run in over),
        completed=any(line.kind == "Completed" for line in reader.lines),
    )


def steps_lost(reader: LogReader, witness: Witness) -> dict[Run, int]:
    """Of each run that trained the steps that no commit holds and the next run did not go on from."""
    opened = [line.run for line in reader.lines if line.kind == "Opened"]
    base = _begun_at(witness)
    reached = dict(base)
    """A run that has taken over, and has not done a step of its own, has the progress of the one before it."""
    for each in witness.trained:
        run = each.uid, each.run
        reached[run] = max(each.step, reached.get(run, 0))
    commits = reader.commits()
    newest = commits[-1].step if commits else 0
    lost = {}
    for run, step in reached.items():
        after = opened[opened.index(run) + 1 :] if run in opened else []
        kept = next((base[later] for later in after if later in base), newest)
        lost[run] = max(0, step - kept)
    return lost


def _retired(reader: LogReader, keep: int) -> Iterable[str]:
    for line in reader.commits()[-keep:]:
        if not reader.lost(line) and f"{reader.root}/{line.body['manifest']['key']}" not in reader.objects:
            yield f"log: commit {line.seq} of step {line.step} is one of the newest {keep} and is retired"


def asked_in_time(witness: Witness) -> set[Run]:
    """Runs that are over, were asked early enough on every rank that was asked, and met with no trouble since."""
    first: dict[Run, float] = {}
    hurried: set[Run] = set()
    for each in witness.asked:
        run = each.uid, each.run
        first.setdefault(run, each.at)
        if each.seconds < each.needed:
            hurried.add(run)
    return {
        run
        for run, at in first.items()
        if run in witness.ended
        and run not in hurried
        and not _late(witness, run, at)
        and not _troubled(witness, run, at)
    }


def _late(witness: Witness, run: Run, at: float) -> bool:
    """Whether the run that follows was started long before this one heard of it: its wait may have been over."""
    after = [begun for (uid, number), begun in witness.started.items() if uid == run[0] and number > run[1]]
    return min(after, default=at) < at - LATE_SECONDS


def _troubled(witness: Witness, run: Run, at: float) -> bool:
    begun, ended = at - BEFORE_SECONDS, witness.ended[run]
    return any(each.at <= ended and max(each.at, each.until) >= begun for each in witness.trouble)


def _announced(reader: LogReader, witness: Witness, announced: set[Run]) -> Iterable[str]:
    for (uid, run), lost in steps_lost(reader, witness).items():
        if lost and (uid, run) in announced and not reader.harmed:
            yield f"I4: run {run} was announced in time and lost {lost} steps"


def _resumptions(reader: LogReader, witness: Witness) -> Iterable[str]:
    """I1 as it was done, not as Opened says it."""
    opened = {line.run: line.seq for line in reader.lines if line.kind == "Opened"}
    for uid, run, seq, step in witness.resumed:
        at = opened.get((uid, run))
        if at is None:
            yield f"I1: run {run} trained and is not in the log"
            continue
        image = reader.lines[at - 1].body.get("image")
        own = next((line for line in reader.commits() if line.run == (uid, run)), None) if image else None
        if image and (own is None or own.step != image["step"]):
            yield f"I1: run {run} began from {image}, and its first commit is of step {own and own.step}"
            continue
        commits = [line for line in reversed(reader.lines[:at]) if line.kind == "Committed"]
        commits = [own, *commits] if own else commits
        usable = next((place for place, line in enumerate(commits, start=1) if reader.is_usable(line)), len(commits))
        there = [(line.seq, line.step) for line in commits[:usable]] or [(0, 0)]  # it may have read one before the harm
        newest = there[-1]
        if (seq, step) not in there:
            yield f"I1: run {run} went on from commit {seq} of step {step}, the newest was {newest[0]} of {newest[1]}"


def _takeovers(reader: LogReader, witness: Witness) -> Iterable[str]:
    """Each run that took over goes on where the one before stood, and that one trains no further."""
    opened = {line.run: line.body for line in reader.lines if line.kind == "Opened"}
    reached: dict[Run, int] = {}
    for each in witness.trained:
        reached[each.uid, each.run] = max(each.step, reached.get((each.uid, each.run), 0))
    for uid, run, before, step in witness.taken:
        body = opened.get((uid, run), {})
        if (body.get("takesOver"), body.get("step")) != (before, step):
            yield f"H2: run {run} took over run {before} at step {step}, and the log says {dict(body)}"
    for (uid, run), body in opened.items():
        older = body.get("takesOver")
        if older is not None and reached.get((uid, older), 0) > int(body["step"]):
            words = f"run {older} trained up to step {reached[uid, older]}"
            yield f"H3: {words}, and run {run} took it over at step {body['step']}"


def _begun_at(witness: Witness) -> dict[Run, int]:
    """The step at which each run began."""
    resumed = {(each.uid, each.run): each.step for each in witness.resumed}
    return resumed | {(each.uid, each.run): each.step for each in witness.taken}


def _samples(reader: LogReader, witness: Witness) -> Iterable[str]:
    """I7: the committed steps in order, and the samples each of them consumed."""
    trained: dict[tuple[Run, int], Trained] = {}
    for each in witness.trained:
        key = (each.uid, each.run), each.step
        if key in trained:
            yield f"I7: run {each.run} did step {each.step} twice"
        trained[key] = each
    base, taken = _begun_at(witness), _led_from(reader)
    lineage: list[Run] = []
    """Of each committed step the run that did it; its place is the step less one."""
    for line in reader.commits():
        for run, step in _uncommitted(line.run, taken):
            begun = base.get(run, len(lineage))
            lineage = [*lineage[:begun], *(run for _ in range(step - begun))]
            base[run] = step
        start = base.get(line.run, len(lineage))
        base[line.run] = line.step
        taken.pop(line.run, None)
        if line.step < start or start > len(lineage):
            yield f"I7: commit {line.seq} of step {line.step} goes on from step {start}, which is not committed"
            return
        lineage = [*lineage[:start], *(line.run for _ in range(line.step - start))]
        record = trained.get((lineage[-1], line.step)) if lineage else None
        if record and not _stands_at(line.body["cursors"], record):
            yield f"I7: commit {line.seq} stands at {line.body['cursors']}, step {line.step} ended at {record}"
    yield from _walk([trained.get((run, step)) for step, run in enumerate(lineage, start=1)], _size(reader))


def _led_from(reader: LogReader) -> dict[Run, TakenOver]:
    """Runs that continued from where another one stood, in whichever commit that is: live, or from an image of it."""
    found = dict[Run, TakenOver]()
    for line in reader.lines:
        image, before = line.body.get("image"), line.body.get("takesOver")
        if before is not None:
            found[line.run] = TakenOver(*line.run, int(before), line.step)
        elif image:
            found[line.run] = TakenOver(*line.run, int(image["run"]), int(image["step"]))
    return found


def _uncommitted(run: Run, taken: Mapping[Run, TakenOver]) -> list[tuple[Run, int]]:
    """Runs that this one goes on from without a commit in between, the oldest first, each with its last step."""
    found: list[tuple[Run, int]] = []
    while run in taken:
        each = taken[run]
        run = each.uid, each.before
        found.insert(0, (run, each.step))
    return found


def _stands_at(cursors: Mapping[str, Any], record: Trained) -> bool:
    cursor = cursors["train"]
    at = cursor["epoch"], cursor["consumed"]
    over = record.stop == cursor["samples"] and at == (record.epoch + 1, 0)
    return over or at == (record.epoch, record.stop)


def _size(reader: LogReader) -> int:
    return next((int(line.body["cursors"]["train"]["samples"]) for line in reader.commits()), 0)


def _walk(records: list[Trained | None], samples: int) -> Iterable[str]:
    epoch, consumed = 0, 0
    for step, record in enumerate(records, start=1):
        if record is None:
            yield f"I7: step {step} is committed and no rank has done it"
            return
        if consumed == samples:
            epoch, consumed = epoch + 1, 0
        if (record.epoch, record.start) != (epoch, consumed) or not record.start < record.stop <= samples:
            yield (
                f"I7: step {step} of run {record.run} consumed [{record.start}, {record.stop}) of epoch {record.epoch}"
                f", its turn was {consumed} of epoch {epoch}"
            )
            return
        consumed = record.stop


class Evidence:
    """All roots of one history, for checks during it."""

    def __init__(self, objects: Mapping[str, bytes], network: Network) -> None:
        self._objects, self._network = objects, network
        self.readers: dict[str, LogReader] = {}
        """By root."""

    def look(self) -> list[str]:
        """What is wrong with the new entries on any root."""
        return [f"{root}: {text}" for root, reader in self._all() for text in reader.advance()]

    def verdict(self, done: Collection[str] = (), goals: Mapping[str, int] | None = None) -> list[str]:
        """What is wrong with any root's whole history; `done` names the roots of completed jobs."""
        found = self.look()
        for root, reader in self.readers.items():
            if not reader.readable:
                continue
            said = verdict(reader, Witness.of(self._network, root), goal=(goals or {}).get(root), done=root in done)
            found += [f"{root}: {text}" for text in said]
        return found

    def excuse(self, at: float, what: str, *, seconds: float = 0.0) -> None:
        """The engine did something that no announced save survives: a pod's object was gone before its container, for
        example."""
        for root in roots(self._network):
            Witness.of(self._network, root).trouble.append(Trouble(at, what, until=at + seconds))

    def emptied(self, root: str, told: int, unaware: Iterable[Run] = ()) -> None:
        """The engine emptied this root; `told` is the newest commit (its seq) that an outcome had reported, or 0.

        No plan of the `unaware` runs asks for any commit.
        """
        self.look()
        if root in self.readers:
            self.readers[root].emptied(told, unaware)

    def forgotten(self, root: str, told: int) -> None:
        """The engine restored the status of an emptied root's job, which knows commit `told`, or 0 for none."""
        self.look()
        if root in self.readers:
            self.readers[root].forgotten(told)

    def stripped(self, root: str) -> None:
        """The engine deleted the contents of the commits below this root."""
        self.look()
        if root in self.readers:
            self.readers[root].stripped()

    def lost(self, root: str, uid: str) -> dict[int, int]:
        """By run of this job the steps that it has lost, where it has lost some."""
        reader = self.readers.get(root)
        if reader is None or not reader.readable:
            return {}
        found = steps_lost(reader, Witness.of(self._network, root))
        return {run: lost for (whose, run), lost in found.items() if whose == uid and lost}

    def partly(self, root: str, uid: str) -> int:
        """How many runs of this job had ranks that were one step ahead of the others: they may tell of that step."""
        return sum(whose == uid for whose, _ in Witness.of(self._network, root).partly)

    def damaged(self, root: str, seq: int) -> None:
        """The engine has damaged this commit."""
        self.look()
        if root in self.readers:
            self.readers[root].damaged(seq)

    def figures(self) -> dict[str, Figures]:
        """By root."""
        return {root: figures(reader, Witness.of(self._network, root)) for root, reader in self.readers.items()}

    def _all(self) -> Iterable[tuple[str, LogReader]]:
        for root in roots(self._network):
            self.readers.setdefault(root, LogReader(self._objects, root))
        return self.readers.items()
