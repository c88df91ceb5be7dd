"""Copies a part while training goes on: parameters and optimizer state stay as they are until an optimizer steps.

A thread copies; whatever could change them waits for it: each optimizer's step, by torch's hook, and every place where
the session acts. Nothing of torch promises that nothing else changes them. So everything is checksummed while training
waits, and only a copy with the same checksum is sealed: a perturbation, a clamp or a compiled step in the middle of a
copy drops that save, and from then on training waits for this process's copies.

Called by perdure.loop.save_effects and perdure.loop.mirroring.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from perdure.checkpoint.background.arena import StateChanged
from perdure.checkpoint.deferred import Deferred, defer
from perdure.checkpoint.stage import LiveBytes
from perdure.checkpoint.upload import Staged
from perdure.console import say
from perdure.errors import in_words
from perdure.state.registry import Registry

MOST_AT_ONCE_BYTES: Final = 64 * 2**20
"""The forward pass may change these tensors, so they are copied twice; above this size deferring does not pay."""
LARGE_BYTES: Final = 32 * 2**20
"""Copying a smaller part takes too short to notice, so training waits for it."""
MOST_PLAIN_COPIES: Final = 15
"""After a copy during training did not pay, training waits for the next ones, at most this many."""


@dataclass(frozen=True)
class CopyBegun:
    """What will be in the arena, unless the state changes before it is copied."""

    size: int
    """In bytes."""
    checksum: str


@dataclass(frozen=True)
class NoCopy:
    """The arena holds nothing."""

    why: str
    changed: bool = False
    """Whether the state has changed meanwhile; nothing else is wrong."""


Copied = TypeVar("Copied")
"""What a copy that was made is known by."""
Copied_co = TypeVar("Copied_co", covariant=True)


class Fill(Protocol[Copied_co]):
    """Copies and seals a part, or says why that is impossible. StateChanged if it has another checksum than `whole`."""

    def __call__(self, staged: Staged, *, whole: str = ...) -> Copied_co | str: ...


class _Copy(threading.Thread, Generic[Copied]):
    """One copy, in a separate thread."""

    def __init__(self, make: Callable[[], Copied | NoCopy]) -> None:
        super().__init__(name="perdure-copy", daemon=True)
        self._make = make
        self._first = threading.Lock()
        """The thread that acquires it decides whether to copy."""
        self.found: Copied | NoCopy = NoCopy("it was interrupted")

    def begin(self) -> None:
        """Copies in a thread, or in the caller if no thread can be started."""
        try:
            self.start()
        except RuntimeError:  # at a limit of threads or of memory
            self.run()
        except BaseException:  # a signal's handler raises while the thread starts
            self._first.acquire(blocking=False)
            raise

    def run(self) -> None:
        """See Thread."""
        if self._first.acquire(blocking=False):
            self.found = self._make()

    def await_end(self) -> None:
        """Waits until nothing is copied any more. A forked process does not wait for its parent's."""
        if self.ident is not None:
            self.join()


class Deferral(Generic[Copied]):
    """For one process. Called in the main thread, but for `steps`."""

    def __init__(self, registry: Registry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self.refused = False
        """Whether training waits for all further copies of this process."""
        self._hook: Any = None
        self._copy: _Copy[Copied] | None = None
        self._pays_at = 0.0
        """When the copy will have overlapped with training for as long as training waited for its checksum."""
        self._plain = 0
        """How many further copies training waits for."""
        self._paused = 0
        """How many copies were to wait when the last copy during training did not pay; 0 if it did."""
        self._paid = True

    @property
    def copies(self) -> bool:
        """Whether a copy was begun whose outcome was not taken yet."""
        return self._copy is not None

    def copy(self, staged: Staged, fill: Fill[Copied], *, trains: bool) -> Copied | NoCopy | CopyBegun:
        """Copies, or begins to. `trains`: the script is about to train a batch, and does nothing else first."""
        live, parted, begun = staged.pieces, None, self._clock()
        if trains and not self.refused and not self._plain and isinstance(live, LiveBytes):
            with suppress(MemoryError):
                parted = defer(live, self._registry.stepped(), self._registry.frozen(), MOST_AT_ONCE_BYTES)
        if parted is None:
            self._plain = max(self._plain - 1, 0)
            part = fill(staged)
            return NoCopy(part) if isinstance(part, str) else part
        if self._hook is None:
            self._hook = _placed_first(register_optimizer_step_pre_hook(_hook(weakref.ref(self))))
        now = self._clock()
        self._pays_at = 2 * now - begun if staged.size >= LARGE_BYTES else now
        self._copy = _Copy(partial(_copied, staged, parted, fill))
        self._copy.begin()
        return CopyBegun(staged.size, parted.checksum)

    def steps(self, *, closure: bool) -> None:
        """An optimizer is about to step: waits for the copy. From any thread. `closure`: forward and backward are yet
        to come in this step, so that a copy during training gains nothing."""
        if self._copy:
            self.settle()
            self.refused = self.refused or closure

    def settle(self) -> None:
        """The session acts, or the script might: waits until nothing is copied any more."""
        if copy := self._copy:
            if copy.is_alive() and self._clock() < self._pays_at:
                self._paid = False
            copy.await_end()

    def refuse(self) -> None:
        """From now on training waits for the copies of this process: another rank has seen a change."""
        self.settle()
        self.refused = True

    def found(self) -> Copied | NoCopy:
        """The outcome of the copy, which this waits for."""
        self.settle()
        if self._copy is None:
            return NoCopy("nothing was copied")
        found, self._copy = self._copy.found, None
        self._paused = 0 if self._paid else min(2 * self._paused + 1, MOST_PLAIN_COPIES)
        self._plain, self._paid = self._paused, True
        if isinstance(found, NoCopy) and found.changed:
            self._refuse()
        return found

    def end(self) -> None:
        """Stop copying, and remove the hook."""
        self.settle()
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._copy = None

    def _refuse(self) -> None:
        self.refused = True
        say(
            "parameters or optimizer state change, or get other memory, where no optimizer is seen to step: training "
            "waits for the copies of its checkpoints"
        )


def _copied(staged: Staged, parted: Deferred, fill: Fill[Copied]) -> Copied | NoCopy:
    try:
        part = fill(replace(staged, pieces=lambda: parted.views), whole=parted.checksum)
    except StateChanged as error:
        return NoCopy(str(error), changed=True)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the machine waits for an answer
        return NoCopy(f"it could not be copied: {in_words(error)}")
    return NoCopy(part) if isinstance(part, str) else part


def _placed_first(hook: Any) -> Any:
    """Other hooks see the step begin only after this one has waited: until then an image of the state is possible."""
    with suppress(AttributeError):  # of torch's own: what another version keeps in another way stays last
        hook.hooks_dict_ref().move_to_end(hook.id, last=False)
    return hook


def _hook(mine: weakref.ref[Deferral[Any]]) -> Callable[..., None]:
    """Before each optimizer's step. Traced by a compiler it is nothing at all."""

    def before(_: Any, given: Sequence[Any], named: dict[str, Any]) -> None:
        if not torch.compiler.is_compiling() and (one := mine()):
            one.steps(closure=callable((*given[1:], named.get("closure"))[0]))

    return before
