"""A job's checkpoint root, read as plain files in the S3 server's folder: the log, the traces, the weights.

It knows the formats from the design (JSON entries, JSON lines, safetensors), not from Perdure's code.
"""

from __future__ import annotations

import hashlib
import json
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from e2e.harness.evidence import Entry, Mark, NoEvidence, TracedStep
from e2e.harness.watching import Late

T = TypeVar("T")
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Trace:
    """All ranks' traces of all runs."""

    steps: tuple[TracedStep, ...]
    marks: tuple[Mark, ...]


class Root:
    """The objects under one root."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def entries(self) -> list[Entry]:
        """The log, oldest first."""
        entries = [_entry(path) for path in self._folder.glob("log/*.json")]
        return sorted(entries, key=lambda entry: entry.seq)

    def saved(self, run: int) -> set[int]:
        """The steps of which this run has stored any state, committed or not."""
        return {int(folder.name.partition("-")[0]) for folder in self._folder.glob(f"data/{run}/[0-9]*-*")}

    def members(self, run: int) -> list[str]:
        """The pods in which the ranks of this run began, in order, by their own report; none if the store was down for
        it."""
        opened = next(entry for entry in self.entries() if entry.kind == "Opened" and entry.run == run)
        if "members" not in opened.body:
            return []
        told = json.loads((self._folder / opened.body["members"]["key"]).read_text())
        return [str(member["name"]) for member in told["members"]]

    def wait_for_commit(self, *, seconds: float, reason: str = "") -> Entry:
        """The first commit, or the first one with this reason."""

        def found() -> Entry | None:
            commits = (entry for entry in self.entries() if entry.kind == "Committed")
            return next((entry for entry in commits if reason in ("", entry.body["reason"])), None)

        return self._wait(f"a first commit {reason}".rstrip(), found, seconds)

    def wait_for_step(self, run: int, *, seconds: float) -> TracedStep:
        """Any step of this run."""

        def found() -> TracedStep | None:
            return next((step for step in self.trace().steps if step.run == run), None)

        return self._wait(f"a step of run {run}", found, seconds)

    def wait_for_world(self, world: int, *, seconds: float) -> Entry:
        """The newest run's Opened entry, once it has so many ranks."""

        def found() -> Entry | None:
            newest = [entry for entry in self.entries() if entry.kind == "Opened"][-1:]
            return next((entry for entry in newest if entry.body["world"] == world), None)

        return self._wait(f"a run of {world} ranks", found, seconds)

    def _wait(self, what: str, look: Callable[[], T | None], seconds: float) -> T:
        """Poll, because a bucket cannot be watched; Late after `seconds`."""
        deadline = time.monotonic() + seconds
        while (found := look()) is None:
            if time.monotonic() > deadline:
                raise Late(f"not within {seconds:g} s: {what} under {self._folder}")
            time.sleep(POLL_SECONDS)
        return found

    def trace(self) -> Trace:
        """The ranks' records."""
        lines = [json.loads(line) for path in sorted(self._folder.glob("trace/*.jsonl")) for line in _lines(path)]
        steps = tuple(_step(line) for line in lines if "event" not in line)
        return Trace(steps, tuple(_mark(line) for line in lines if "event" in line))

    def weight_hash(self) -> str:
        """SHA-256 over the model's tensors, by name, in the newest commit: name, type, shape and bytes of each."""
        commits = [entry for entry in self.entries() if entry.kind == "Committed"]
        if not commits:
            raise NoEvidence(f"no commit in the log under {self._folder}")
        manifest = json.loads((self._folder / commits[-1].body["manifest"]["key"]).read_text())
        shards = [self._folder / index["shard"]["key"] for index in manifest["indexes"]]
        tensors = sorted(tensor for shard in shards for tensor in read_tensors(shard) if is_model(tensor.name))
        if not tensors:
            raise NoEvidence(f"the newest commit under {self._folder} holds no tensor of the model")
        return digest(tensors)


def _entry(path: Path) -> Entry:
    body = json.loads(path.read_text())
    return Entry(int(body["seq"]), body["kind"], body["uid"], int(body["run"]), body["time"], body)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


@dataclass(frozen=True, order=True)
class Tensor:
    """One tensor as stored; `shape` is JSON."""

    name: str
    dtype: str
    shape: str
    data: bytes


def is_model(name: str) -> bool:
    """Whether a tensor of a checkpoint is the model's own, not an optimizer's."""
    return name.startswith("model.")


def digest(tensors: Iterable[Tensor]) -> str:
    """One hash for all of them."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(f"{tensor.name} {tensor.dtype} {tensor.shape} {len(tensor.data)}\n".encode())
        found.update(tensor.data)
    return found.hexdigest()


def read_tensors(path: Path) -> Iterator[Tensor]:
    """Every tensor of a shard, named without its part, which may differ with the number of ranks."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    for key, entry in header.items():
        if key != "__metadata__":
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            name = key.partition("/")[2]
            yield Tensor(name, entry["dtype"], json.dumps(entry["shape"]), data[start:end])


def _step(line: dict[str, Any]) -> TracedStep:
    run, rank, step, epoch = (int(line[name]) for name in ("run", "rank", "step", "epoch"))
    at, ids, alone = float(line["t"]), tuple(line["ids"]), bool(line.get("alone"))
    return TracedStep(line["uid"], run, rank, step, epoch, at, ids, alone)


def _mark(line: dict[str, Any]) -> Mark:
    told = line.get("seconds") or line.get("parts") or {}
    seconds = {str(name): float(value) for name, value in told.items()}
    return Mark(line["uid"], int(line["run"]), int(line["rank"]), str(line["event"]), float(line["t"]), seconds)
