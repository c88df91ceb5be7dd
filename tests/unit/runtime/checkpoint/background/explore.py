"""Walks through every world that a setting leads to, breadth first: a broken law comes with the shortest way to it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tests.support.worlds import uncollected
from tests.unit.runtime.checkpoint.background.moves import moves
from tests.unit.runtime.checkpoint.background.small import Broken, Setting, World


@dataclass(frozen=True)
class Found:
    """What a walk has found."""

    worlds: int
    broken: str
    """The first law that does not hold; empty if all do."""
    way: tuple[str, ...]
    """What happened on the shortest way to it."""
    whole: bool
    """Whether every world was visited."""
    logs: frozenset[str]
    """The logs with which it ended."""

    def __str__(self) -> str:
        return f"{self.worlds} worlds{'' if self.whole else ', not all'}\n{self.broken}\n    " + "\n    ".join(self.way)


@uncollected()
def explore(setting: Setting, at_most: int = 10**7) -> Found:
    """Stops at the first broken law, or behind `at_most` worlds.

    In the end it looks whether every world has a way to the end without a further fault.
    """
    first = setting.first()
    numbers = {first: 0}
    came: list[tuple[int, str]] = [(0, "")]
    ways: list[tuple[int, int]] = []
    ends: list[int] = []
    logs: set[str] = set()
    left = deque([(0, first)])
    while left and len(came) < at_most:
        number, world = left.popleft()
        if world.over:
            ends.append(number)
            logs.add(_letters(world))
            continue
        try:
            for label, fault, act in moves(setting, world):
                after = act()
                if after == world:
                    continue
                known = numbers.get(after)
                if known is None:
                    known = numbers[after] = len(came)
                    came.append((number, label))
                    left.append((known, after))
                if not fault:
                    ways.append((known, number))
        except Broken as broken:
            return Found(len(came), str(broken), (*_way(came, number), label), False, frozenset(logs))
    stuck = _without_an_end(len(came), ways, ends) if not left else None
    law = "stuck: there is no way to the end without a further fault" if stuck is not None else ""
    return Found(len(came), law, () if stuck is None else _way(came, stuck), not left, frozenset(logs))


def _letters(world: World) -> str:
    letters = {"opened": "o", "closed": "x"}
    return "".join(
        letters.get(entry.kind)
        or ("s" if entry.save[1] < 0 else "c").upper() * entry.final
        or ("s" if entry.save[1] < 0 else "c")
        for entry in world.log
    )


def _without_an_end(count: int, ways: list[tuple[int, int]], ends: list[int]) -> int | None:
    """The first world from which no end can be reached."""
    before: list[list[int]] = [[] for _ in range(count)]
    for after, number in ways:
        before[after].append(number)
    reached = bytearray(count)
    left = list(ends)
    for end in ends:
        reached[end] = 1
    while left:
        for number in before[left.pop()]:
            if not reached[number]:
                reached[number] = 1
                left.append(number)
    found = reached.find(0)
    return None if found < 0 else found


def _way(came: list[tuple[int, str]], number: int) -> tuple[str, ...]:
    way: list[str] = []
    while number:
        number, label = came[number]
        way.append(label)
    return tuple(reversed(way))
