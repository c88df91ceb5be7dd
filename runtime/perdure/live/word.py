"""What the parties of an attempt say to each other about its outcome."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from perdure.log.entry import ENTRY_BYTES
from perdure.wire import HandoverWord

WORD_BYTES: Final = ENTRY_BYTES * 2 + 1024
"""Twice an entry's size, because JSON escapes the quotes of the entry."""


@dataclass(frozen=True)
class Word:
    """A party's message about the attempt's outcome. Only the decider sends GO."""

    word: HandoverWord
    why: str = ""
    seq: int = 0
    entry: str = ""
    """With GO: the log entry that decided; `seq` is its number."""

    def write(self) -> bytes:
        """The message as WORD_BYTES bytes."""
        text = json.dumps([self.word, self.why[:200], self.seq, self.entry])
        return text.encode().ljust(WORD_BYTES)

    @classmethod
    def read(cls, data: bytes) -> Word:
        """The message from those bytes."""
        word, why, seq, entry = json.loads(data)
        return cls(HandoverWord(word), why, seq, entry)
