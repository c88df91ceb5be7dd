"""The process beside an agent that sends its reports to the operator: `python -m perdure.agent.sender CHANNEL TOKEN`.

It reads reports from its stdin, one a line, and sends the newest: when the operator's last answer asks for it, and
sooner when something changes that matters. Nothing waits for it. The server is trusted by the channel's certificates
alone, and the token is read from its file for each report, because the kubelet replaces it. A report that does not
arrive is one line in the pod's log, until one arrives again.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import re
import select
import signal
import ssl
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import urlsplit

from perdure.wire import ContractError
from perdure.wire.report import (
    ANSWER_BYTES,
    REPORT_PATH,
    Channel,
    Report,
    read_answer,
    read_channel,
    read_report,
    write_report,
)
from perdure.wire.truncation import shortened

RETRY_SECONDS: Final = 60.0
"""Seconds between a report that did not arrive and the next try."""
JITTER_SECONDS: Final = 10.0
"""Up to this much later, because all agents lose their operator at the same time."""
CHANGE_SECONDS: Final = 5.0
"""Minimum interval before an early report, sent because something important changed."""
ELSEWHERE_TIMES: Final = 8
"""In a row that a report goes to another replica at once, because the one it reached cannot take it now: the operator
has two, and only the one that leads takes reports."""
NICE: Final = 10
"""Added to its priority: the script's processes come first."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")
_SECONDS: Final = re.compile("[1-9][0-9]?")
_CHUNK: Final = 65536
_PEER_CLOSED: Final = (http.client.RemoteDisconnected, ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


class Unsent(Exception):
    """A report has not arrived; the message says why, and never holds the token."""


class Elsewhere(Unsent):
    """This replica of the operator cannot take reports now (503), and says when to try again."""

    def __init__(self, seconds: float) -> None:
        super().__init__("it answers with status 503")
        self.seconds = seconds


class ConnectionClosed(Unsent):
    """The operator has closed a connection that earlier reports have used, as at its end."""


@dataclass(frozen=True)
class SendLimits:
    """How long a report may take, in seconds."""

    connect: float = 3.0
    """Limit of a connection and its handshake."""
    request: float = 5.0
    """Limit of a whole request, a new connection included."""


@dataclass(frozen=True)
class Timing:
    """When the next report is due. Pure; every time is time.monotonic()."""

    at: float = 0.0
    """When it is due without a reason."""
    sent: float = float("-inf")
    """When the last one was sent."""
    arrived: bool = True
    """Whether that has arrived."""

    def due(self, *, urgent: bool) -> float:
        """When to send; a reason for haste does not count while reports do not arrive."""
        return min(self.at, self.sent + CHANGE_SECONDS) if urgent and self.arrived else self.at

    def answered(self, now: float, seconds: float) -> Timing:
        """The operator wants the next report after `seconds`."""
        return Timing(now + seconds, now)

    def closed(self, now: float, jitter: float) -> Timing:
        """The operator has closed the connection: perhaps another one leads now."""
        return Timing(now + jitter, now, arrived=False)

    def elsewhere(self, now: float, seconds: float) -> Timing:
        """Another replica may take it in `seconds`."""
        return Timing(now + seconds, now, arrived=False)

    def failed(self, now: float, jitter: float) -> Timing:
        """The report has not arrived."""
        return Timing(now + RETRY_SECONDS + jitter, now, arrived=False)


def matters(old: Report | None, new: Report) -> bool:
    """Whether the operator should hear of the change before the next report is due."""
    if old is None:
        return True
    return _what_matters(old) != _what_matters(new)


def _what_matters(report: Report) -> tuple[object, ...]:
    fails, hangs = report.store_failing_since is not None, report.hangs_since is not None
    of_hang = hangs, report.hangs_in, report.hang_may_be_work, report.watched
    return report.phase, report.run, report.rank, fails, *of_hang


class Sender:
    """Reads reports and sends them, in one thread."""

    def __init__(self, channel: Path, token: Path, lines: int, limits: SendLimits) -> None:
        """`lines` is the file that the reports are read from."""
        self._channel, self._token, self._lines, self._limits = channel, token, lines, limits
        self._unread = b""
        self._newest: Report | None = None
        self._arrived: Report | None = None
        self._sequence = 0
        self._timing = Timing()
        self._elsewhere = 0
        """How often in a row a replica has refused the report."""
        self._connection: http.client.HTTPSConnection | None = None
        self._url = ""
        self._said = False
        """Whether the log already says that reports do not arrive."""
        self._random = random.Random()  # noqa: S311 - nothing secret

    def run(self) -> None:
        """Send reports until the agent closes its end."""
        while True:
            waits = None
            if self._newest is not None:
                waits = max(0.0, self._due(self._newest) - time.monotonic())
            if select.select([self._lines], [], [], waits)[0] and not self._read():
                return
            if self._newest is not None and time.monotonic() >= self._due(self._newest):
                self._send(self._newest)

    def _due(self, newest: Report) -> float:
        return self._timing.due(urgent=matters(self._arrived, newest))

    def _read(self) -> bool:
        """Whether there are more reports to come."""
        chunk = os.read(self._lines, _CHUNK)
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        for line in lines:
            with contextlib.suppress(ContractError):  # then the last one counts
                self._newest = read_report(line.decode(errors="replace"))
        return bool(chunk)

    def _send(self, report: Report) -> None:
        self._sequence += 1
        jitter = self._random.uniform(0, JITTER_SECONDS)
        try:
            seconds = self._post(replace(report, sequence=self._sequence))
        except ConnectionClosed:
            self._timing = self._timing.closed(time.monotonic(), jitter)
        except Unsent as error:
            if isinstance(error, Elsewhere) and self._elsewhere < ELSEWHERE_TIMES:
                self._elsewhere += 1
                self._timing = self._timing.elsewhere(time.monotonic(), error.seconds * (1 + jitter / JITTER_SECONDS))
                return
            self._elsewhere = 0
            self._timing = self._timing.failed(time.monotonic(), jitter)
            if not self._said:
                self._said = True
                where = f" at {self._url}" if self._url else ""
                _say(
                    f"reports do not reach the operator{where}: {error}; training goes on, and one is tried each minute"
                )
        else:
            self._elsewhere = 0
            self._timing, self._arrived, self._said = self._timing.answered(time.monotonic(), seconds), report, False

    def _post(self, report: Report) -> float:
        """Seconds to the next report, by the answer. Raises Unsent."""
        begun, used, limits = time.monotonic(), self._connection is not None, self._limits
        try:
            token = _read_token(self._token)
            if self._connection is None:
                with until(begun + limits.connect, f"it does not take a connection within {limits.connect:g} s"):
                    self._connection = self._connect()
            with until(begun + limits.request, f"it does not answer within {limits.request:g} s"):
                return _ask(self._connection, write_report(report), token)
        except (OSError, http.client.HTTPException, ContractError, ValueError, Unsent) as error:
            self._drop()
            if used and isinstance(error, _PEER_CLOSED):
                raise ConnectionClosed from None
            if isinstance(error, Elsewhere):
                raise
            raise Unsent(_why(error)) from None
        finally:
            if self._connection is not None and self._connection.sock is None:
                self._connection = None  # its answer has closed it

    def _connect(self) -> http.client.HTTPSConnection:
        self._url = ""
        channel = _read_channel(self._channel)
        self._url = channel.url
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=channel.ca)
        at = urlsplit(channel.url)
        connection = http.client.HTTPSConnection(at.hostname or "", at.port, context=context)
        connection.connect()
        return connection

    def _drop(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None


def _ask(connection: http.client.HTTPSConnection, report: str, token: str) -> float:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request("POST", REPORT_PATH, report.encode(), headers)
    response = connection.getresponse()
    text = response.read(ANSWER_BYTES + 1)
    after = response.headers.get("Retry-After", "")
    if response.status == http.client.SERVICE_UNAVAILABLE and _SECONDS.fullmatch(after):
        raise Elsewhere(float(after))
    if response.status != http.client.OK:
        raise Unsent(f"it answers with status {response.status}")
    if len(text) > ANSWER_BYTES:
        raise Unsent(f"its answer is longer than {ANSWER_BYTES} bytes")
    return read_answer(text.decode()).next_seconds


def _read_channel(path: Path) -> Channel:
    try:
        return read_channel(path.read_text())
    except OSError as error:
        raise Unsent(f"{path} cannot be read: {error.strerror}") from None


def _read_token(path: Path) -> str:
    """Refuses a token that no header may hold: the HTTP client would print it in its error."""
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise Unsent(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        token = ""
    if not _TOKEN.fullmatch(token):
        raise Unsent(f"{path} holds no token")
    return token


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return shortened(text or type(error).__name__, 200).replace("\n", " ")


@contextlib.contextmanager
def until(at: float, message: str) -> Iterator[None]:
    """Raises TimeoutError in the main thread at that time.monotonic(): a server may answer byte by byte forever."""

    def over(*_: object) -> NoReturn:
        raise TimeoutError(message)

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, at - time.monotonic()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _say(line: str) -> None:
    print(f"perdure: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.nice(NICE)
    Sender(Path(sys.argv[1]), Path(sys.argv[2]), sys.stdin.fileno(), SendLimits()).run()
