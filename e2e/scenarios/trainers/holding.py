"""paced.py whose processes stand still at one moment of a hand-over, so that something can be done to them just there.

HOLD names the moment, `PHASE PARTY RUN`: at which phase which party holds in the attempt of which run; or it is the
path of a file that says so, or is not there. Whoever holds says `HOLD ...` and goes on when the file says something
else, or after HOLD_SECONDS.

phase       the party holds
connecting  before it connects, beside the training
receiving   in the stop: everybody knows what is sent, and nothing has been
voting      its agent knows that it votes, and it has not
putting     the decider: before its PUT
put         the decider: the entry is in the log, and nobody knows

While the file named by HURRY is there, nobody rests longer than HURRY_SECONDS between two steps: so a test can have the
training wait for it where nothing is to be seen, and go on quickly where it is.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from paced import Paced, train  # type: ignore[import-not-found]

from perdure.live import handover, newcomer
from perdure.live.effects import Effects
from perdure.log.verdict import Verdict

HOLD: Final = os.environ.get("HOLD", "")
SECONDS: Final = float(os.environ.get("HOLD_SECONDS", "8"))
HURRY: Final = os.environ.get("HURRY", "")
HURRY_SECONDS: Final = float(os.environ.get("HURRY_SECONDS", "0.4"))
LOOK_SECONDS: Final = 0.02


def wanted() -> str:
    """The moment, or nothing."""
    if not HOLD.startswith("/"):
        return HOLD
    try:
        return Path(HOLD).read_text()
    except OSError:
        return ""


class Hurried(Paced):  # type: ignore[misc]
    """A Session whose rest between two steps ends when that is wanted."""

    def rest(self, seconds: float) -> None:
        begun = time.monotonic()
        while time.monotonic() < begun + (min(seconds, HURRY_SECONDS) if Path(HURRY).is_file() else seconds):
            time.sleep(LOOK_SECONDS)


class Held(Effects):
    """A party's acts, each after a while."""

    def connect(self) -> None:
        self._hold("connecting")
        super().connect()

    def lap(self, part: str) -> None:
        super().lap(part)
        if part == "header":
            self._hold("receiving")

    def vote(self) -> None:
        self._hold("voting")
        super().vote()

    def append_opened(self) -> Verdict:
        self._hold("putting")
        verdict = super().append_opened()
        if verdict is Verdict.GO:
            self._hold("put")
        return verdict

    def _hold(self, phase: str) -> None:
        party = "decider" if self.party.decides else self.party.part.value
        here = f"{phase} {party} {self.attempt.next}"
        if wanted() != here:
            return
        print(f"HOLD {here}", flush=True)
        end = time.monotonic() + SECONDS
        while wanted() == here and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    print(f"HOLD process {os.getpid()}", flush=True)
    handover.Effects = newcomer.Effects = Held  # type: ignore[attr-defined]
    train(Hurried)
