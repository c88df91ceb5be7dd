"""The messages between a trainer and the process that uploads for it: a line of JSON each, over two pipes. Pure.

Lines are short, so that a write is unlikely to block even if the other process does not read. Large data goes through
the arena.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from perdure.checkpoint.background.sealed import Seal

LINE_BYTES: Final = 16 * 1024
"""The longest line. A pipe takes more."""
WHY_CHARACTERS: Final = 2000


@dataclass(frozen=True)
class UploadOrder:
    """Upload the part in the arena."""

    root: str
    folder: str
    seal: Seal
    """The seal of the part to upload."""


@dataclass(frozen=True)
class UploaderWord:
    """One word about a save."""

    word: str
    name: str
    seconds: float = 0.0
    """Seconds that the upload took, with DURABLE."""
    why: str = ""
    refused: bool = False
    """Whether the store refuses the same call until a person changes something."""


DURABLE: Final = "durable"
FAILED: Final = "failed"
MOVES: Final = "moves"
"""The store takes its bytes."""
RELEASED: Final = "released"
"""The uploader no longer reads the arena's bytes."""


class Lines:
    """Puts a stream of bytes together to lines."""

    def __init__(self) -> None:
        self._begun = b""

    def add(self, data: bytes) -> list[bytes]:
        """The lines that have become whole. ValueError if one has no end."""
        *lines, self._begun = (self._begun + data).split(b"\n")
        if len(self._begun) > LINE_BYTES:
            raise ValueError(f"a line has more than {LINE_BYTES} bytes")
        return lines


def write_order(order: UploadOrder) -> bytes:
    """As a line. ValueError if it is too long."""
    return _line({"root": order.root, "folder": order.folder, "seal": asdict(order.seal)})


def read_order(line: bytes) -> UploadOrder:
    """The order in this line. ValueError, KeyError or TypeError if it is malformed."""
    body = json.loads(line)
    return UploadOrder(str(body["root"]), str(body["folder"]), Seal(**body["seal"]))


def write_word(word: UploaderWord) -> bytes:
    """As a line."""
    return _line(asdict(word) | {"why": word.why[:WHY_CHARACTERS]})


def read_word(line: bytes) -> UploaderWord:
    """The word in this line. ValueError or TypeError if it is malformed."""
    return UploaderWord(**json.loads(line))


def _line(body: dict[str, object]) -> bytes:
    line = json.dumps(body).encode() + b"\n"
    if len(line) > LINE_BYTES:
        raise ValueError(f"a line of {len(line)} bytes is too long")
    return line
