"""Looks at the first two steps of a process, and says what they train that no checkpoint holds.

What an optimizer has stepped on in both is trained, and whoever made the optimizer keeps it: one that lives for a
single step, an inner loop's say, is not meant to be saved. After that nobody looks any more. Owned by `Session`.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

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
            return False
        self.end()
        for finding in findings(registered, [], list(self._always)):
            if finding.name in CERTAIN:
                warn(finding.text)
        return True

    def end(self) -> None:
        """No optimizer is watched any more."""
        self._hook.remove()
