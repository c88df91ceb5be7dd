"""Progress lines, the cache folder, content keys and the lock that every preparation step uses.

Knows nothing of what is being prepared.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
HEARTBEAT_SECONDS = 20.0
TAIL_LINES = 25


class PrepareError(RuntimeError):
    """Preparation cannot go on; the message says what is wrong and what to do."""


class Progress:
    """One line per thing that happens, each with the time since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        """Print one line."""
        print(f"[{time.monotonic() - self._start:6.1f} s] {text}", file=sys.stderr, flush=True)

    def run(
        self,
        doing: str,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Run a program quietly: a sign of life now and then, its last lines only when it fails."""
        self.say(doing)
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            process = subprocess.Popen(
                [str(word) for word in argv], stdout=output, stderr=subprocess.STDOUT, env=env, cwd=cwd, text=True
            )
            try:
                code = self._wait(process, doing)
            except BaseException:
                process.terminate()
                process.wait()
                raise
            if code != 0:
                output.seek(0)
                tail = "".join(output.readlines()[-TAIL_LINES:])
                raise PrepareError(f"{doing}: `{' '.join(map(str, argv))}` ended with status {code}:\n{tail}")

    def _wait(self, process: subprocess.Popen[str], doing: str) -> int:
        while True:
            try:
                return process.wait(timeout=HEARTBEAT_SECONDS)
            except subprocess.TimeoutExpired:
                self.say(f"  … still {doing}")


def cache_dir() -> Path:
    """Where everything that is built is kept: $PERDURE_CACHE, else ~/.cache/perdure."""
    chosen = os.environ.get("PERDURE_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "perdure"


def content_key(parts: Iterable[bytes]) -> str:
    """A short name for this content; parts are kept apart, so moving bytes between them changes the key."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def locked(name: str, progress: Progress) -> Iterator[None]:
    """Keep a second run out of the same step; the lock ends with the process that holds it."""
    path = cache_dir() / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say(f"another run is preparing `{name}`: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
