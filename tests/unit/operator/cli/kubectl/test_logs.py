"""A member's lines have its run and its ranks at the time, and each is shown once, however often its log is read."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from urllib.parse import parse_qs

import pytest

from perdure_operator.cli.kubectl.job import JobSeen
from perdure_operator.cli.kubectl.logs import (
    LogSource,
    PodLog,
    how_it_ended,
    in_words,
    log_path,
    pause_seconds,
    source,
    too_many,
)
from perdure_operator.cluster.protocol import JOBS
from tests.api.scene import completed
from tests.support.stage import KEY
from tests.unit.operator.cli.kubectl.seen import read, seen, training

SECOND = "2026-01-01T00:00:05"


def at(fraction: str, text: str, zone: str = "Z") -> str:
    return f"{SECOND}.{fraction}{zone} {text}"


def shown(log: PodLog, *lines: str) -> list[str]:
    return [in_words(found) for line in lines if (found := log.take(line))]


def asked(log: PodLog, *, follow: bool = False) -> dict[str, str]:
    return {key: value for key, (value,) in parse_qs(log.query("trainer", follow=follow)).items()}


def test_the_agents_own_lines_say_who_speaks_from_there_on() -> None:
    lines = [
        "importing",
        "perdure: run 1 starts: ranks 4 to 7 of 8: python train.py",
        "step 1",
        "perdure: run 2 has taken over: rank 2 of 4, step 3",
        "step 4",
        "perdure: run 3 starts: rank 0 of 2: python train.py",
        "a script says: perdure: run 9 starts: rank 9 of 9: x",
    ]
    log = PodLog("p")
    assert shown(log, *(at(f"{place:09}", line) for place, line in enumerate(lines))) == [
        "[p] importing",
        f"[run 1 ranks 4-7 p] {lines[1]}",
        "[run 1 ranks 4-7 p] step 1",
        f"[run 2 ranks 0-3 p] {lines[3]}",
        "[run 2 ranks 0-3 p] step 4",
        f"[run 3 rank 0 p] {lines[5]}",
        f"[run 3 rank 0 p] {lines[6]}",
    ]


def test_a_log_that_is_read_again_shows_only_what_is_new() -> None:
    log = PodLog("p")
    written = [at("100000000", "a"), at("100000000", "b"), at("200000000", "c"), at("200000000", "d")]
    assert asked(log) == {"container": "trainer", "timestamps": "true"}
    assert shown(log, *written[:3]) == ["[p] a", "[p] b", "[p] c"]
    assert asked(log, follow=True) == {
        "container": "trainer",
        "timestamps": "true",
        "follow": "true",
        "sinceTime": f"{SECOND}Z",
    }
    assert shown(log, *written) == ["[p] d"]
    log.query("trainer", follow=True)
    assert shown(log, *written, at("200000000", "e"), at("300000000", "f")) == ["[p] e", "[p] f"]


def test_a_moment_is_the_same_in_every_zone_and_with_any_number_of_digits() -> None:
    log = PodLog("p")
    assert shown(log, at("100000000", "a"))
    log.query("trainer", follow=True)
    later = SECOND.replace("T00", "T02")
    assert shown(log, f"{later}.1+02:00 a", f"{later}.11+02:00 b") == ["[p] b"]


def test_a_line_that_is_older_than_the_one_before_it_is_shown() -> None:
    log = PodLog("p")
    asked(log)
    written = [at("200000000", "out"), at("100000000", "err"), at("300000000", "a"), at("250000000", "b")]
    assert shown(log, *written) == ["[p] out", "[p] err", "[p] a", "[p] b"]
    log.query("trainer", follow=True)
    assert shown(log, *written, at("290000000", "c"), at("300000000", "d")) == ["[p] c", "[p] d"]
    log.query("trainer", follow=True)
    assert shown(log, *written, at("290000000", "c"), at("300000000", "d"), at("4", "e")) == ["[p] e"]


def test_a_log_whose_clock_stepped_back_is_read_on_from_where_it_was() -> None:
    log, back = PodLog("p"), "2026-01-01T00:00:01"
    written = [at("1", "a"), at("2", "b"), f"{back}.5Z c", f"{back}.6Z d"]
    assert shown(log, *written) == ["[p] a", "[p] b", "[p] c", "[p] d"]
    assert asked(log)["sinceTime"] == f"{back}Z"
    assert shown(log, *written, f"{back}.6Z e", at("2", "f")) == ["[p] e", "[p] f"]


def test_of_a_log_that_was_rotated_meanwhile_all_that_is_left_is_shown() -> None:
    log = PodLog("p")
    assert len(shown(log, at("1", "a"), at("2", "b"), at("2", "c"))) == 3
    log.query("trainer", follow=True)
    assert shown(log, at("3", "d"), at("2", "e")) == ["[p] d", "[p] e"]


def test_a_job_with_many_pods_is_looked_at_less_often() -> None:
    assert [pause_seconds(pods) for pods in (0, 50, 1000)] == [2, 3, 22]


def test_the_tail_is_asked_for_until_a_line_has_come() -> None:
    log = PodLog("p", 5)
    assert asked(log)["tailLines"] == "5"
    shown(log, at("1", "a"))
    assert "tailLines" not in asked(log)


def test_words_of_a_kubelet_are_shown_without_a_time() -> None:
    log = PodLog("p")
    found = log.take("failed to create fsnotify watcher: too many open files")
    assert found is not None
    assert (found.time, found.text) == (None, "failed to create fsnotify watcher: too many open files")
    assert "sinceTime" not in asked(log)


def test_a_line_keeps_its_spaces_and_nothing_that_a_terminal_obeys() -> None:
    (line,) = shown(PodLog("p"), at("1", "\x1b[31m  File\t\x1b]0;title\x07x\x1b[0m\u202e"))
    assert line == "[p]   File\tx"
    found = PodLog("p").take(at("1", "a"))
    assert found is not None
    assert found.time == datetime.fromisoformat(f"{SECOND}Z").astimezone(UTC)


def test_a_log_is_that_of_the_trainer_and_there_once_it_runs() -> None:
    stage = training()
    first, second = stage.pods()
    found = source(first)
    assert (found.pod, found.started, found.ended) == (stage.names()[0], True, False)
    assert log_path("ns", found, "a=b") == f"/api/v1/namespaces/ns/pods/{found.pod}/log?a=b"
    assert found.container == first["spec"]["containers"][0]["name"]
    stage.end_pod(stage.names()[0], completed(1, 0, 3))
    assert source(stage.pods()[0]).ended
    waits = second | {"status": {"phase": "Pending", "containerStatuses": []}}
    assert not source(waits).started
    assert not source(waits).ended


@pytest.mark.parametrize(("most", "refused"), [(1, True), (2, False)])
def test_only_logs_that_have_begun_are_counted(most: int, refused: bool) -> None:
    sources = [LogSource(str(one), str(one), "trainer", started=one < 2, ended=False) for one in range(5)]
    assert bool(too_many(sources, most)) is refused
    assert not refused or "--max-log-requests=2" in too_many(sources, most)


def test_a_job_is_over_when_it_says_so() -> None:
    stage = training()
    assert how_it_ended(seen(stage)) == ""
    for rank, name in enumerate(stage.names()):
        stage.end_pod(name, completed(1, rank, 3))
    stage.settle()
    stage.wait(2)
    over: JobSeen = read(stage, asyncio.run(stage.cluster.get(JOBS, *KEY)))
    assert how_it_ended(over).startswith("ns/digits is Completed: ")
