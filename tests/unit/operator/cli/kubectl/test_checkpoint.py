"""`kubectl perdure checkpoint` asks a run that can save, and waits for a commit that answers this request."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure_operator.api.default_signals import SAVE_ANNOTATION
from perdure_operator.api.status import LastSave, SavesAsked, TrainingProgress
from perdure_operator.cli.kubectl import checkpoint, command
from perdure_operator.cli.kubectl.job import JobSeen
from perdure_operator.cli.kubectl.screen import draw
from perdure_operator.cluster.protocol import JOBS
from tests.api.scene import completed
from tests.support.raw import NOW, job
from tests.support.stage import KEY, Stage
from tests.unit.operator.cli.kubectl.seen import seen, training


def reporting(step: int | None, *, ago: int = 40, asked: str = "", **spec: Any) -> JobSeen:
    """A job whose rank 0 reports a commit of this step, saved then; `asked` was passed on 20 s ago."""
    told = seen(training(**spec))
    progress = TrainingProgress(
        run=1,
        step=(step or 0) + 5,
        death_costs="at most 1 finished step",
        required_grace_seconds=12,
        observed_at=told.now,
    )
    save = LastSave(step=step, time=told.now - timedelta(seconds=ago), observed_at=told.now) if step else None
    then = told.now - timedelta(seconds=20)
    saves = SavesAsked(shown=(f"{SAVE_ANNOTATION} {asked}",), count=1, last_time=then) if asked else None
    return having(told, progress=progress, last_save=save, saves=saves)


def having(told: JobSeen, **status: Any) -> JobSeen:
    return replace(told, record=replace(told.record, status=told.status.model_copy(update=status)))


def shown(told: JobSeen, asked: str | None, *, newer: bool | None = None, flags: Sequence[str] = ()) -> str:
    out = io.StringIO()
    draw(checkpoint.page(told, checkpoint.answer(told, asked, newer=newer), flags), out)
    return out.getvalue()


def test_what_is_known_of_commits_is_told_with_what_a_death_costs() -> None:
    page = shown(reporting(1200), None)
    assert "nothing was written" in page
    assert "step 1200, 40s ago" in page
    assert "at most 1 finished step, as its rank 0 reports" in page
    assert "about 12s, as its rank 0 reports" in page
    assert "Whether it has saved" not in page


def test_who_did_not_wait_is_told_where_to_see_whether_it_has_saved() -> None:
    page = shown(reporting(1200), checkpoint.value(NOW), flags=["--context=a b"])
    assert "kubectl perdure logs digits -n ns --tail=20 '--context=a b'\n" in page
    assert "kubectl perdure logs" not in shown(reporting(1200), checkpoint.value(NOW), newer=True)
    assert checkpoint.value(NOW) != checkpoint.value(NOW + timedelta(seconds=1))


def test_who_asks_soon_after_another_save_is_told_when_the_run_is_asked() -> None:
    assert "train on; the run is asked for it at " in shown(reporting(1200, asked="a"), "b")
    assert "Z, in 40s\n" in shown(reporting(1200, asked="a"), "b")
    assert "is asked for it" not in shown(reporting(1200, asked="a"), "a")
    assert "is asked for it" not in shown(reporting(1200), "a")


@pytest.mark.parametrize(
    ("spec", "wait", "refusal"),
    [
        ({}, False, ""),
        ({}, True, "ns/digits reports nothing while it trains, so there is nothing to wait for"),
        ({"completion": "ExitCode"}, False, "cannot be asked to save and train on, as completion is ExitCode"),
    ],
)
def test_only_a_run_that_can_answer_is_asked(spec: dict[str, Any], wait: bool, refusal: str) -> None:
    said = checkpoint.refusal(seen(training(**spec)), wait=wait)
    assert refusal in said
    assert bool(said) is bool(refusal)
    assert checkpoint.refusal(reporting(3), wait=True) == ""
    assert checkpoint.refusal(reporting(None), wait=True) == ""


def test_a_job_without_a_run_is_not_asked() -> None:
    stage = Stage()
    stage.apply(job())
    stage.start()
    assert checkpoint.refusal(seen(stage), wait=False).startswith("no run of ns/digits is on: ")
    stage = training()
    for rank, name in enumerate(stage.names()):
        stage.end_pod(name, completed(1, rank, 3))
    stage.settle()
    stage.wait(2)
    assert checkpoint.refusal(seen(stage), wait=False) == "ns/digits is Completed: no member trains"


@pytest.mark.parametrize("before", [1200, None])
def test_a_commit_is_newer_that_was_saved_after_the_run_was_asked(before: int | None) -> None:
    assert checkpoint.is_newer(reporting(before), reporting(1201, ago=5, asked="a"), "a")
    assert not checkpoint.is_newer(reporting(before), reporting(1201, ago=40, asked="a"), "a")
    assert not checkpoint.is_newer(reporting(before), reporting(1201, ago=5, asked="b"), "a")
    assert not checkpoint.is_newer(reporting(before), reporting(1201, ago=5), "a")
    assert not checkpoint.is_newer(reporting(before), reporting(None, asked="a"), "a")
    assert not checkpoint.is_newer(reporting(1201), reporting(1201, ago=5, asked="a"), "a")


def test_a_commit_that_members_named_when_they_ended_counts() -> None:
    ended = having(reporting(None, asked="a"), step=1201, completion_time=NOW + timedelta(days=1))
    assert checkpoint.is_newer(reporting(1200), ended, "a")


Cluster = Callable[..., Path]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Makes a kubectl with a job as it is before it is asked and afterwards, where this shell code runs with each
    reading; returns the file that has the patch. In the second job, ASKED is what was asked."""

    def make(*jobs: JobSeen, after: str = "") -> Path:
        for place, told in enumerate(jobs):
            raw = asyncio.run(training().cluster.get(JOBS, *KEY))
            raw["status"] = told.status.model_dump(mode="json", by_alias=True, exclude_none=True)
            raw["spec"]["completion"] = told.record.spec.completion.value if told.record.spec else None
            (tmp_path / f"job-{place}").write_text(json.dumps(raw))
        asked, program = tmp_path / "asked", tmp_path / "bin" / "kubectl"
        program.parent.mkdir()
        value = f"$(sed 's/.*\"{SAVE_ANNOTATION.replace('/', '.')}\": \"\\([^\"]*\\).*/\\1/' '{asked}')"
        reads = f"if [ -e '{asked}' ]; then {after or ':'}; sed \"s/ASKED/{value}/\" '{tmp_path}/job-1'"
        reads += f"; else cat '{tmp_path}/job-0'; fi"
        program.write_text(f"#!/bin/sh\ncase $1 in patch) echo \"$*\" >'{asked}';; *) {reads};; esac\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        monkeypatch.setattr(command, "PAUSE_SECONDS", 0.01)
        return asked

    return make


@pytest.mark.parametrize(("ago", "status"), [(5, 0), (40, 1)], ids=["saved", "saved before it was asked"])
def test_it_waits_for_a_newer_commit_until_the_time_is_over(
    ago: int, status: int, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = cluster(reporting(1200), reporting(1201, ago=ago, asked="ASKED"))
    wait = "600" if status == 0 else "1"
    assert command.main(["checkpoint", "digits", "-n", "ns", f"--wait={wait}", "--json"]) == status
    said = capsys.readouterr()
    told_of = json.loads(said.out)
    assert (told_of["newer"], told_of["saved"]["step"]) == (status == 0, 1201)
    assert told_of["asked"] in asked.read_text()
    assert said.err == ("" if status == 0 else "Warning: no newer commit was reported within 1 s\n")


def test_it_waits_on_after_a_reading_that_failed(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once = tmp_path / "once"
    refused = f"[ -e '{once}' ] || {{ : >'{once}'; echo 'Error from server (Timeout): later' >&2; exit 1; }}"
    cluster(reporting(1200), reporting(1201, ago=5, asked="ASKED"), after=refused)
    assert command.main(["checkpoint", "digits", "-n", "ns", "--wait=600", "--json"]) == 0
    words = "Warning: the job cannot be read, and is tried again: Error from server (Timeout): later\n"
    assert capsys.readouterr().err == words


def test_it_does_not_wait_for_a_job_that_is_over(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    stage = training()
    for rank, name in enumerate(stage.names()):
        stage.end_pod(name, completed(1, rank, 3))
    stage.settle()
    stage.wait(2)
    cluster(reporting(1200), seen(stage))
    assert command.main(["checkpoint", "digits", "-n", "ns", "--wait=600"]) == 1
    assert "Warning: no newer commit was reported: ns/digits is Completed" in capsys.readouterr().err


def test_who_does_not_wait_to_the_end_is_told_that_the_request_stands(cluster: Cluster) -> None:
    asked = cluster(reporting(1200), reporting(1200), after="kill -INT $PPID")
    code = "import sys; from perdure_operator.cli.kubectl import command; sys.exit(command.main(sys.argv[1:]))"
    words = ("checkpoint", "digits", "-n", "ns", "--wait=600")
    done = subprocess.run([sys.executable, "-c", code, *words], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (command.KILLED_BY_SIGINT, "")
    assert done.stderr == "Warning: the request stands: ns/digits saves all the same\n"
    assert asked.exists()


def test_a_dry_run_refuses_what_the_command_refuses(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    asked = cluster(reporting(1200, completion="ExitCode"))
    assert command.main(["checkpoint", "digits", "-n", "ns", "--dry-run"]) == 1
    assert "as completion is ExitCode" in capsys.readouterr().err
    assert not asked.exists()
