"""Copies a part while training goes on: parameters and optimizer state stay as they are until an optimizer steps.

A thread copies; whatever could change them waits for it: each optimizer's step, by torch's hook, and every place where
the session acts. That is earned: the first saves are copied while training waits, and show whether anything changes
before an optimizer's hook is called. Whatever torch does not tell is looked for in every copy by some elements: a
change, as by a perturbation, a clamp or a compiled step, fails that save before it is sealed, and from then on training
waits for its copies.

A save on probation compares every byte. Later ones compare what torch counts, and one element in 4 KiB: a write that
torch does not count, to less than that, by a script that did nothing like it before, may be missed.
Called by perdure.loop.save_effects.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import torch
from awscrt.checksums import crc64nvme
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from perdure.checkpoint import tensors
from perdure.checkpoint.background.arena import Filled
from perdure.checkpoint.background.proof import Proof
from perdure.checkpoint.deferred import Deferred, defer
from perdure.checkpoint.stage import LiveBytes
from perdure.checkpoint.upload import BLOCK_BYTES, Staged
from perdure.console import say
from perdure.errors import Corrupt, in_words
from perdure.state.registry import Registry
from perdure.state.write_detection import Fingerprints

MOST_AT_ONCE_BYTES: Final = 64 * 2**20
"""What forward may change is copied twice, so a copy waits for nobody only if there is no more of it."""


class StateChanged(Corrupt):
    """What was copied has changed meanwhile."""


@dataclass(frozen=True)
class CopyMade:
    """What a rank saves is in its arena, sealed."""

    part: Filled
    sums: Sequence[int]
    """The checksums of the tensors that were to be summed up."""


@dataclass(frozen=True)
class NoCopy:
    """The arena holds nothing."""

    why: str
    changed: bool = False
    """Whether the state has changed meanwhile; nothing else is wrong."""


class Fill(Protocol):
    """Copies and seals a part, or says why that is impossible. `check` raises if it may not be sealed."""

    def __call__(self, staged: Staged, *, check: Callable[[], None] = ...) -> Filled | str: ...


class Deferral:
    """For one process. Called in the main thread, but for `steps`."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.proof = Proof()
        self._hook: Any = None
        self._eye = Fingerprints()
        self._thread: threading.Thread | None = None
        self._found: CopyMade | NoCopy = NoCopy("nothing was copied")
        self._probation: tuple[Deferred, int] | None = None
        """What the last save has copied while training waited, and its checksum."""
        self._lock = threading.Lock()
        """Held while a probation ends: an optimizer may step in another thread."""

    @property
    def copies(self) -> bool:
        """Whether a copy was begun whose outcome nobody has taken."""
        return self._thread is not None

    def copy(self, staged: Staged, beside: Sequence[Tensor], fill: Fill, *, trains: bool) -> CopyMade | NoCopy | None:
        """Copies, or begins to: None. `trains`: the script is about to train a batch, and does nothing else first.
        `beside`: tensors that are summed up as they are now."""
        live = staged.pieces
        if not trains or self.proof.refused or not isinstance(live, LiveBytes):
            return _copied_now(staged, beside, fill)
        parted = defer(live, beside, self._registry.stepped(), MOST_AT_ONCE_BYTES)
        if parted is None:
            return _copied_now(staged, beside, fill)
        if self._hook is None:
            self._hook = register_optimizer_step_pre_hook(_hook(weakref.ref(self)))
        if not self.proof.holds:
            self._probation = parted, _sum_of(parted.later)
            return _copied_now(staged, beside, fill)
        self._begin(staged, parted, fill)
        return None

    def _begin(self, staged: Staged, parted: Deferred, fill: Fill) -> None:
        watched = _WatchedBytes(parted, self._eye)

        def act() -> None:
            try:
                sums = watched.sums()
                part = fill(replace(staged, pieces=watched), check=watched.check)
                self._found = NoCopy(part) if isinstance(part, str) else CopyMade(part, sums)
            except StateChanged as error:
                self._refuse()
                self._found = NoCopy(str(error), changed=True)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the machine waits for an answer
                self._found = NoCopy(f"it could not be copied: {in_words(error)}")

        self._found = NoCopy("the thread that copies has ended")
        thread = threading.Thread(target=act, name="perdure-copy", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # at a limit of threads or of memory
            act()
        self._thread = thread

    def steps(self) -> None:
        """An optimizer is about to step: waits for the copy. From any thread."""
        if self._thread or self._probation:
            self.wait()
            self._end_probation(steps=True)

    def wait(self) -> None:
        """Waits until nothing is copied any more."""
        thread = self._thread
        if thread is not None and thread.ident is not None:
            thread.join()

    def settle(self) -> None:
        """The session acts, or the script might: nothing is copied any more, and nothing is on probation."""
        if self._thread or self._probation:
            self.wait()
            self._end_probation(steps=False)

    def refuse(self) -> None:
        """From now on training waits for the copies of this process: another rank has seen a change."""
        self.settle()
        self.proof = self.proof.changed()

    def found(self) -> CopyMade | NoCopy:
        """The outcome of the copy, which this waits for."""
        self.settle()
        self._thread, found = None, self._found
        return found

    def forget(self) -> None:
        """What was shown has to be shown again: there are other tensors."""
        self.settle()
        self.proof = self.proof.again()

    def end(self) -> None:
        """Nothing of it stays behind."""
        self.wait()
        self._probation = None
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._thread = None
        self._eye.forget()

    def _end_probation(self, *, steps: bool) -> None:
        with self._lock:
            probation, self._probation = self._probation, None
            if probation is None:
                return
            parted, before = probation
            same = _sum_of(parted.later) == before
            if not same:
                self._refuse()
            elif steps:
                self.proof = self.proof.before_step(same=True)

    def _refuse(self) -> None:
        if self.proof.refused:
            return
        self.proof = self.proof.changed()
        say(
            "parameters or optimizer state change where no optimizer is seen to step: training waits for the copies of "
            "its checkpoints"
        )


class _WatchedBytes:
    """The bytes of a part, looked at while they are copied. Raises StateChanged once they are seen to have changed."""

    def __init__(self, parted: Deferred, eye: Fingerprints) -> None:
        self._parted, self._eye = parted, eye
        self._before, self._few = parted.glance(), eye.look(parted.waiting)
        self._read = 0
        """Bytes since it was looked last."""

    def __call__(self) -> Iterator[memoryview]:
        return self._watch(self._parted.views)

    def sums(self) -> list[int]:
        """The checksums of what is only summed up."""
        return [one if isinstance(one, int) else _sum_of(self._watch([one])) for one in self._parted.summed]

    def _watch(self, views: Iterable[memoryview]) -> Iterator[memoryview]:
        for view in views:
            for at in range(0, len(view), BLOCK_BYTES):
                yield view[at : at + BLOCK_BYTES]
                self._read += min(len(view) - at, BLOCK_BYTES)
                if self._read >= BLOCK_BYTES:  # read by now, but for what makes no whole block yet
                    self._read = 0
                    _check(same=self._eye.look(self._parted.waiting) == self._few)

    def check(self) -> None:
        """Everything is copied."""
        _check(same=self._parted.glance() == self._before)


def _check(*, same: bool) -> None:
    if not same:
        raise StateChanged("parameters or optimizer state have changed while they were copied")


def _copied_now(staged: Staged, beside: Sequence[Tensor], fill: Fill) -> CopyMade | NoCopy:
    part = fill(staged)
    return NoCopy(part) if isinstance(part, str) else CopyMade(part, list(map(tensors.checksum, beside)))


def _sum_of(views: Iterable[memoryview]) -> int:
    total = 0
    for view in views:
        total = crc64nvme(view, total)
    return total


def _hook(mine: weakref.ref[Deferral]) -> Callable[..., None]:
    """Before each optimizer's step. Traced by a compiler it is nothing at all."""

    def before(*_: Any) -> None:
        if not torch.compiler.is_compiling() and (one := mine()):
            one.steps()

    return before
