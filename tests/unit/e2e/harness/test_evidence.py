"""The judge is judged: every fault that the scenarios are there to find is found in a handmade trace."""

from __future__ import annotations

import pytest

from e2e.harness.evidence import (
    Gap,
    NoEvidence,
    Samples,
    Turn,
    batches,
    contradiction,
    gaps,
    samples,
    steps_lost,
    turns,
    untraced,
)
from tests.unit.e2e.harness.builders import SIZE, UID, Training, drained, handed_over

CLEAN = Samples(lost=0, repeated=0, foreign=0)


def judged(training: Training) -> Samples:
    return samples(training.entries, training.trace, size=SIZE, epochs=2)


def test_a_run_that_was_drained_and_went_on_at_the_next_step_lost_nothing() -> None:
    training = drained()
    assert steps_lost(training.entries, training.trace) == 0
    assert untraced(training.entries, training.trace) == []
    assert judged(training) == CLEAN


def test_a_run_without_any_disruption_is_clean() -> None:
    training = Training().opened(1).trained(1, 1, 4).completed(1, 4)
    assert steps_lost(training.entries, training.trace) == 0
    assert judged(training) == CLEAN


def test_a_turn_reaches_from_the_resumed_commit_to_the_next_runs_resumed_commit() -> None:
    assert turns(drained().entries) == [Turn(UID, 1, 0, 3), Turn(UID, 2, 3, 4)]


def test_a_run_that_took_over_a_living_one_begins_where_that_one_stood() -> None:
    training = handed_over()
    assert turns(training.entries) == [Turn(UID, 1, 0, 3), Turn(UID, 2, 3, 4)]
    assert steps_lost(training.entries, training.trace) == 0
    assert judged(training) == CLEAN


def test_a_step_that_the_older_run_trains_after_it_was_taken_over_is_lost() -> None:
    training = handed_over().trained(1, 4, 4)
    assert steps_lost(training.entries, training.trace) == 1


def test_steps_beyond_the_resumed_commit_are_lost_although_every_sample_was_consumed() -> None:
    training = Training().opened(1).trained(1, 1, 1).committed(1, 1).trained(1, 2, 3)
    training.opened(2, resumes=2).trained(2, 2, 4).completed(2, 4)
    assert steps_lost(training.entries, training.trace) == 2
    assert judged(training) == CLEAN


def test_all_steps_are_lost_when_the_next_run_starts_from_nothing() -> None:
    training = Training().opened(1).trained(1, 1, 3).opened(2).trained(2, 1, 4).completed(2, 4)
    assert steps_lost(training.entries, training.trace) == 3


def test_a_run_that_was_lost_after_it_took_over_takes_the_steps_of_the_older_one_back_to_the_commit() -> None:
    training = Training().opened(1).trained(1, 1, 1).committed(1, 1).trained(1, 2, 2)
    training.took_over(2, older=1, step=2).trained(2, 3, 3).opened(3, resumes=2).trained(3, 2, 4).completed(3, 4)
    assert turns(training.entries) == [Turn(UID, 1, 0, 1), Turn(UID, 2, 2, 1), Turn(UID, 3, 1, 4)]
    assert steps_lost(training.entries, training.trace) == 2
    assert judged(training) == CLEAN
    assert untraced(training.entries, training.trace) == []


def test_a_run_that_could_not_use_the_newest_commit_begins_where_its_trace_does() -> None:
    training = Training().opened(1).trained(1, 1, 1).committed(1, 1).trained(1, 2, 2).committed(1, 2).trained(1, 3, 3)
    training.opened(2, resumes=3).trained(2, 2, 4).completed(2, 4)
    assert turns(training.entries, training.trace) == [Turn(UID, 1, 0, 1), Turn(UID, 2, 1, 4)]
    assert steps_lost(training.entries, training.trace) == 2
    assert judged(training) == CLEAN


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        ({"stepsLost": 2}, False),
        ({"stepsLost": 3}, False),  # one that only the rank that was killed had done
        ({"stepsLost": 4}, True),
        ({"stepsLost": 1}, True),
        ({}, True),
        ({"stepsLost": 1, "stepsInDoubt": 1}, False),
        ({"runsUnreported": 1}, False),
    ],
)
def test_what_status_tells_of_steps_lost_is_compared_with_the_trace(told: dict[str, int], wrong: bool) -> None:
    training = Training().opened(1).trained(1, 1, 1).committed(1, 1).trained(1, 2, 3)
    training.opened(2, resumes=2).trained(2, 2, 4).completed(2, 4)
    assert bool(contradiction(told, training.entries, training.trace)) is wrong


