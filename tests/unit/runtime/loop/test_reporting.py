"""An uncaught exception's meaning for the outcome; and one ending is reported, once."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
import torch.distributed as dist

from perdure.errors import (
    Corrupt,
    Fenced,
    HandoverFailed,
    HandoverRefused,
    LogLost,
    PeerLost,
    RootTakenOver,
    StorageError,
    StorageRefused,
    UserError,
)
from perdure.loop.reporting import ExitWatch, Reporter, classify, tell_error
from perdure.loop.telemetry import events
from perdure.wire import CommitRef, ErrorKind, ErrorName, ExitKind, Failure
from perdure.wire.channel import Exiting, StepDone, read_report

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.0.0.8]:5814"


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """The exception as it looks after it was raised, maybe while another one was handled."""
    try:
        try:
            raise cause or error
        except type(cause or error):
            raise error  # noqa: B904
    except BaseException as found:  # noqa: BLE001
        return found


@pytest.mark.parametrize(
    ("error", "outcome", "kind"),
    [
        (ValueError("sample 17"), ExitKind.FAILED, ErrorKind.EXCEPTION),
        (RuntimeError("shapes do not fit"), ExitKind.FAILED, ErrorKind.EXCEPTION),
        (UserError("register first"), ExitKind.FAILED, ErrorKind.EXCEPTION),
        (LogLost("there is no log"), ExitKind.FAILED, ErrorKind.EXCEPTION),
        (Corrupt("no commit"), ExitKind.FAILED, ErrorKind.EXCEPTION),
        (KeyboardInterrupt(), ExitKind.FAILED, ErrorKind.EXCEPTION),
        (StorageError("no route"), ExitKind.FAILED, ErrorKind.STORAGE),
        (PeerLost("rank 1"), ExitKind.PEER_LOST, None),
        (dist.DistNetworkError("The client socket has failed to connect"), ExitKind.PEER_LOST, None),
        (RuntimeError(GLOO), ExitKind.PEER_LOST, None),
        (RuntimeError(f"Got the following error when running the callback: {GLOO}"), ExitKind.PEER_LOST, None),
        (RuntimeError("NCCL communicator was aborted on rank 1"), ExitKind.PEER_LOST, None),
        (Fenced("run 4", opened=4), ExitKind.FENCED, ErrorKind.EXCEPTION),
        (RootTakenOver("uid b"), ExitKind.ROOT_TAKEN_OVER, ErrorKind.EXCEPTION),
        (HandoverRefused("run 4"), ExitKind.HANDOVER_FAILED, ErrorKind.EXCEPTION),
    ],
)
def test_an_exception_stands_for_an_outcome(error: BaseException, outcome: ExitKind, kind: ErrorKind | None) -> None:
    found, failure = classify(raised(error))
    assert (found, failure.kind if failure else None) == (outcome, kind)
    assert failure is None or failure.name == type(error).__name__


@pytest.mark.parametrize("error", [RootTakenOver, LogLost, StorageRefused, Corrupt])
def test_an_error_that_means_something_has_the_contracts_name(error: type[Exception]) -> None:
    assert error.__name__ in set(ErrorName)


def test_a_scripts_own_error_that_is_called_like_ours_is_another() -> None:
    own = type("Corrupt", (Exception,), {"__module__": "images"})
    _, failure = classify(raised(own("sample 17 is no JPEG")))
    assert failure is not None
    assert failure.name == "images.Corrupt"


def test_an_error_while_handling_a_lost_peer_is_a_lost_peer() -> None:
    assert classify(raised(ValueError("cleanup"), RuntimeError(GLOO)))[0] is ExitKind.PEER_LOST


def test_the_end_of_the_scripts_own_traceback_is_reported() -> None:
    _, failure = classify(raised(ValueError("sample 17 has no label")))
    assert failure is not None
    assert failure.tail.endswith("ValueError: sample 17 has no label\n")
    assert "test_reporting.py" in failure.tail


def test_the_head_of_a_long_message_with_its_advice_is_reported_too() -> None:
    _, failure = classify(raised(ValueError("call register() first: " + "x" * 9000)))
    assert failure is not None
    assert failure.tail.startswith("Traceback")
    assert "ValueError: call register() first" in failure.tail
    assert failure.tail.endswith("x\n")


def told(reader: int) -> list[Any]:
    return [read_report(line) for line in os.read(reader, 65536).splitlines()]


def watching(writer: int, *, step: int, asked_early: bool = False) -> ExitWatch:
    reporter, now = Reporter(writer), Exiting(ExitKind.FAILED, step, opened=3)
    return ExitWatch(lambda error: tell_error(reporter, lambda: now, error, lambda: asked_early))


def test_after_the_ending_nothing_more_is_reported(pipe: tuple[int, int]) -> None:
    reporter = Reporter(pipe[1])
    reporter.tell(events.Stepped(3, 1))
    reporter.tell(Exiting(ExitKind.COMPLETED, 3))
    reporter.tell(Exiting(ExitKind.FAILED, 3))
    reporter.tell(events.Stepped(4, 1))
    assert told(pipe[0]) == [StepDone(3, 1), Exiting(ExitKind.COMPLETED, 3)]


def test_an_uncaught_exception_is_reported_before_it_is_shown(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[list[Any]] = []
    monkeypatch.setattr(sys, "excepthook", lambda *_: shown.append(told(pipe[0])))
    watch = watching(pipe[1], step=12)
    error = raised(ValueError("sample 17"))
    sys.excepthook(type(error), error, error.__traceback__)
    watch.stop()
    ending = shown[0][0]
    assert (ending.outcome, ending.step, ending.opened, ending.error.name) == (ExitKind.FAILED, 12, 3, "ValueError")


def test_a_fence_tells_the_highest_run_and_shows_one_line(
    pipe: tuple[int, int], capfd: pytest.CaptureFixture[str]
) -> None:
    watch = watching(pipe[1], step=12)
    error = raised(Fenced("run 3 may not write any more", opened=8))
    sys.excepthook(type(error), error, error.__traceback__)
    watch.stop()
    assert told(pipe[0])[0].opened == 8
    assert capfd.readouterr().err == "perdure: Fenced: run 3 may not write any more\n"


def test_a_newcomer_that_does_not_join_tells_why(pipe: tuple[int, int]) -> None:
    reporter, now = Reporter(pipe[1]), Exiting(ExitKind.HANDOVER_FAILED, 0)
    error = raised(HandoverFailed("run 2 does not take over run 1: the store is gone"))
    assert tell_error(reporter, lambda: now, error, lambda: False) is ExitKind.HANDOVER_FAILED
    assert told(pipe[0])[0].error == Failure(
        ErrorKind.EXCEPTION, "HandoverFailed", "run 2 does not take over run 1: the store is gone"
    )


def test_a_run_that_refuses_a_log_tells_which_commit_is_left(pipe: tuple[int, int]) -> None:
    watch = watching(pipe[1], step=0)
    error = raised(LogLost("commit 9 is gone", found=(6, 80)))
    sys.excepthook(type(error), error, error.__traceback__)
    watch.stop()
    assert told(pipe[0])[0].commit == CommitRef(6, 80)


@pytest.mark.parametrize("asked_early", [True, False])
def test_a_peer_that_has_left_before_the_first_step_as_asked_is_no_loss_and_no_traceback(
    asked_early: bool, pipe: tuple[int, int], capfd: pytest.CaptureFixture[str]
) -> None:
    watch = watching(pipe[1], step=0, asked_early=asked_early)
    error = raised(RuntimeError(GLOO))
    sys.excepthook(type(error), error, error.__traceback__)
    watch.stop()
    assert told(pipe[0])[0].outcome is (ExitKind.STOPPED if asked_early else ExitKind.PEER_LOST)
    assert ("Traceback" in capfd.readouterr().err) is not asked_early
