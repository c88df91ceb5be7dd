"""What is said when a rank stands still; real ranks that wait for each other are in the tests of session."""

from __future__ import annotations

import pytest

from perdure.group.places import LOOK_SECONDS, SILENT_SECONDS, STILL_SECONDS, Beat, Standstill, decode

NOW = 1000.0
LATER = NOW + STILL_SECONDS
COMPUTES, EVALUATES = "has the batch of step 2", "evaluates after step 1"


def standing(place: str = COMPUTES) -> Standstill:
    still = Standstill()
    still.at(place, NOW)
    return still


def beats(*places: str, number: int = 7) -> dict[int, Beat]:
    return {rank: Beat(number, 61, place) for rank, place in enumerate(places)}


@pytest.mark.parametrize("beat", [Beat(3), Beat(12, 61, EVALUATES)])
def test_a_beat_is_read_as_it_was_written(beat: Beat) -> None:
    assert decode(beat.encode()) == beat


def test_a_beat_of_an_earlier_version_has_no_place() -> None:
    assert decode("7") == Beat(7)


def test_a_rank_looks_once_it_has_stood_at_one_place_for_long_and_then_now_and_then() -> None:
    still = standing()
    assert not still.is_to_look(LATER - 1, 0)
    assert still.at(COMPUTES, LATER) == STILL_SECONDS
    assert still.is_to_look(LATER, 0)
    assert not still.is_to_look(LATER + LOOK_SECONDS - 1, 0)
    assert still.is_to_look(LATER + LOOK_SECONDS, 0)
    assert still.at(EVALUATES, LATER + LOOK_SECONDS) == 0
    assert not still.is_to_look(LATER + LOOK_SECONDS + 1, 0)


def test_a_rank_may_stand_for_as_long_as_its_longest_step_has_taken() -> None:
    still = standing()
    assert not still.is_to_look(LATER, STILL_SECONDS + 1)
    assert still.is_to_look(LATER + 1, STILL_SECONDS + 1)


def test_a_rank_whose_run_is_not_open_waits_for_what_may_take_long() -> None:
    assert not standing("").is_to_look(LATER, 0)


def test_ranks_at_one_place_take_long_together() -> None:
    assert not standing().line(beats(COMPUTES, COMPUTES), LATER)


def test_ranks_at_different_places_are_named_with_them() -> None:
    line = standing().line(beats(COMPUTES, EVALUATES, COMPUTES, ""), LATER)
    assert f"ranks 0, 2 {COMPUTES} (for 61 s); rank 1 {EVALUATES} (for 61 s); rank 3 has not begun" in line
    assert "make the same calls" in line


def test_it_is_said_again_only_where_it_has_changed() -> None:
    still = standing()
    assert still.line(beats(COMPUTES, EVALUATES), LATER)
    assert not still.line(beats(COMPUTES, EVALUATES, number=8), LATER)
    assert still.line(beats(COMPUTES, "ends an epoch", number=9), LATER)


def test_a_rank_that_no_longer_beats_is_said_to_be_silent_and_nobody_is_advised() -> None:
    still = standing()
    assert not still.line(beats(COMPUTES, COMPUTES), LATER)
    late = beats(COMPUTES, COMPUTES, number=8) | {1: Beat(7, 61, COMPUTES)}
    assert not still.line(late, LATER + SILENT_SECONDS)
    line = still.line(late | {0: Beat(9, 90, COMPUTES)}, LATER + SILENT_SECONDS + 1)
    assert line.endswith("; rank 1 sends no heartbeats that arrive")
