"""`session.result`: what the training has achieved, in a few figures, for readers of the job's status.

It is part of the training state: saved with it, and restored. Rank 0's value counts. At the run's end all ranks report
it, so that all pods say the same. Owned by the session's Run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from perdure.errors import UserError
from perdure.wire import ContractError, write_result


class Result:
    """One rank's result."""

    def __init__(self) -> None:
        self._text = "null"

    @property
    def value(self) -> dict[str, Any] | None:
        """A copy of the value set last; None before."""
        value: dict[str, Any] | None = json.loads(self._text)
        return value

    def set(self, value: Mapping[str, Any] | None) -> None:
        """Sets the result. UserError, with the place and the remedy, if it is invalid; then the old one stays."""
        try:
            self._text = "null" if value is None else write_result(value)
        except ContractError as error:
            raise UserError(f"session.result: {error}") from None

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds: nothing if no result is set."""
        return {} if self.value is None else {"result": self.value}

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        """Restores the saved result."""
        self.set(saved.get("result"))
