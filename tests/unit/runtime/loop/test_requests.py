"""Where requests come from, and that one is noticed although the main thread never runs again."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.loop.asking import ExitFile
from perdure.loop.requests import Requests
from perdure.wire.channel import Request, write_request

SECONDS = 60


@pytest.fixture(autouse=True)
def terminable(signals_as_before: None) -> None:
    """SIGTERM ends this process and its children, whatever an earlier test of the process has left behind."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture
def requests(tmp_path: Path) -> Iterator[Requests]:
    one = Requests(tmp_path / "request", grace=30)
    one.listen()
    yield one
    one.release()


def test_there_is_no_request_at_first(requests: Requests) -> None:
    assert (requests.seen, requests.current) == (False, None)


def test_sigterm_asks_with_the_grace_of_the_pod(requests: Requests) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    seen = requests.current
    assert seen is not None
    assert seen.cause == "SIGTERM"
    assert seen.left == pytest.approx(30, abs=5)


def test_the_agents_file_says_why_and_until_when(requests: Requests, tmp_path: Path) -> None:
    deadline = time.monotonic() + 600
    write_request(tmp_path / "request", Request("node a is cordoned", deadline))
    os.kill(os.getpid(), signal.SIGTERM)
    seen = requests.current
    assert seen is not None
    assert (seen.cause, seen.deadline) == ("node a is cordoned", deadline)


def test_a_deadline_may_be_brought_forward(requests: Requests, tmp_path: Path) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    first = requests.current
    write_request(tmp_path / "request", Request("the pod is being deleted", 17.0))
    second = requests.current
    assert first is not None
    assert second is not None
    assert (second.at, second.deadline) == (first.at, 17.0)


def test_news_of_a_lost_run_is_no_request_and_reaches_the_image_writer(requests: Requests, tmp_path: Path) -> None:
    asked = threading.Event()
    requests.on_image(asked.set)
    write_request(tmp_path / "request", Request("a member was lost", time.monotonic() + 5, image=True))
    os.kill(os.getpid(), signal.SIGTERM)
    assert asked.wait(SECONDS)
    assert not requests.seen


def test_an_ignored_ctrl_c_stays_ignored_but_under_a_launcher(tmp_path: Path) -> None:
    """A shell without job control starts background processes this way: Ctrl-C is for the foreground."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    one = Requests(tmp_path / "request", grace=30)
    try:
        for again in range(2):
            one.listen()
            signal.raise_signal(signal.SIGINT)
            assert (one.seen, signal.getsignal(signal.SIGINT)) == (False, signal.SIG_IGN), again
            one.release_interruption()
        assert "Ctrl-C" not in one.sources
        one.release()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        launched = Requests(tmp_path / "request", grace=30, launcher_kills=True)
        launched.listen()
        signal.raise_signal(signal.SIGINT)
        assert launched.seen, "torchrun passes it on, and kills what does not leave"
        launched.release()
    finally:
        signal.signal(signal.SIGINT, before)


UNREADABLE = {
    "empty": b"",
    "half written": b'{"GracefulExit": 1, "cause": "no',
    "of another program": b'{"GracefulExit": 1}',
    "not an object": b"[1]",
    "a number": b"1",
    "a deadline in words": b'{"cause": "drained", "deadline": "soon"}',
    "no deadline": b'{"cause": "drained", "deadline": null}',
    "a deadline that is no number": b'{"cause": "drained", "deadline": NaN}',
    "an endless deadline": b'{"cause": "drained", "deadline": Infinity}',
    "a deadline beyond all numbers": b'{"cause": "drained", "deadline": 1' + b"0" * 400 + b"}",
    "not text": b"\xff\xfe\x00",
    "too deep": b"[" * 100_000,
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_cannot_be_read_is_a_sigterm_with_the_grace_of_the_pod(
    requests: Requests, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "request").write_bytes(content)
    os.kill(os.getpid(), signal.SIGTERM)
    seen = requests.current
    assert seen is not None
    assert seen.cause == "SIGTERM"
    assert seen.left == pytest.approx(30, abs=5)


def test_a_folder_in_the_files_place_is_a_sigterm_too(requests: Requests, tmp_path: Path) -> None:
    (tmp_path / "request").mkdir()
    os.kill(os.getpid(), signal.SIGTERM)
    assert requests.current is not None
    assert requests.current.cause == "SIGTERM"


@pytest.mark.parametrize("cause", ["", '"cause": null,'], ids=["none", "null"])
def test_a_file_without_a_cause_says_until_when(requests: Requests, tmp_path: Path, cause: str) -> None:
    deadline = time.monotonic() + 600
    (tmp_path / "request").write_text(f'{{"GracefulExit": 1, {cause} "deadline": {deadline!r}}}')
    os.kill(os.getpid(), signal.SIGTERM)
    seen = requests.current
    assert seen is not None
    assert (seen.cause, seen.deadline) == ("SIGTERM", deadline)


def test_a_file_that_is_spoilt_later_leaves_what_was_read_before(requests: Requests, tmp_path: Path) -> None:
    deadline = time.monotonic() + 600
    write_request(tmp_path / "request", Request("node a is cordoned", deadline))
    os.kill(os.getpid(), signal.SIGTERM)
    (tmp_path / "request").write_bytes(b"{")
    seen = requests.current
    assert seen is not None
    assert (seen.cause, seen.deadline) == ("node a is cordoned", deadline)


def test_a_file_without_a_signal_is_no_request(requests: Requests, tmp_path: Path) -> None:
    write_request(tmp_path / "request", Request("of a run before", 17.0))
    assert not requests.seen


def test_the_first_ctrl_c_asks_without_a_deadline_and_the_second_interrupts(
    requests: Requests, capfd: pytest.CaptureFixture[str]
) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    seen = requests.current
    assert seen is not None
    assert (seen.cause, seen.left) == ("Ctrl-C", None)
    assert "again" in capfd.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_forked_child_ends_at_its_own_sigterm_and_asks_no_run(requests: Requests) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"ignored" if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else b"taken")
        signal.sigtimedwait([signal.SIGUSR1], SECONDS)
        os._exit(0)
    os.close(writer)
    said = os.read(reader, 16)
    os.close(reader)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert (os.waitstatus_to_exitcode(status), said) == (-signal.SIGTERM, b"ignored")
    assert not requests.seen


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Requests]:
    """SIGUSR1 and a file of the script's own ask, too."""
    one = Requests(tmp_path / "request", grace=30)
    one.take((signal.SIGTERM, signal.SIGUSR1), ExitFile(tmp_path / "exit.json"))
    one.listen()
    yield one
    one.release()


