"""Watches the first two steps of a process, and reports what they train that no checkpoint holds.

A parameter that an optimizer has changed in both steps is trained, if the script keeps that optimizer. One that lives
for a single step, such as an inner loop's, need not be saved. After these steps optimizers are not watched any more.

This also looks for other things that steps change, at growing intervals: a target network is synchronized every
thousand steps, a schedule changes a number at an epoch's end. A look takes a tenth of a second. Owned by `Session`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from perdure.console import warn
from perdure.session.description import Finding
from perdure.session.forgotten import Changes, FirstWeights
from perdure.session.validating import findings

STEPS: Final = 2
FURTHER: Final = 4
"""Each further look comes after this many times as many steps."""
CERTAIN: Final = frozenset({"unregistered-parameters", "unregistered-optimizer"})
"""Findings that an optimizer's steps prove."""


class FirstSteps:
    """The optimizers that have stepped in each of the session's first steps."""

    def __init__(self, first_weights: Callable[[], FirstWeights]) -> None:
        """`first_weights` reads the present weights. It is called before the first step of an optimizer."""
        self._first_weights = first_weights
        self._began: FirstWeights | None = None
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """Optimizers that have stepped since the session's last step."""
        self._always: weakref.WeakSet[Optimizer] | None = None
        self._steps = 0
        self._next = STEPS
        self._first: Changes | None = None
        """Unregistered state after the first step."""
        self._newer: Changes | None = None
        """Unregistered state one step before the next look."""
        self._reported: set[str] = set()
        own = weakref.ref(self)

        def note(optimizer: Optimizer, _arguments: Any, _named: Any) -> None:
            if (found := own()) is not None:
                found._stepped.add(optimizer)  # noqa: SLF001 - of this class

        def begin(_optimizer: Optimizer, _arguments: Any, _named: Any) -> None:
            if (found := own()) is not None and found._began is None:  # noqa: SLF001 - of this class
                found._began = found._first_weights()  # noqa: SLF001

        self._hooks = register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(note)

    def stepped(self, registered: dict[str, Any], kept: Mapping[str, Any]) -> None:
        """The session's step is done."""
        self._steps += 1
        if self._steps <= STEPS:
            before, self._stepped = self._stepped, weakref.WeakSet()
            self._always = before if self._always is None else weakref.WeakSet(set(self._always) & set(before))
        if self._steps == self._next - 1:
            self._newer = Changes(registered, kept)
            self._first = self._first or self._newer
        elif self._steps == self._next:
            self.end()
            self._next *= FURTHER
            for finding in self._found(registered, kept, list(self._always or ())):
                if finding.text not in self._reported:
                    self._reported.add(finding.text)
                    warn(finding.text)
            self._newer = None

    def _found(self, registered: dict[str, Any], kept: Mapping[str, Any], always: list[Optimizer]) -> Iterator[Finding]:
        """Certain findings, and what seems to be forgotten."""
        yield from (finding for finding in findings(registered, [], always) if finding.name in CERTAIN)
        if self._first and self._newer:
            trained = [parameter for one in always for group in one.param_groups for parameter in group["params"]]
            began = self._began or FirstWeights({}, 0)  # no optimizer has stepped
            yield from self._first.findings(registered, kept, trained, self._newer, began)

    def end(self) -> None:
        """Stops watching optimizers."""
        for hook in self._hooks:
            hook.remove()
