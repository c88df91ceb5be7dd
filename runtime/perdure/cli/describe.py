"""`perdure describe`: runs a training command up to its first batch, and reads its session's description.

No torch here; the session's part is perdure.session.preview.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perdure.agent.environ import OF_A_RUN
from perdure.errors import PerdureError, UserError
from perdure.wire import Env
from perdure.wire.names import PREVIEW_JSON, PREVIEW_TEXT

_OF_A_TRAINER: Final = OF_A_RUN | {
    Env.REPORT_FD,
    Env.REQUEST_FILE,
    Env.HANDOVER_FILE,
    Env.STARTED,
    Env.EXIT_AT_STEP,
}
"""Variables that would make the command a part of a current run."""


@dataclass(frozen=True)
class Described:
    """A session's description."""

    text: str
    json: str
    wrong: bool
    """Whether it found a certain error."""


def described(command: Sequence[str], environ: Mapping[str, str]) -> Described:
    """The description by the session of `command`, whose output goes to stderr.

    Raises UserError if there is no such command, and PerdureError if it ends without a description.
    """
    own = {name: value for name, value in environ.items() if name not in _OF_A_TRAINER}
    with tempfile.TemporaryDirectory(prefix="perdure-") as folder:
        try:
            environment = {**own, Env.PREVIEW: folder}
            status = subprocess.run(command, env=environment, stdout=sys.stderr.fileno(), check=False).returncode
        except OSError as error:
            raise UserError(f"{command[0]} cannot be started: {error.strerror}: correct the command") from None
        files = Path(folder, PREVIEW_TEXT), Path(folder, PREVIEW_JSON)
        if not all(file.exists() for file in files):
            raise PerdureError(
                f"{' '.join(command)} has ended with status {status} before its first batch, and no session has said "
                f"what it would do: its output is above"
            )
        text, found = (file.read_text() for file in files)
        return Described(text, found, any(finding["certain"] for finding in json.loads(found)["findings"]))
