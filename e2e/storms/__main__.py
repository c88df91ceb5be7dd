"""`python -m e2e.storms FOLDER`: judges a storm's evidence again."""

from __future__ import annotations

import sys
from pathlib import Path

from e2e.storms import judge


def main(folder: str) -> int:
    """Prints what was wrong; 1 if anything was."""
    storm = judge.read(Path(folder))
    start = min((poll.time for poll in storm.polls), default=0.0)
    wrong = judge.judge(storm)
    print("\n".join([*judge.told(storm), *judge.summed_up(wrong, start)]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