def test_a_signal_that_the_script_names_asks_with_the_grace_of_the_pod(asked: Requests, tmp_path: Path) -> None:
    write_request(tmp_path / "request", Request("of a run before", 17.0))
    noticed = threading.Event()
    asked.before_first_step(noticed.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert noticed.wait(SECONDS)
    asked.before_first_step(None)
    assert asked._notes[0].cause == "SIGUSR1"
    assert asked._notes[0].left == pytest.approx(30, abs=5)


def test_released_signals_do_what_they_did_before(asked: Requests) -> None:
    before = asked._previous[signal.SIGUSR1]
    asked.release()
    assert signal.getsignal(signal.SIGUSR1) is before


def test_the_scripts_own_file_asks_where_it_is_looked_at_and_without_a_deadline(
    asked: Requests, tmp_path: Path
) -> None:
    asked.look()
    (tmp_path / "exit.json").write_text('{"GracefulExit": 1}')
    assert not asked.seen
    asked.look()
    (tmp_path / "exit.json").unlink()
    asked.look()
    seen = asked.current
    assert seen is not None
    assert (seen.cause, seen.deadline) == (f"GracefulExit in {tmp_path / 'exit.json'}", None)


def test_the_file_is_looked_at_no_more_often_than_is_asked_for(tmp_path: Path) -> None:
    one = Requests(None, grace=30, look_seconds=SECONDS * 100)
    one.take((signal.SIGTERM,), ExitFile(tmp_path / "exit.json"))
    one.look()
    (tmp_path / "exit.json").write_text('{"GracefulExit": 1}')
    one.look()
    assert not one.seen


def test_a_forked_child_ignores_the_scripts_own_signals(asked: Requests) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0 if signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert not asked.seen


def test_a_wakeup_file_that_its_owner_has_closed_is_not_given_back() -> None:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    before = signal.set_wakeup_fd(writer)
    try:
        one = Requests(None, grace=30)
        one.take((signal.SIGUSR1,), None)
        one.listen()
        os.close(writer)
        one.release()
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)


def test_ctrl_c_may_be_given_back_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    one = Requests(None, grace=30)
    one.listen()
    one.release_interruption()
    assert signal.getsignal(signal.SIGINT) is before
    os.kill(os.getpid(), signal.SIGTERM)
    assert one.seen
    one.release()


def test_a_request_is_noticed_while_the_main_thread_is_inside_a_call(requests: Requests) -> None:
    noticed = threading.Event()
    lock = threading.Lock()
    lock.acquire()

    def act() -> None:
        noticed.set()
        lock.release()

    requests.before_first_step(act)
    killer = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM))
    killer.start()
    assert lock.acquire(timeout=SECONDS)
    assert noticed.is_set()
    killer.join()
    lock.release()
    requests.before_first_step(None)


def test_a_request_that_came_before_is_acted_upon_at_once(requests: Requests) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    done: list[int] = []
    requests.before_first_step(lambda: done.append(1))
    assert done


def test_after_the_first_step_the_other_thread_does_nothing(requests: Requests) -> None:
    done: list[int] = []
    requests.before_first_step(lambda: done.append(1))
    requests.before_first_step(None)
    os.kill(os.getpid(), signal.SIGTERM)
    requests.before_first_step(None)
    assert (requests.seen, done) == (True, [])


def test_a_launchers_ctrl_c_has_the_launchers_time_and_promises_no_second_one(
    capfd: pytest.CaptureFixture[str],
) -> None:
    one = Requests(None, grace=25, launcher_kills=True)
    one.listen()
    os.kill(os.getpid(), signal.SIGINT)
    seen = one.current
    one.release()
    assert seen is not None
    assert seen.left == pytest.approx(25, abs=5)
    assert "again" not in capfd.readouterr().err


def test_a_request_is_early_before_the_run_is_open_too(requests: Requests) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    assert requests.came_early()


def test_a_request_is_early_until_the_first_step_is_done(requests: Requests) -> None:
    requests.before_first_step(lambda: None)
    asking = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM))
    asking.start()
    assert requests.came_early()
    asking.join()
    requests.before_first_step(None)
    assert not requests.came_early()