def test_where_every_run_has_ended_in_the_log_no_step_too_many_may_be_reported() -> None:
    training = drained()
    assert contradiction({"stepsLost": 1}, training.entries, training.trace)
    assert not contradiction({"stepsLost": 0}, training.entries, training.trace)


def test_a_last_run_that_trains_beyond_its_last_commit_has_lost_those_steps() -> None:
    training = Training().opened(1).trained(1, 1, 2).committed(1, 2).trained(1, 3, 3)
    assert steps_lost(training.entries, training.trace) == 1


def test_a_run_that_fell_back_to_an_older_commit_ends_at_its_own_last_one() -> None:
    training = Training().opened(1).trained(1, 1, 1).committed(1, 1).trained(1, 2, 3).committed(1, 3, final=True)
    training.opened(2, resumes=2).trained(2, 2, 2).committed(2, 2, final=True)
    assert turns(training.entries) == [Turn(UID, 1, 0, 1), Turn(UID, 2, 1, 2)]


def test_a_global_batch_is_what_all_ranks_of_the_counted_run_trained_on() -> None:
    undisturbed = Training().opened(1).trained(1, 1, 4).completed(1, 4)
    training = Training().opened(1).trained(1, 1, 1).committed(1, 1).trained(1, 2, 3)
    training.opened(2, resumes=2).trained(2, 2, 4).completed(2, 4)
    assert batches(training.entries, training.trace) == batches(undisturbed.entries, undisturbed.trace)
    other = drained().with_ids(2, 1, 4, (0,))
    assert batches(other.entries, other.trace) != batches(drained().entries, drained().trace)


def test_a_skipped_step_loses_its_samples() -> None:
    training = Training().opened(1).trained(1, 1, 2).committed(1, 2, final=True)
    training.opened(2, resumes=2).trained(2, 4, 4).completed(2, 4)
    assert judged(training).lost == 4
    assert untraced(training.entries, training.trace) == [(2, 3)]


def test_a_sample_that_one_rank_missed_is_lost() -> None:
    assert judged(drained().with_ids(2, 1, 4, (0,))) == Samples(lost=1, repeated=0, foreign=0)


def test_a_sample_that_two_ranks_trained_on_is_repeated() -> None:
    training = drained()
    twice = next(line.ids for line in training.trace if (line.run, line.rank, line.step) == (1, 0, 1))
    assert judged(training.with_ids(1, 1, 1, twice)).repeated == 2


def test_a_sample_that_no_data_set_has_is_foreign() -> None:
    assert judged(drained().with_ids(1, 0, 1, (SIZE, 1))).foreign == 1


def test_an_epoch_that_did_not_end_has_lost_its_samples() -> None:
    training = Training().opened(1).trained(1, 1, 3).committed(1, 3, final=True)
    assert judged(training).lost == 4


def test_an_epoch_too_many_is_foreign() -> None:
    training = Training().opened(1).trained(1, 1, 6).completed(1, 6)
    assert judged(training).foreign == SIZE


def test_a_rank_that_left_no_trace_of_a_step_is_missing_evidence() -> None:
    training = drained().without(1, 1, 2)
    assert untraced(training.entries, training.trace) == [(1, 2)]
    assert judged(training).lost == 2


def test_a_zombies_steps_count_as_lost_and_not_as_samples() -> None:
    training = drained().trained(1, 4, 4)
    assert steps_lost(training.entries, training.trace) == 1
    assert judged(training) == CLEAN


def test_a_log_in_which_no_run_opened_is_no_evidence() -> None:
    with pytest.raises(NoEvidence, match="no Opened entry"):
        steps_lost([], [])


def test_a_run_that_resumed_something_that_is_no_commit_is_no_evidence() -> None:
    training = Training().opened(1).trained(1, 1, 1).opened(2, resumes=1)
    with pytest.raises(NoEvidence, match="no commit"):
        turns(training.entries)


def test_the_pause_lasts_from_the_last_step_before_to_the_first_step_after() -> None:
    training = drained()
    assert gaps(training.trace) == [Gap(1, 2, 3, 4, 1003.0, 1009.0)]
    assert gaps(training.trace)[0].seconds == 6.0


def test_a_run_that_was_never_disturbed_has_no_pause() -> None:
    assert gaps(Training().opened(1).trained(1, 1, 4).trace) == []
