"""Looks at the first two steps of a process, and says what they train that no checkpoint holds.

What an optimizer has stepped on in both is trained, and whoever made the optimizer keeps it: one that lives for a
single step, an inner loop's say, is not meant to be saved. What else the second step has changed is looked for, too.
After that nobody looks any more. Owned by `Session`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Final

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from perdure.session.description import Finding
from perdure.session.forgotten import Changes
from perdure.session.validating import findings
from perdure.telemetry.lines import warn

STEPS: Final = 2
CERTAIN: Final = frozenset({"unregistered-parameters", "unregistered-optimizer"})
"""What an optimizer's steps prove."""


class FirstSteps:
    """The optimizers that have taken a step in each of the session's first ones."""

    def __init__(self) -> None:
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """Since the session's last step."""
        self._always: weakref.WeakSet[Optimizer] | None = None
        self._steps = 0
        self._changes: Changes | None = None
        """What no registered object holds, as it was after the step before the last one to look at."""
        own = weakref.ref(self)

        def note(optimizer: Optimizer, _arguments: Any, _named: Any) -> None:
            if (found := own()) is not None:
                found._stepped.add(optimizer)  # noqa: SLF001 - of this class

        self._hook = register_optimizer_step_post_hook(note)

    def stepped(self, registered: dict[str, Any]) -> bool:
        """The session's step is done; whether that was the last one to look at."""
        self._steps += 1
        before, self._stepped = self._stepped, weakref.WeakSet()
        self._always = before if self._always is None else weakref.WeakSet(set(self._always) & set(before))
        if self._steps < STEPS:
            self._changes = Changes(registered)
            return False
        self.end()
        for finding in self._found(registered, list(self._always)):
            warn(finding.text)
        self._changes = None
        return True

    def _found(self, registered: dict[str, Any], always: list[Optimizer]) -> Iterator[Finding]:
        """What is wrong for certain, and what seems to be forgotten."""
        yield from (finding for finding in findings(registered, [], always) if finding.name in CERTAIN)
        if self._changes:
            trained = [parameter for one in always for group in one.param_groups for parameter in group["params"]]
            yield from self._changes.findings(registered, trained)

    def end(self) -> None:
        """No optimizer is watched any more."""
        self._hook.remove()
