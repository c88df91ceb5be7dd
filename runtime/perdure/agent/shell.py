"""The agent's loop: reads the assignment file, pipes and signals, calls the machine, carries out its actions.

One thread and one selector: the agent forks, and must meet its deadlines whatever a trainer does.
`perdure.agent.machine` makes the decisions.
"""

from __future__ import annotations

import os
import selectors
import shlex
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, assert_never

from perdure.agent import linux
from perdure.agent.environ import ProcessIdentity, process_environment
from perdure.agent.images import ImageFiles
from perdure.agent.kubeflow import KubeflowServer
from perdure.agent.launch import Exec, Launcher
from perdure.agent.machine import react
from perdure.agent.paths import Paths, warm_marker
from perdure.agent.pod_log import Outlet
from perdure.agent.processes import Child, Children, Pipe
from perdure.agent.reporter import ReportFeed
from perdure.agent.rescuer import Rescuer
from perdure.agent.stage import due
from perdure.agent.state import (
    Acknowledge,
    Action,
    AgentSettings,
    AgentState,
    Ask,
    AskForSave,
    AssignmentRead,
    Cleared,
    CommitImage,
    Event,
    Finish,
    ForgetImages,
    Kill,
    MakesWay,
    MarkWarm,
    OfferAssignment,
    PrintLine,
    ProcessEnded,
    ReportReceived,
    SigtermReceived,
    Start,
    Tick,
    Unreadable,
    Warmed,
)
from perdure.agent.stop import StopMarker
from perdure.wire import CLEAN, ContractError, Env, Outcome, Train, UnsupportedVersion, read_assignment, write_outcome
from perdure.wire.channel import Request, acknowledge_vote, ask_for_save, write_offer, write_request

POLL_SECONDS: Final = 0.05
"""How often the assignment file is read: inotify does not see the kubelet's swap of a link in all volumes."""
STDERR: Final = 2
LAST_WORDS_SECONDS: Final = 1.0
"""How long a finished agent waits for a reader of its log."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""A shell's exit statuses for a command that cannot be started."""


class AssignmentFile:
    """Reads the assignment file when it changes. The kubelet replaces it as a whole, through a link."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[int, int, int] | None = None

    def changed(self) -> AssignmentRead | Unreadable | None:
        """The file's contents if they are new; otherwise None."""
        try:
            stat = self._path.stat()
            text = self._path.read_text(errors="replace")
        except OSError:
            return None  # being replaced, or not there yet
        known = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if known == self._known or not text:
            return None
        self._known = known
        try:
            return AssignmentRead(read_assignment(text))
        except UnsupportedVersion as error:
            return Unreadable(str(error), unsupported=True)
        except ContractError as error:
            return Unreadable(str(error))


class Signals:
    """Turns signals into bytes on a socket: the loop wakes up, and handlers do nothing."""

    NUMBERS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)

    def __init__(self) -> None:
        self.receiver, self._sender = socket.socketpair()
        self.receiver.setblocking(False)
        self._sender.setblocking(False)
        for number in self.NUMBERS:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.NUMBERS)  # delivers signals blocked since perdure.cli.start

    def received(self) -> set[int]:
        """The signals since the last call."""
        try:
            return set(self.receiver.recv(4096))
        except BlockingIOError:
            return set()


