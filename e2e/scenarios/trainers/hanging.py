"""In its first run it saves after SAVE_AT steps, stops calling step() after HANG_AFTER steps, and never comes back: all
ranks, or HANG_RANK alone."""

from __future__ import annotations

import os
import threading
from typing import Any

from paced import Paced, train  # type: ignore[import-not-found]

SAVE_AT = int(os.environ["SAVE_AT"])
HANG_AFTER = int(os.environ["HANG_AFTER"])
HANG_RANK = os.environ.get("HANG_RANK", "")


class Hanging(Paced):  # type: ignore[misc]
    """A Session whose script loses itself between two steps."""

    def step(self, *args: Any, **kwargs: Any) -> None:
        if self.run == 1 and self.here == HANG_AFTER and HANG_RANK in ("", str(self.rank)):
            threading.Event().wait()
        super().step(*args, **kwargs)
        if self.run == 1 and self.here == SAVE_AT:
            self.save()


if __name__ == "__main__":
    train(Hanging)
