"""Runs on the previous wheel: reads documents from stdin and writes them again as that version does.

Usage: previous_wire.py assignment|outcome. Stdin and stdout are JSON lists of the documents' texts.
"""

from __future__ import annotations

import json
import sys

from perdure.contract import read_assignment, read_outcome, write_assignment, write_outcome

AGAIN = {
    "assignment": lambda text: write_assignment(read_assignment(text)),
    "outcome": lambda text: write_outcome(read_outcome(text)),
}

if __name__ == "__main__":
    json.dump([AGAIN[sys.argv[1]](text) for text in json.load(sys.stdin)], sys.stdout)
