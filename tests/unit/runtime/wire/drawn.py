"""Random assignments and outcomes, and the smallest of each, for the tests of this folder."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from perdure.wire import (
    VERSION,
    AttemptRecord,
    Beginning,
    CommitRef,
    ErrorKind,
    ExitKind,
    Failure,
    Handover,
    HandoverRecord,
    HandoverWord,
    Leave,
    Outcome,
    Rescue,
    SkippedCommit,
    Standby,
    Train,
)
from perdure.wire.account import RunAccount

whole = st.integers(0, 10**9)
runs = st.integers(1, 10**9)
causes = st.text(max_size=40)
lost = st.lists(runs, max_size=5).map(tuple)
masters = st.sampled_from(["10.0.0.1:29500", "[fd00::1]:1", "node:65535"])
commits = st.none() | st.builds(CommitRef, seq=runs, step=whole)
members = st.sets(st.integers(0, 499), max_size=30).map(lambda ranks: tuple(sorted(ranks)))
handovers = st.none() | st.builds(
    Handover, run=runs, world=st.integers(500, 10**6), joins=members, leavers=members, master=masters, limit=whole,
    token=st.text("0123456789abcdef", min_size=32, max_size=32),
)  # fmt: skip
trains = st.builds(
    Train, run=runs, rank=st.integers(0, 7), world=st.integers(8, 10**6), master=masters, cause=causes, seconds=whole,
    wait=whole, lost=lost, floor=commits, handover=handovers,
)  # fmt: skip
leaves = st.builds(Leave, run=runs, cause=causes, seconds=whole, lost=lost, handover=handovers, suspect=st.booleans())
assignments = st.one_of(trains, leaves, st.just(Standby()))

unknown = st.dictionaries(
    st.sampled_from(["later", "memory", "hint"]), st.one_of(st.none(), st.booleans(), whole, causes, st.lists(whole))
)
failures = st.none() | st.builds(Failure, kind=st.sampled_from(ErrorKind), name=causes, tail=causes)
seconds = st.dictionaries(st.sampled_from(["agree", "stage", "upload"]), st.integers(0, 10**6).map(lambda n: n / 1000))
records = st.builds(
    HandoverRecord, run=runs, word=st.sampled_from(HandoverWord), why=st.text("why ", max_size=40), parts=seconds
)
attempts = st.builds(
    AttemptRecord, run=runs, voted=st.booleans(), word=st.sampled_from([None, HandoverWord.GO, HandoverWord.ABORT])
)
outcomes = st.builds(
    Outcome, outcome=st.sampled_from(ExitKind), run=whole, rank=whole, step=whole, commit=commits, opened=whole,
    seconds=seconds, error=failures, epoch=st.none() | whole, handovers=st.lists(records, max_size=2).map(tuple),
    live=st.just(False), attempt=st.none() | attempts, live_why=st.text("why ", max_size=40),
    rescue=st.none() | st.builds(Rescue, run=st.integers(1, 10**9), steps=st.integers(1, 10**9), of=whole),
    begun=st.lists(st.builds(Beginning, run=runs, step=whole, of=whole, reached=whole), max_size=4).map(tuple),
    skipped_commit=st.none() | st.builds(SkippedCommit, run=runs, steps=whole, why=st.text("why ", max_size=40)),
    accounts=st.just(()) | st.builds(RunAccount, run=runs, began=whole, step=whole).map(lambda one: (one,)),
)  # fmt: skip

TRAIN: dict[str, Any] = {"v": VERSION, "run": 2, "rank": 1, "world": 4, "master": "10.0.0.1:29500"}
LEAVE: dict[str, Any] = {"v": VERSION, "run": 2, "leave": True}
OUTCOME: dict[str, Any] = {"v": VERSION, "outcome": "failed", "run": 2, "rank": 1}


BLOCK: dict[str, Any] = {
    "run": 1, "world": 2, "joins": "1", "leavers": "1", "master": "10.0.0.1:29700", "limit": 30, "token": "ab",
}  # fmt: skip