class Agent:
    """One `perdure run`: from the first assignment to the outcome."""

    def __init__(
        self,
        command: Sequence[str],
        paths: Paths,
        settings: AgentSettings,
        environ: Mapping[str, str],
        launcher: Launcher | None = None,
    ) -> None:
        self._command, self._paths, self._environ = list(command), paths, environ
        self._launcher = launcher or Exec()
        self._state = AgentState(settings)
        self._file = AssignmentFile(paths.assignment)
        self._stop = StopMarker(paths.scratch)
        self._selector = selectors.DefaultSelector()
        self._children = Children(paths.cgroups, self._launcher)
        self._images = ImageFiles(mirrors=Env.MIRROR_EVERY_STEPS in environ)
        self._log = Outlet(STDERR)
        self._rescuer = Rescuer(self._log)
        self._reporter = ReportFeed(paths.channel, paths.report_token, environ, self._log)
        self._kubeflow = KubeflowServer(self._selector)
        self._events: deque[Event] = deque()
        self._exit: int | None = None

    def run(self) -> int:
        """Run until the outcome is written; returns the exit status."""
        linux.adopt_orphans()
        self._paths.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        warm_marker(self._paths.scratch).unlink(missing_ok=True)
        signals = Signals()
        self._selector.register(signals.receiver, selectors.EVENT_READ)
        self._kubeflow.begin(self._paths.scratch)
        self._warm_up()
        while self._exit is None:
            self._events.extend(self._learn(signals))
            self._react()
            self._report()
            if self._exit is None:
                self._log.flush()
                self._selector.select(self._patience())
        self._await_aside()
        self._log.flush(LAST_WORDS_SECONDS)
        return self._exit

    def _report(self) -> None:
        """Answer what the script itself reports, and report the progress of the training to the operator, if it takes
        reports."""
        self._kubeflow.look()
        self._reporter.look(self._state, self._selector, self._kubeflow.values)
        self._children.spared = self._reporter.pid

    def _await_aside(self) -> None:
        """Wait for processes that were set aside: the exit of PID 1 would kill them."""
        while self._children.aside:
            self._selector.select(POLL_SECONDS)
            for _ in self._children.pump():
                pass
            self._children.reap()
            for _ in self._children.ended():
                pass
            self._report()

    def _warm_up(self) -> None:
        self._launcher.begin(self._selector)
        if self._launcher.warming:
            self._state = replace(self._state, warming_until=time.monotonic() + self._state.settings.warm_up)

    def _patience(self) -> float:
        at = due(self._state)
        return POLL_SECONDS if at is None else max(0.0, min(POLL_SECONDS, at - time.monotonic()))

    def _learn(self, signals: Signals) -> Iterator[Event]:
        """New events: reports before ends before requests, so that what a trainer did counts before it is asked for
        more.

        Requests are read first and yielded last, so that no report is younger than the request that follows it.
        """
        received, grace_began, changed = signals.received(), self._stop.seen(), self._file.changed()
        for line in self._launcher.log_lines():
            self._log.say(line)
        if self._state.warming_until is not None and not self._launcher.warming:
            yield Warmed()
        yield from self._children.pump()
        self._children.reap()
        yield from self._children.ended()
        yield from self._rescuer.results()
        if grace_began is not None or received & {signal.SIGTERM, signal.SIGINT}:
            yield SigtermReceived(grace_began)  # before an assignment, so that it starts nothing
        if changed:
            yield changed
        yield Tick()

    def _react(self) -> None:
        while self._events and self._exit is None:
            self._state, actions = react(self._state, self._events.popleft(), time.monotonic())
            for action in actions:
                self._act(action)

    def _act(self, action: Action) -> None:
        match action:
            case PrintLine(line):
                self._log.say(line)
            case MarkWarm():
                warm_marker(self._paths.scratch).touch()
            case Start(train):
                self._start(train)
            case Ask():
                self._ask(action)
            case AskForSave() | OfferAssignment() | Acknowledge():
                self._show(action)
            case ForgetImages() | CommitImage():
                self._see_to_images(action)
            case Kill():
                self._children.kill()
            case Finish(outcome):
                self._finish(outcome)
            case _:
                assert_never(action)

    def _see_to_images(self, action: ForgetImages | CommitImage) -> None:
        match action:
            case ForgetImages():
                self._images.forget()
            case CommitImage(run, aborted, successor):
                self._rescuer.begin((run, aborted, successor), self._images.left(), self._environ, self._selector)

    def _ask(self, ask: Ask) -> None:
        request = Request(ask.cause, ask.deadline, ask.image)
        self._put("the request", lambda: write_request(self._request_file(ask.run), request))
        if not ask.again:
            self._children.terminate(ask.sessions)

    def _show(self, action: AskForSave | OfferAssignment | Acknowledge) -> None:
        """Write a file that the trainer polls while it trains."""
        match action:
            case AskForSave(run, word):
                self._put("the request for a save", lambda: ask_for_save(self._request_file(run), word))
            case OfferAssignment(run, assignment):
                self._put(f"the offer of run {assignment.run}", lambda: write_offer(self._offer_file(run), assignment))
            case Acknowledge(run, following):
                self._put("the acknowledgement of a vote", lambda: acknowledge_vote(self._offer_file(run), following))

    def _put(self, what: str, write: Callable[[], None]) -> None:
        """Write a file for the trainer; if that fails, the trainer goes on."""
        try:
            write()
        except OSError as error:
            self._log.say(f"{what} cannot be written to {self._paths.scratch}: {error.strerror}")

    def _request_file(self, run: int) -> Path:
        return self._folder(run) / "request.json"

    def _offer_file(self, run: int) -> Path:
        return self._folder(run) / "handover.json"

    def _folder(self, run: int) -> Path:
        """The folder of the trainer that was started for this run."""
        return self._paths.scratch / f"run-{run}"

    def _start(self, train: Train) -> None:
        self._folder(train.run).mkdir(exist_ok=True)
        for left in self._folder(train.run).iterdir():
            left.unlink()
        processes = self._state.settings.processes
        last = train.rank + processes - 1
        ranks = f"rank {train.rank}" if processes == 1 else f"ranks {train.rank} to {last}"
        self._log.say(f"run {train.run} starts: {ranks} of {train.world}: {shlex.join(self._command)}")
        self._children.make_room(self._state.settings.teardown)
        self._forget_last_trainer()
        self._kubeflow.forget()
        self._images.next_trainer(processes)
        if self._images.trouble:
            self._log.say(self._images.trouble)
        for local_rank in range(processes):
            self._start_process(train, local_rank)

    def _forget_last_trainer(self) -> None:
        """Drop queued events of its processes: their ranks may be the next trainer's too."""
        of_processes = ReportReceived | MakesWay | ProcessEnded | Cleared
        self._events = deque(event for event in self._events if not isinstance(event, of_processes))

    def _start_process(self, train: Train, local_rank: int) -> None:
        rank = train.rank + local_rank
        (report, report_end), (stderr, stderr_end) = os.pipe(), os.pipe()
        os.set_blocking(report_end, False)  # a trainer never waits for its agent
        place = ProcessIdentity(
            local_rank,
            self._state.settings.processes,
            report_end,
            self._request_file(train.run),
            self._offer_file(train.run),
            time.monotonic(),
            linux.cpu_limit(),
            self._images.place(local_rank),
            self._images.mirror_files(local_rank),
            self._images.held(local_rank),
        )
        environment = process_environment(self._environ, train, place) | self._kubeflow.environment(self._environ)
        try:
            started = self._launcher.start(self._command, environment, report_end, stderr_end)
        except OSError as error:
            os.close(report)
            os.close(stderr)
            end = _not_started(rank, self._command, error)
            self._log.say(end.tail)
            self._events.append(end)
        else:
            pipes = Pipe(report, self._selector), Pipe(stderr, self._selector)
            port = int(train.master.rpartition(":")[2])
            self._children.add(Child(rank, started.pid, *pipes, self._log, port=port))
            if started.how:
                self._log.say(f"rank {rank} of run {train.run}: {started.how}")
        finally:
            os.close(report_end)
            os.close(stderr_end)

    def _finish(self, outcome: Outcome) -> None:
        try:
            self._paths.termination_log.write_text(write_outcome(outcome))
        except OSError as error:
            self._log.say(f"the outcome cannot be written to {self._paths.termination_log}: {error.strerror}")
        self._exit = 0 if outcome.outcome in CLEAN else 1


def _not_started(rank: int, command: Sequence[str], error: OSError) -> ProcessEnded:
    """The end of a command that could not be started, as a shell would report it."""
    status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    text = f"the command {command[0]!r} cannot be started: {error.strerror}: check the command of container 0"
    return ProcessEnded(rank, status, text)
