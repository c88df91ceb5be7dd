"""What a training that changed its members has lost, and which laws of a hand-over were broken: by log and traces; and
who else drew from the script's random generators: by what its ranks have said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace

from e2e.harness import evidence
from e2e.harness.evidence import Entry, Mark, Samples, TracedStep
from perdure.wire import ExitKind, HandoverWord, Outcome
from perdure.wire.account import CAUSES

SAMPLES = 1536
Lost = tuple[int, Samples, list[tuple[int, int]]]
NOTHING: Lost = (0, Samples(0, 0, 0), [])


def lost(entries: Sequence[Entry], steps: Sequence[TracedStep], *, epochs: int) -> Lost:
    """Steps done twice or never counted, samples lost or repeated, steps of which a rank has left no trace."""
    return (
        evidence.steps_lost(entries, steps),
        evidence.samples(entries, steps, size=SAMPLES, epochs=epochs),
        evidence.untraced(entries, steps),
    )


def with_last_words(
    entries: Sequence[Entry], steps: Sequence[TracedStep], alone: Iterable[tuple[int, tuple[int, ...]]]
) -> list[TracedStep]:
    """The trace, with the steps that a killed rank had done and not yet written down (it writes once a second).

    Only the last steps of a run, and only one rank's, whose share is as large as the others': what they did not train
    on, and the undisturbed training did. That it was trained on the weights must show, bit for bit.
    """
    batches, missing = dict(alone), set(evidence.untraced(entries, steps))
    words = list(steps)
    for turn in evidence.turns(entries):
        at, world = turn.end, next(e.body["world"] for e in entries if (e.kind, e.run) == ("Opened", turn.run))
        while (turn.run, at) in missing:
            seen = {one.rank: one for one in steps if (one.run, one.step) == (turn.run, at)}
            silent = set(range(world)) - seen.keys()
            known = {sample for one in seen.values() for sample in one.ids}
            ids = tuple(sample for sample in batches[at] if sample not in known)
            if len(silent) != 1 or {len(one.ids) for one in seen.values()} != {len(ids)}:
                break
            words.append(replace(next(iter(seen.values())), rank=silent.pop(), ids=ids))
            at -= 1
    return words


def broken(entries: Sequence[Entry], ended: Iterable[Outcome]) -> Iterator[str]:
    """What must not be in the log of a job, and in the outcomes of its members."""
    owner, dead = 0, set[int]()
    for entry in entries:
        match entry.kind:
            case "Opened" if entry.run in dead:
                yield f"H9: run {entry.run} was refused or aborted, and opens at {entry.seq}"
            case "Opened" if (taken := entry.body.get("takesOver")) and taken != owner:
                yield f"H2: run {entry.run} takes over run {taken} at {entry.seq}, and run {owner} was on"
            case "Refused":
                dead.add(int(entry.body["refuses"]))
        if entry.body.get("aborted"):
            dead.update(range(entry.run + 1, int(entry.body["aborted"]) + 1))
        if entry.run < owner and entry.kind != "Refused":
            yield f"H4: run {entry.run} writes {entry.kind} at {entry.seq}, and run {owner} was on"
        owner = max(owner, entry.run) if entry.kind == "Opened" else owner
    taken_over = {entry.run for entry in entries if entry.kind == "Opened" and entry.body.get("takesOver")}
    for one in ended:
        went = {record.run for record in one.handovers if record.word is HandoverWord.GO}
        if not went <= taken_over or (one.outcome is ExitKind.HANDED_OVER and not went):
            yield f"H1: rank {one.rank} of run {one.run} went over to {sorted(went)}, the log knows of {taken_over}"
        if one.outcome in (ExitKind.STOPPED, ExitKind.EXIT_TIMEOUT):
            yield f"H8: rank {one.rank} of run {one.run} ended: {one.outcome}"


def drawn(said: Iterable[str], *, lost: bool = False) -> set[str]:
    """The ranks whose generators did not keep the state they began with, by the output of each member.

    The script draws from none of these, so it is also the state in which a newcomer or a resumed run gets them.
    `lost`: a rank was lost, and its generators with it. Then each member is judged alone, and from a start without a
    commit on: such a training has numbers of its own.
    """
    if lost:
        said = [part for text in said for part in text.split("starting fresh")]
    found = [set(re.findall(r"^GENERATORS of (rank .*): (\w+)$", text, re.MULTILINE)) for text in said]
    states = found if lost else [set().union(*found)]
    assert any(states), "no rank has said it"
    ranks = [[rank for rank, _ in some] for some in states]
    return {rank for some in ranks for rank in some if some.count(rank) > 1}


def seconds_told(outcome: Outcome) -> float:
    """The seconds of the accounts of its time, behind the restore of the first of its runs."""
    times: list[dict[str, float]] = [asdict(one) for one in outcome.accounts]
    causes = {*CAUSES, "productive", "unfinished"} - {"start", "restore"}
    return sum(one[cause] for one in times for cause in causes)


def seconds_traced(outcome: Outcome, marks: Sequence[Mark]) -> float:
    """The same by its trace: from its restore to the end of its training."""
    runs = {one.run for one in outcome.accounts}
    began = min(mark.time for mark in marks if mark.name == "resumed" and mark.run == min(runs))
    ended = max(mark.time for mark in marks if mark.name in ("completed", "exit") and mark.run == max(runs))
    return ended - began
