"""Whether reports make a step longer: without them, to an operator that answers, and to one that packets do not reach.

A member is a real agent with its trainer and its sender, alone on the machine. It learns where to report to in the
middle of its training, and its later steps are compared with its earlier ones: so a better place in memory counts
nowhere. No cluster needed.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from e2e.bench.report import Figure
from e2e.bench.reports_agent import CHANNEL, TOKEN
from e2e.harness.local_members import LocalMember, LocalMembers
from e2e.harness.local_run import executed
from e2e.prepare import Progress
from e2e.prepare.basics import REPOSITORY
from perdure.wire.report import Channel, ReportAnswer, write_answer, write_channel
from perdure_operator.serving.certificate import make
from perdure_operator.serving.reports.heard import SPEAKER_SECONDS

ROUNDS = 4
OFF = "no reports"
HEALTHY = "an operator that answers"
DROPPED = "packets dropped"
SILENT = "connections never answered"
UNSENT = "reports do not reach the operator"
"""The agent's log says so, once."""
FILLED = 8
"""Connections that wait in the kernel until its queue of one is full."""
PROBE_SECONDS = 1.0
MICRO, MILLI = 1e6, 1e3


@dataclass
class Endpoint:
    """Where a member's reports go."""

    port: int
    heard: list[int] = field(default_factory=list)
    """The lengths of the reports that were answered."""


@dataclass(frozen=True)
class Trained:
    """What one member found."""

    before: Sequence[float]
    """Seconds of each step before it could report."""
    after: Sequence[float]
    said: str

    @property
    def longer(self) -> float:
        """Percent by which a step is longer then."""
        return 100 * (statistics.fmean(self.after) / statistics.fmean(self.before) - 1)


@contextmanager
def answering(certificate: Path) -> Iterator[Endpoint]:
    """Answers each report as the operator does."""
    body = write_answer(ReportAnswer(SPEAKER_SECONDS[0])).encode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            found.heard.append(len(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.socket = context.wrap_socket(server.socket, server_side=True)
        found = Endpoint(server.server_address[1])
        Thread(target=server.serve_forever, daemon=True).start()
        yield found
        server.shutdown()


@contextmanager
def dropping() -> Iterator[Endpoint]:
    """Drops the packets of every new connection, as a firewall does: its queue is full, and nobody accepts."""
    with ExitStack() as stack:
        hole = stack.enter_context(socket.socket())
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)
        for _ in range(FILLED):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(hole.getsockname())
        if answers(hole.getsockname()):
            raise RuntimeError("this kernel drops no connection to a full queue")
        yield Endpoint(hole.getsockname()[1])


@contextmanager
def silent() -> Iterator[Endpoint]:
    """Takes connections, and never a byte of them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Endpoint(server.getsockname()[1])


def answers(address: tuple[str, int]) -> bool:
    """Whether a connection comes about."""
    try:
        with socket.create_connection(address, timeout=PROBE_SECONDS):
            return True
    except TimeoutError:
        return False


def measure(progress: Progress) -> tuple[list[Figure], dict[str, Any]]:
    """Steps of each way, and how much longer they are than without reports."""
    found: dict[str, list[Trained]] = {OFF: [], HEALTHY: [], DROPPED: [], SILENT: []}
    heard = 0
    with tempfile.TemporaryDirectory() as name:
        folder, ca = Path(name), Path(name, "ca.pem")
        certificate, key = make(["localhost"], datetime.now(UTC))
        ca.write_bytes(certificate)
        (folder / "both.pem").write_bytes(certificate + key)
        places: dict[str, Callable[[], AbstractContextManager[Endpoint]]] = {
            HEALTHY: lambda: answering(folder / "both.pem"),
            DROPPED: dropping,
            SILENT: silent,
        }
        for number in range(ROUNDS):
            for way in _turned(list(found), number):
                progress.say(f"round {number + 1} of {ROUNDS}: {way}")
                own = folder / f"{number}-{list(found).index(way)}"
                if way == OFF:
                    found[way].append(_trained(own, {}))
                    continue
                with places[way]() as endpoint:
                    channel = write_channel(Channel(f"https://localhost:{endpoint.port}", ca.read_text()))
                    found[way].append(_trained(own, {CHANNEL: channel, TOKEN: "a-token"}))
                    heard += len(endpoint.heard)
                _require(way, found[way][-1], endpoint)
    facts = {"cores": os.cpu_count(), "rounds": ROUNDS, "steps": len(found[OFF][0].after), "reports answered": heard}
    return _figures(found), facts


def _turned(ways: Sequence[str], number: int) -> list[str]:
    """Another one is first in each round."""
    first = number % len(ways)
    return [*ways[first:], *ways[:first]]


def _require(way: str, trained: Trained, endpoint: Endpoint) -> None:
    """Refuse a member that was not treated so."""
    if (UNSENT in trained.said) == (way == HEALTHY) or (bool(endpoint.heard) != (way == HEALTHY)):
        raise RuntimeError(f"{way}: {len(endpoint.heard)} reports were answered, and the member says:\n{trained.said}")


def _trained(folder: Path, files: Mapping[str, str]) -> Trained:
    """A member that trains alone, and gets these files beside its assignment once the first part is over."""
    steps, first = folder / "steps.json", folder / "first-part"
    argv = [sys.executable, "-m", "e2e.bench.reports_training", str(steps), str(first)]

    def start(command: Sequence[str], **options: Any) -> Any:
        at = command.index("perdure.cli.main")
        return executed([*command[:at], "e2e.bench.reports_agent", *command[at + 2 :]], **options)

    folder.mkdir()
    environ = {"PYTHONPATH": str(REPOSITORY), "PERDURE_EVERY_SECONDS": "3600", "PERDURE_TRACE": "0"}
    with LocalMembers(argv, folder, environ, start=start) as members:
        members.first_run("member")
        member = members.members["member"]
        members.waits("the first part", lambda: first.exists() or ended(member))
        for name, text in files.items():
            (member.folder / name).write_text(text)
        members.waits("the training's end", lambda: steps.exists() or ended(member))
        if not steps.exists():
            raise RuntimeError(f"the training failed:\n{member.said[-2000:]}")
        before, after = json.loads(steps.read_text())
        return Trained(before, after, member.said)


def ended(member: LocalMember) -> bool:
    """Whether its agent has."""
    return member.process.poll() is not None


def _figures(found: Mapping[str, Sequence[Trained]]) -> list[Figure]:
    longer = {way: tuple(one.longer for one in rounds) for way, rounds in found.items()}
    alone, figures = statistics.median(longer[OFF]), list[Figure]()
    for way, rounds in found.items():
        means = tuple(statistics.fmean(one.after) * MICRO for one in rounds)
        told = (None, "") if way == OFF else (alone, f"median, {OFF}")
        figures += [
            Figure(
                f"a step, {way}",
                "us",
                means,
                statistics.median(statistics.fmean(one.before) * MICRO for one in rounds),
                "before",
            ),
            Figure(f"a step is longer by, {way}", "%", longer[way], *told),
            Figure(f"the longest step, {way}", "ms", tuple(max(one.after) * MILLI for one in rounds)),
        ]
    return figures
