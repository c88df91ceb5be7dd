"""Walks through every world that a setting leads to, breadth first: a broken law comes with the shortest way to it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tests.support.worlds import uncollected
from tests.unit.runtime.live.laws import broken, slow, stuck
from tests.unit.runtime.live.moves import moves, only_the_limit_is_left, only_time_is_left
from tests.unit.runtime.live.small import Setting, World


@dataclass(frozen=True)
class Found:
    """What a walk has found."""

    worlds: int
    broken: dict[str, tuple[str, ...]]
    """By law: what happened on the shortest way to a world where it does not hold."""
    log: frozenset[str]
    """The logs that were reached."""
    whole: bool
    """Whether every world was visited."""

    def __str__(self) -> str:
        lines = [f"{self.worlds} worlds{'' if self.whole else ', not all'}"]
        lines += [f"{law}\n    " + "\n    ".join(way) for law, way in self.broken.items()]
        return "\n".join(lines)


@uncollected()
def explore(setting: Setting, at_most: int = 10**7, *, first_only: bool = False) -> Found:
    """Stops behind `at_most` worlds, or with `first_only` at the first broken law."""
    first = setting.first()
    came: dict[World, tuple[World, str] | None] = {first: None}
    left = deque([first])
    found: dict[str, tuple[str, ...]] = {}
    while left and len(came) < at_most and not (first_only and found):
        world = left.popleft()
        laws = list(broken(setting, world))
        following = [] if laws else moves(setting, world)
        if not laws and only_time_is_left(following):
            laws = list(stuck(setting, world))
        elif not laws and only_the_limit_is_left(following):
            laws = list(slow(setting, world))
        for law in laws:
            found.setdefault(law, _way(came, world))
        for label, after in following:
            if after not in came:
                came[after] = world, label
                left.append(after)
    return Found(len(came), found, frozenset(world.log for world in came), not left)


def _way(came: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    way: list[str] = []
    while before := came[world]:
        world, label = before
        way.append(label)
    return tuple(reversed(way))
