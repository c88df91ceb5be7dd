"""Whole moves, one after the other, drawn from seeds: real machines, the real log, a store that misbehaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from perdure.live.protocol import events as on
from perdure.live.protocol import machine
from perdure.live.protocol.machine import PartyPhase
from perdure.log import takeover, verdict
from perdure.log.entry import Entry, Refused
from perdure.log.verdict import Verdict
from tests.unit.runtime.live import move
from tests.unit.runtime.live.history import play
from tests.unit.runtime.live.job import Broken, Job

ATTEMPTS = 6


def words(seeds: Iterable[int], **kind: bool) -> Counter[str]:
    """How all the attempts ended."""
    found: Counter[str] = Counter()
    for seed in seeds:
        life = Job(seed, **kind)
        try:
            play(life, ATTEMPTS)
        except Broken as error:
            raise AssertionError(f"seed {seed}: {error}\n" + "\n".join(life.told[-60:])) from error
        found.update(life.words)
    return found


def test_every_history_keeps_the_laws_and_all_kinds_of_ends_are_among_them(seed: int) -> None:
    found = words(range(1000 * seed, 1000 * seed + 120))
    assert set(found) == {"go", "abort", "restart", "lost"}


def test_where_no_process_dies_nothing_is_lost_whatever_the_store_does(seed: int) -> None:
    assert "lost" not in words(range(1000 * seed, 1000 * seed + 60), deadly=False)


def test_where_only_links_and_people_interfere_no_rank_stands_still_for_long(seed: int) -> None:
    assert "lost" not in words(range(1000 * seed, 1000 * seed + 60), deadly=False, unreliable=False)


@pytest.mark.chaos
def test_many_histories(seed: int) -> None:
    words(range(seed, seed + 20_000))


def _forgets_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    real = verdict.verdict

    def careless(entries: Iterable[Entry], **of: Any) -> Verdict:
        return real([replace(each, aborted=0) for each in entries if not isinstance(each.event, Refused)], **of)

    monkeypatch.setattr(takeover, "verdict", careless)


def _takes_silence_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(state: machine.PartyState, event: on.Event) -> machine.Step:
        if state.phase is PartyPhase.ASKING and event == on.LogAnswered(Verdict.OPEN):
            event = on.LogAnswered(Verdict.REFUSED)
        return machine.step(state, event)

    monkeypatch.setattr(move, "step", careless)


def _gives_up_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(state: machine.PartyState, event: on.Event) -> machine.Step:
        if state.phase is PartyPhase.DECIDING and event == on.LogAnswered(None):
            event = on.LogAnswered(Verdict.REFUSED)
        return machine.step(state, event)

    monkeypatch.setattr(move, "step", careless)


@pytest.mark.parametrize("plant", [_forgets_refusals, _takes_silence_for_an_answer, _gives_up_without_an_answer])
def test_histories_find_what_is_planted(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        words(range(400))
