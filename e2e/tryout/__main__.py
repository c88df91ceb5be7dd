"""`python -m e2e.tryout`: tells the story; exit status 0 only if every promise held."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from e2e.harness.evidence import NoEvidence
from e2e.harness.local_run import Start, executed
from e2e.harness.watching import Late
from e2e.prepare import PrepareError, Progress
from e2e.tryout.story import Tryout, drawn

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "digits" / "train.py"
SEEDS = 10_000


def main(argv: Sequence[str] | None = None, start: Start = executed) -> int:
    """Prints the report; its last line is for scripts. `start` starts a rank."""
    parser = argparse.ArgumentParser(prog="python -m e2e.tryout", description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, help="repeats an interruption")
    parser.add_argument("--kill", action="store_true", help="kill -9 of one process instead of SIGTERM for both")
    options = parser.parse_args(argv)
    progress = Progress()
    seed = random.randrange(SEEDS) if options.seed is None else options.seed  # noqa: S311
    progress.say(f"SEED={seed} repeats this")
    try:
        with tempfile.TemporaryDirectory(prefix="perdure-try-") as folder:
            tryout = Tryout(Path(sys.executable), SCRIPT, Path(folder), options.epochs, progress, start)
            result = tryout.tell(drawn(seed, options.epochs, kill=options.kill))
    except (PrepareError, Late, NoEvidence) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted: nothing was left behind", file=sys.stderr)
        return 130
    print(result.line(), flush=True)
    return 0 if result.holds else 1


if __name__ == "__main__":
    sys.exit(main())
