"""The modes of registered modules, as `train()` and `eval()` set them.

A script may set a mode once, or forget to set it back after an evaluation, and trains on in it. So modes are part of
the state, and follow the script's code as the random generators do: they are restored after the code that a resumed
run executes again, right before what comes next. Rank 0's are saved. Owned by the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

Modes = Mapping[str, bool]
"""Whether a part is in training mode, by its path; "" is the whole. Only of parts that differ from the one around them,
and of the whole if it is not in training mode."""


class HasModes(Protocol):
    """A registered module."""

    def modes(self) -> Modes:
        """The present ones."""
        ...

    def set_modes(self, modes: Modes) -> None:
        """Restores them."""
        ...


class ModesByName:
    """The modes of all registered modules; a Follower of perdure.state.rng."""

    def __init__(self, modules: Mapping[str, HasModes]) -> None:
        """`modules` may grow."""
        self._modules = modules
        self._held: Mapping[str, Modes] | None = None
        """Those before code that a resumed run would execute again."""
        self._resumed: Mapping[str, Modes] = {}
        """Those in the commit, until training continues from it."""

    def state(self) -> dict[str, Modes]:
        """What a save made now would hold."""
        return {**self._now(), **(self._held or {}), **self._resumed}

    def resume(self, saved: Mapping[str, Modes]) -> None:
        """A commit with these is loaded."""
        self._resumed = saved

    def claim(self, saved: Mapping[str, Modes]) -> None:
        """Modules with these in the commit are registered late."""
        if self._resumed:
            self._resumed = {**self._resumed, **saved}
        self._set(saved)

    def hold(self) -> None:
        """From now on a resumed run would execute the script's code again."""
        self._held = self._now()

    def release(self) -> None:
        """From now on it would not."""
        self._held = None

    def take(self) -> None:
        """In a resumed run: the code that follows runs right after the commit."""
        self._set(self._resumed)

    def go_on(self) -> None:
        """Training continues: the resume is over."""
        self._resumed = {}

    def aside(self) -> Callable[[], None]:
        """Returns what restores the present held state."""
        held = self._held

        def bring_back() -> None:
            self._held = held

        return bring_back

    def _now(self) -> dict[str, Modes]:
        return {name: module.modes() for name, module in self._modules.items()}

    def _set(self, saved: Mapping[str, Modes]) -> None:
        for name, modes in saved.items():
            self._modules[name].set_modes(modes)
