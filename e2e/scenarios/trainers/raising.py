"""Rank 1 raises after RAISE_AFTER steps of every run: a user's mistake that no restart mends."""

from __future__ import annotations

import os
from typing import Any

from paced import Paced, train  # type: ignore[import-not-found]

RAISE_AFTER = int(os.environ["RAISE_AFTER"])


class Raising(Paced):  # type: ignore[misc]
    """A Session in a script with a mistake."""

    def step(self, *args: Any, **kwargs: Any) -> None:
        if self.rank == 1 and self.here == RAISE_AFTER:
            raise ValueError("sample 17 has no label")
        super().step(*args, **kwargs)


if __name__ == "__main__":
    train(Raising)
