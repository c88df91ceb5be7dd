"""Moves as messages: small boxes travel together, large ones in pieces. Equal at both ends of a link."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from perdure.layout.plan import Move
from perdure.layout.row_major import pieces

Message = list[Move]


def messages(moves: Iterable[Move], *, small: int, most: int) -> Iterator[Message]:
    """Boxes of up to `small` bytes in messages of up to `most`, then each larger one in pieces of up to `most`.

    Nothing is sent of an empty box.
    """
    large: list[Move] = []
    pack: Message = []
    room = most
    for move in moves:
        if move.size > small:
            large.append(move)
        elif move.size:
            if move.size > room:
                yield pack
                pack, room = [], most
            pack.append(move)
            room -= move.size
    if pack:
        yield pack
    for move in large:
        width = move.size // move.box.count
        for piece in pieces(move.box.sizes, most // width):
            yield [replace(move, box=piece.out_of(move.box), size=piece.count * width)]
