"""Jobs of other systems, each beside the TrainingJob that `perdure convert --comments` makes of it.

They are written for these tests. The first line of each names the example of a project whose fields it has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
JOBS: Final = sorted(file.stem for file in FOLDER.glob("*.yaml") if not file.stem.endswith(".converted"))


def source(name: str) -> str:
    """The job of the other system."""
    return (FOLDER / f"{name}.yaml").read_text()


def converted(name: str) -> str:
    """The TrainingJob, with its remarks as comments."""
    return (FOLDER / f"{name}.converted.yaml").read_text()
