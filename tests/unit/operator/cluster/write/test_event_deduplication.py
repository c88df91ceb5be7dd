"""A job that fails again and again does not drown what people look for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from perdure_operator.cluster.write.event_deduplication import AGAIN, MOST_ALIKE, EventDeduplicator
from perdure_operator.state.decision import JobEvent

NOON = datetime(2026, 8, 1, 12, 0, tzinfo=UTC)


def _planned(run: int) -> JobEvent:
    return JobEvent(reason="RunPlanned", message=f"run {run}")


def _told(news: EventDeduplicator, *events: JobEvent, at: datetime = NOON, uid: str = "u") -> list[str]:
    messages = []
    for event in events:
        if (worth := news.to_send(uid, event, at)) is not None:
            news.sent(uid, event, at)
            messages.append(worth.message)
    return messages


def test_an_event_is_reported_once_and_again_after_a_while() -> None:
    news = EventDeduplicator()
    assert _told(news, _planned(1), _planned(1)) == ["run 1"]
    assert _told(news, _planned(1), at=NOON + AGAIN - timedelta(seconds=1)) == []
    assert _told(news, _planned(1), at=NOON + AGAIN) == ["run 1"]


def test_what_could_not_be_sent_is_worth_telling_again() -> None:
    news = EventDeduplicator()
    assert news.to_send("u", _planned(1), NOON) is not None
    assert _told(news, _planned(1), _planned(1)) == ["run 1"]


def test_of_many_alike_the_last_says_that_others_follow() -> None:
    told = _told(EventDeduplicator(), *(_planned(run) for run in range(50)))
    assert len(told) == MOST_ALIKE
    assert told[0] == "run 0"
    assert told[-1].startswith("run 9; others like it follow")


def test_after_a_while_the_newest_is_reported_again() -> None:
    news = EventDeduplicator()
    _told(news, *(_planned(run) for run in range(50)))
    assert _told(news, _planned(50), at=NOON + AGAIN) == ["run 50"]


def test_other_jobs_and_other_reasons_count_for_themselves() -> None:
    news = EventDeduplicator()
    _told(news, *(_planned(run) for run in range(50)))
    assert _told(news, _planned(50), uid="other") == ["run 50"]
    assert _told(news, JobEvent(reason="CodeFailure", message="run 50")) == ["run 50"]
