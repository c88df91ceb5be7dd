"""The modes of registered modules, as `train()` and `eval()` set them, and which of their parameters are frozen.

A script may set a mode once, or forget to set it back after an evaluation, and trains on in it; it may unfreeze a layer
in one epoch, and train it in all later ones. So modes are part of the state, and follow the script's code as the random
generators do: they are restored after the code that a resumed run executes again, right before what comes next. Rank
0's are saved. Owned by the registry.

Scripts freeze parameters before they train, and people change that between two runs. So a checkpoint also says which
were frozen when its run began, and a parameter of which the resumed run's script says something else stays as that
script has made it. People also add and remove such lines in the loop, which nothing shows: so what is restored is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

MODES: Final = "modes"
"""The part of a checkpoint's entry for a module with the modes of its parts."""
TRAINED: Final = "trained"
"""The part of that entry with what its parameters are."""


class Modes(NamedTuple):
    """The modes of one module."""

    parts: Mapping[str, bool]
    """Whether a part is in training mode, by its path; "" is the whole. Only of parts that differ from the one around
    them, and of the whole if it is not in training mode."""
    trained: Mapping[str, Sequence[bool | None]] | None
    """The `requires_grad` of a parameter, by its path: now, and when the run began, None if it was not there. Only of
    parameters that are or were frozen. None in a checkpoint of an older version, which does not say."""

    def saved(self) -> dict[str, Any]:
        """The parts of a checkpoint's entry."""
        trained = {} if self.trained is None else {TRAINED: {path: list(both) for path, both in self.trained.items()}}
        return {MODES: dict(self.parts), **trained}

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Modes:
        """The modes in a checkpoint's entry."""
        return cls(saved[MODES], saved.get(TRAINED))


class HasModes(Protocol):
    """A registered module."""

    def begin(self) -> None:
        """The run begins: the script's own choice of what is frozen is that of now."""
        ...

    def modes(self) -> Modes:
        """The present modes."""
        ...

    def set_modes(self, modes: Modes) -> list[str]:
        """Restores them; returns the parameters that are now frozen or trained otherwise than before."""
        ...


class ModesByName:
    """The modes of all registered modules; a Follower of perdure.state.rng."""

    def __init__(self, modules: Mapping[str, HasModes]) -> None:
        """`modules` may grow."""
        self._modules = modules
        self._held: Mapping[str, Modes] | None = None
        """The modes before code that a resumed run would execute again."""
        self._stepped: Mapping[str, Modes] = {}
        """The modes right after a step, until the next batch."""
        self._resumed: Mapping[str, Modes] = {}
        """The modes in the commit, until training continues from it."""
        self.tell: Callable[[str], None] | None = None
        """Gets a line about each module of which parameters are frozen or trained as in the commit, and not as the
        script has them, once."""
        self._reported: set[str] = set()

    def begin(self) -> None:
        """The run begins, and has restored nothing yet."""
        for module in self._modules.values():
            module.begin()

    def state(self) -> dict[str, Modes]:
        """What a save made now would hold."""
        now = self._now()
        stepped = {name: now[name]._replace(parts=modes.parts) for name, modes in self._stepped.items() if name in now}
        return {**now, **stepped, **(self._held or {}), **self._resumed}

    def note_step(self) -> None:
        """A step is done. An evaluation may follow it and call `eval()`; a run that leaves in its middle does not
        repeat the `train()` at its end. So until `forget_step` a save holds the modes of now."""
        self._stepped = self._now()

    def forget_step(self) -> None:
        """The next batch is requested: what followed the step is done."""
        self._stepped = {}

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
        """From now on a resumed run would not execute the script's code again."""
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
            changed = self._modules[name].set_modes(modes)
            if changed and self.tell and name not in self._reported:
                self._reported.add(name)
                some = ", ".join(changed[:3]) + (" ..." if changed[3:] else "")
                self.tell(
                    f"{name}: {len(changed)} parameters are frozen or trained as the loop of the resumed run had left "
                    f"them, and not as this script has them now ({some}); to change that, call requires_grad_() in "
                    f"each epoch, which counts from the next one on"
                )
