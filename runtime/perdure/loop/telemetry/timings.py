"""How long the parts of a run's beginning and end took: `seconds` of an outcome. Used by the session."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

from perdure.host.process_age import age as age_of
from perdure.host.process_age import born
from perdure.loop.telemetry.events import Event, Measured


class Timings:
    """Seconds by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measures a block, even if it raises."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - begun

    def note(self, seconds: Mapping[str, float]) -> None:
        """Adds what was measured elsewhere."""
        self.seconds.update(seconds)

    def of_a_save(self) -> float:
        """What the newest save took, in seconds, as a blocking save would; 0 before the first."""
        return sum(self.seconds.get(part, 0.0) for part in ("stage", "upload", "commit"))

    def take(self, event: Event) -> None:
        """As a sink: adds what other parts have measured."""
        if isinstance(event, Measured):
            self.note(event.seconds)

    def begin(self, started: float | None) -> None:
        """Splits the time since the agent started this process into start and import."""
        made = born()
        age = None if made is None else max(0.0, age_of(made))
        if started is None:
            self.seconds |= {"start": 0.0, "import": age or 0.0}
            return
        total = time.monotonic() - started
        imported = total if age is None else min(age, total)
        self.seconds |= {"start": total - imported, "import": imported}
