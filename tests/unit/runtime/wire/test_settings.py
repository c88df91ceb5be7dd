"""The settings of an environment, and the messages about variables that make no sense."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.agent.environ import ProcessIdentity, process_environment
from perdure.errors import UserError
from perdure.live.liveness import obstacle
from perdure.loop.run import Run
from perdure.session.session import Session
from perdure.wire import CommitRef, CommitSelector, Env, ResumeFrom, Train
from perdure.wire.settings import Cadence, Member, read_settings, unknown

RANKS = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}


def test_a_script_may_refuse_to_change_ranks_while_it_trains() -> None:
    run = Run(read_settings({Env.RUN: "1", Env.LIVE: "no"}))
    assert obstacle(run) == "PERDURE_LIVE=no"
    assert obstacle(Run(read_settings({Env.RUN: "1"}))) == ""


@pytest.mark.parametrize(
    ("given", "gpus", "why"),
    [
        ("", False, ""),
        ("yes", False, ""),
        ("", True, "on a machine with GPUs ranks change live only with PERDURE_LIVE=yes"),
        ("no", True, "PERDURE_LIVE=no"),
        ("yes", True, ""),
    ],
)
def test_where_there_are_gpus_ranks_change_live_only_if_the_job_says_so(
    given: str, gpus: bool, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus)
    found = obstacle(Run(read_settings({Env.RUN: "1", Env.LIVE: given})))
    assert found.startswith(why) if why else found == ""


def test_another_word_than_yes_or_no_is_refused() -> None:
    with pytest.raises(UserError, match="PERDURE_LIVE is 'maybe': give yes or no"):
        read_settings({Env.LIVE: "maybe"})


def test_a_laptop_says_nothing_and_gets_a_run_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = read_settings({})
    assert settings.root == f"file://{tmp_path}/checkpoints"
    assert (settings.uid, settings.run, settings.rank, settings.world) == ("local", None, 0, 1)
    assert (settings.wait, settings.grace) == (0.0, 30.0)
    assert settings.cadence == Cadence(seconds=300)


@pytest.mark.parametrize(("given", "seconds"), [(None, None), ("", None), ("0", 0.0), ("2.5", 2.5)])
def test_a_process_may_stand_still_for_as_long_as_it_is_given(given: str | None, seconds: float | None) -> None:
    assert read_settings({} if given is None else {Env.HANG_SECONDS: given}).hang_seconds == seconds


def test_the_jobs_limit_for_training_is_none_unless_it_is_given() -> None:
    assert read_settings({}).progress_timeout is None
    assert read_settings({Env.PROGRESS_TIMEOUT_SECONDS: "90"}).progress_timeout == 90.0


def test_under_torchrun_an_exit_is_over_before_torchrun_kills() -> None:
    launched = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert read_settings(launched).grace < 30
    assert read_settings(launched | {Env.GRACE_SECONDS: "290"}).grace == 290


def test_a_process_knows_its_pod_and_node_and_elsewhere_the_machine() -> None:
    assert read_settings({Env.MEMBER: "digits-0", Env.NODE: "n1"}).member == Member("digits-0", "n1")
    assert read_settings({Env.MEMBER: "digits-0"}).member == Member("digits-0")
    assert read_settings({}).member == Member(socket.gethostname(), socket.gethostname())


def test_a_root_in_the_environment_goes_before_that_of_the_script() -> None:
    assert read_settings({Env.ROOT: "s3://bucket/job"}, "here").root == "s3://bucket/job"
    assert read_settings({}, "s3://bucket/job").root == "s3://bucket/job"


@pytest.mark.parametrize(
    "root",
    ["s3:/bucket/job", "s3:bucket/job", "s3//bucket/job", "S3:/bucket", "file:/folder", "gs:/bucket", "s3a:/bucket"],
)
def test_a_root_that_is_nearly_a_uri_is_no_folder_of_that_name(root: str) -> None:
    with pytest.raises(UserError, match=r"looks like a URI and is none: write \w+://"):
        read_settings({}, root)
    assert read_settings({}, f"./{root}").root.startswith("file:///")


@pytest.mark.parametrize("root", ["s3", "s3/job", "runs:1", "file", "a/s3:/b", "https"])
def test_a_folder_may_be_called_nearly_anything(root: str) -> None:
    assert read_settings({}, root).root.startswith("file:///")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("PERDURE_EVERYSTEPS", "PERDURE_EVERY_STEPS"),
        ("PERDURE_EVERY_STEP", "PERDURE_EVERY_STEPS"),
        ("PERDURE_ROOTS", "PERDURE_ROOT"),
        ("PERDURE_COFFEE_MACHINE", ""),
    ],
)
def test_an_unknown_variable_is_named_with_the_nearest_known_one(name: str, meant: str) -> None:
    (told,) = unknown({name: "1", Env.ROOT: "here", "PATH": "/bin"})
    assert told == f"{name} is set, which Perdure does not know" + (f": {meant} is meant?" if meant else "")


def test_the_agents_variables_are_read() -> None:
    environ = RANKS | {Env.UID: "u1", Env.RUN: "4", Env.LOST: "[2, 3]", Env.WAIT: "615", Env.EVERY_STEPS: "10"}
    settings = read_settings(environ | {Env.TRACE: "1", Env.REPORT_FD: "7", Env.REQUEST_FILE: "/run/request"})
    assert (settings.uid, settings.run, settings.lost, settings.wait) == ("u1", 4, (2, 3), 615.0)
    assert (settings.rank, settings.world, settings.master) == (1, 2, ("10.0.0.7", 29500))
    assert (settings.trace, settings.report_fd, settings.request_file) == (True, 7, Path("/run/request"))
    assert settings.cadence == Cadence(steps=10)


def test_the_batch_that_sizes_were_chosen_for_is_read() -> None:
    assert read_settings({}).global_batch_size is None
    assert read_settings({Env.GLOBAL_BATCH_SIZE: "96"}).global_batch_size == 96
    with pytest.raises(UserError, match="PERDURE_GLOBAL_BATCH_SIZE is '0': give an integer of 1 or more"):
        read_settings({Env.GLOBAL_BATCH_SIZE: "0"})


def test_the_floor_is_read_as_the_agent_writes_it() -> None:
    place = ProcessIdentity(0, 1, 7, Path("/run/request"), Path("/run/handover"), 0.0, None)
    train = Train(2, 0, 1, "10.0.0.7:29500", floor=CommitRef(9, 40))
    assert read_settings(process_environment({}, train, place)).floor == train.floor
    later = process_environment({Env.FLOOR: "of an older run"}, replace(train, floor=None), place)
    assert read_settings(later).floor is None


def test_a_start_in_the_future_is_of_another_machine() -> None:
    assert read_settings({Env.STARTED: "1e18"}).started is None


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2 and WORLD_SIZE is 2"),
        ({"RANK": "one"}, "RANK is 'one'"),
        ({"WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({**RANKS, "MASTER_PORT": "0"}, "MASTER_PORT"),
        ({Env.KEEP: "0"}, Env.KEEP),
        ({Env.WAIT: "-1"}, Env.WAIT),
        ({Env.WAIT: "nan"}, Env.WAIT),
        ({Env.EVERY_STEPS: "0"}, Env.EVERY_STEPS),
        ({Env.LOST: "3"}, Env.LOST),
        ({Env.FLOOR: "{"}, Env.FLOOR),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(environ: dict[str, str], names: str) -> None:
    with pytest.raises(UserError, match=names):
        read_settings(environ)


def test_where_to_begin_is_said_by_the_environment_before_the_script() -> None:
    by_script = read_settings({}, "/own", {"epoch": 3}).resume_from
    assert by_script == ResumeFrom(CommitSelector(epoch=3))
    environ = {Env.ROOT: "s3://bucket/own", Env.FROM: '{"uri": "s3://bucket/other", "step": 40}'}
    found = read_settings(environ, None, {"epoch": 3}).resume_from
    assert found == ResumeFrom(CommitSelector(step=40), "s3://bucket/other")
    assert read_settings({}).resume_from is None


def test_a_root_that_is_named_as_another_one_is_still_its_own() -> None:
    assert read_settings({}, "/own", {"uri": "file:///own", "seq": 4}).resume_from == ResumeFrom(CommitSelector(seq=4))
    with pytest.raises(UserError, match="file:///own is this training's own root: name a commit of it"):
        read_settings({}, "/own", {"uri": "/own"})
    assert read_settings({}, "/own", {"uri": "/other"}).resume_from == ResumeFrom(CommitSelector(), "file:///other")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"epochs": 3}', r"resume_from is \{'epochs': 3\}: give one of epoch, step, seq, pin, and uri"),
        ('{"epoch": -1}', "epoch is -1"),
        ('{"uri": 5}', "uri is 5: give a folder or s3://bucket/prefix"),
        *(
            (text, "PERDURE_FROM is .*: give a JSON object such as .*uri")
            for text in ("{", "[]", "5", "null", "s3://b")
        ),
    ],
)
def test_a_place_to_begin_that_makes_no_sense_is_refused(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_settings({Env.FROM: text})


@pytest.mark.parametrize(("own", "options"), [(None, "timeout:1 attempts:4"), ("rotate", "rotate")])
def test_a_session_has_name_servers_asked_again_soon_unless_the_user_has_set_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None, options: str
) -> None:
    monkeypatch.setenv("RES_OPTIONS", own or "")
    if own is None:
        monkeypatch.delenv("RES_OPTIONS")
    with Session.from_env(tmp_path.as_uri()):
        assert os.environ["RES_OPTIONS"] == options


def test_the_page_for_a_laptop_names_known_variables_and_their_defaults() -> None:
    page = (Path(__file__).parents[4] / "docs" / "reference" / "environment.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")][1:]
    without = {name: row[2] for row in rows for name in re.findall(r"`(PERDURE_\w+)[`=]", row[1])}
    default, torchrun = read_settings({}), read_settings({"TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert not unknown(dict.fromkeys(without, "1"))
    assert without[Env.ROOT] == "`./checkpoints`"
    assert default.root.endswith("/checkpoints")
    assert without[Env.EVERY_SECONDS] == without[Env.EVERY_EPOCHS] == f"every {default.cadence.seconds} seconds"
    assert default.cadence == Cadence(seconds=default.cadence.seconds)
    assert without[Env.BACKGROUND_BYTES] == f"{default.background_bytes} ({default.background_bytes // 2**20} MiB)"
    assert without[Env.KEEP] == f"{default.keep}"
    assert (without[Env.KEEP_EVERY_STEPS], default.keep_every) == ("none", None)
    assert without[Env.GRACE_SECONDS] == f"{default.grace:.0f}, under torchrun {torchrun.grace:.0f}"
