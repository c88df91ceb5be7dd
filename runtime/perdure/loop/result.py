"""`session.result`: what the training has come to, in a few figures, for whoever reads the job's status.

It is a part of the state of training: saved with it, and there again in the run that goes on. Rank 0's counts, which
all ranks pass on at the run's end: whichever pod is asked says the same. Owned by the session's Run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from perdure.errors import UserError
from perdure.wire import ContractError, write_result


class Result:
    """One rank's."""

    def __init__(self) -> None:
        self._text = "null"

    @property
    def value(self) -> dict[str, Any] | None:
        """A copy of what was set last; None before."""
        value: dict[str, Any] | None = json.loads(self._text)
        return value

    def set(self, value: Mapping[str, Any] | None) -> None:
        """UserError, with the place and the remedy, for what is no result; what was set before stays then."""
        try:
            self._text = "null" if value is None else write_result(value)
        except ContractError as error:
            raise UserError(f"session.result: {error}") from None

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds: nothing where nothing is set."""
        return {} if self.value is None else {"result": self.value}

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        """A resumed run has what was saved."""
        self.set(saved.get("result"))
