"""Where pods report to: the Service's URL, and the certificates of a mounted Secret, by which they check it.

Used by `loop.operator`, unless the operator keeps its own certificates (`loop.keys`).
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from perdure.errors import UserError
from perdure.wire.reading import ContractError
from perdure.wire.report import Channel, write_channel
from perdure_operator.serving.pacing import OnceAMinute

CA_FILE: Final = "ca.crt"

logger = logging.getLogger(__name__)


class Channels:
    """The channel by the newest certificates of a folder that the kubelet keeps up to date."""

    def __init__(self, url: str, folder: Path) -> None:
        """Raises UserError if there is no channel to give."""
        self._url = url
        self._file = folder / CA_FILE
        self._complaints = OnceAMinute()
        try:
            self._text = self._read()
        except (OSError, ValueError, ContractError) as error:
            raise UserError(f"members cannot learn where to report: {self._file}: {error}") from None

    def current(self) -> str:
        """The text of a pod's annotation. A file that cannot be used changes nothing, and is a line in the log."""
        try:
            self._text = self._read()
        except (OSError, ValueError, ContractError) as error:
            if self._complaints.due():
                words = "%s cannot be used, so members check the operator by the certificates before: %s"
                logger.warning(words, self._file, error)
        return self._text

    def _read(self) -> str:
        return write_channel(Channel(self._url, self._file.read_text()))
