"""`perdure describe`: runs a training command up to its first batch, and reads what its session has said of itself.

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
"""What would make the command a part of a run that goes on around this process."""


@dataclass(frozen=True)
class Described:
    """What a session would do."""

    text: str
    json: str
    wrong: bool
    """Whether something is certainly wrong."""


def described(command: Sequence[str], environ: Mapping[str, str]) -> Described:
    """What the session of `command` would do. What the command prints goes to stderr.

    UserError if there is no such command; PerdureError if it ends before its session has said anything.
    """
    own = {name: value for name, value in environ.items() if name not in _OF_A_TRAINER}
    with tempfile.TemporaryDirectory(prefix="perdure-") as folder:
        try:
            told = {**own, Env.PREVIEW: folder}
            status = subprocess.run(command, env=told, stdout=sys.stderr.fileno(), check=False).returncode
        except OSError as error:
            raise UserError(f"{command[0]} cannot be started: {error.strerror}: correct the command") from None
        files = Path(folder, PREVIEW_TEXT), Path(folder, PREVIEW_JSON)
        if not all(file.exists() for file in files):
            raise PerdureError(
                f"{' '.join(command)} has ended with status {status} before its first batch, and no session has said "
                f"what it would do: its own words are above"
            )
        text, found = (file.read_text() for file in files)
        return Described(text, found, any(finding["certain"] for finding in json.loads(found)["findings"]))
