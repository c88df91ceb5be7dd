from __future__ import annotations

from perdure_operator.serving.metrics.counted import ROUND_SECONDS, Echoes, RoundCounts, RoundOutcome

JOB = ("team", "digits")
OTHER = ("team", "other")


def test_each_round_counts_in_one_bucket_by_its_duration() -> None:
    counts = RoundCounts()
    for seconds in (0.0, ROUND_SECONDS[0], 0.3, 31.0):
        counts.ended(RoundOutcome.WROTE, seconds)
    assert counts.outcomes == {RoundOutcome.WROTE: 4}
    assert [place for place, count in enumerate(counts.buckets) for _ in range(count)] == [0, 0, 6, len(ROUND_SECONDS)]
    assert counts.seconds == 31.305


def test_a_write_that_the_watch_has_not_shown_grows_older() -> None:
    echoes = Echoes()
    echoes.wrote(JOB, 7, 100.0)
    echoes.wrote(JOB, 8, 105.0)
    assert echoes.oldest(110.0) == 10.0
    echoes.showed(JOB, 7)
    assert echoes.oldest(110.0) == 10.0
    echoes.showed(JOB, 8)
    assert echoes.oldest(110.0) == 0.0


def test_a_watch_that_is_faster_than_the_answer_is_not_late() -> None:
    echoes = Echoes()
    echoes.showed(JOB, 9)
    echoes.wrote(JOB, 9, 100.0)
    assert echoes.oldest(110.0) == 0.0


def test_a_new_list_ends_the_wait_for_what_it_does_not_show_and_lower_versions_count_from_then_on() -> None:
    echoes = Echoes()
    echoes.showed(JOB, 900)
    echoes.wrote(JOB, 1000, 100.0)
    echoes.begins_anew()
    assert echoes.oldest(200.0) == 0.0
    echoes.wrote(JOB, 501, 200.0)
    assert echoes.oldest(300.0) == 100.0
    echoes.showed(JOB, 501)
    assert echoes.oldest(300.0) == 0.0


def test_a_deleted_job_is_forgotten_whether_the_watch_shows_it_or_not() -> None:
    echoes = Echoes()
    echoes.wrote(JOB, 7, 100.0)
    echoes.showed(JOB, 9, deleted=True)
    echoes.wrote(OTHER, 8, 100.0)
    echoes.forget_all_but([JOB])
    assert echoes.oldest(110.0) == 0.0
    assert (echoes._unseen, echoes._shown) == ({}, {})
