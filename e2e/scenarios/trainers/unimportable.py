"""paced.py that cannot be imported by whoever joins later: a pool of nodes has a wrong driver, say."""

from __future__ import annotations

import os

if int(os.environ["PERDURE_RUN"]) > 1:
    raise ImportError("libdriver.so.1: cannot open shared object file")

from paced import Paced, train  # type: ignore[import-not-found]

if __name__ == "__main__":
    train(Paced)
