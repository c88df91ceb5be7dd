"""Draws the pictures of docs/what-you-see.md: what the commands print of jobs that the real operator has moved.

python -m tests.unit.operator.cli.kubectl.pictures --write    write the files
python -m tests.unit.operator.cli.kubectl.pictures --check    exit status 1 if one differs
"""

from __future__ import annotations

import argparse
import asyncio
import io
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from perdure_operator.api import names
from perdure_operator.api.model import Model
from perdure_operator.api.status import LastSave, TrainingPhase, TrainingProgress
from perdure_operator.cli.kubectl import reading, status_page, timeline, what_if
from perdure_operator.cli.kubectl.job import JobSeen, summary
from perdure_operator.cli.kubectl.page import Facts, Page, Table
from perdure_operator.cli.kubectl.screen import draw_part, parts_with_text
from perdure_operator.cli.kubectl.timeline_picture import picture
from perdure_operator.cluster.protocol import EVENTS, JOBS, Json
from perdure_operator.cluster.read import parse
from tests.support.raw import UID, job
from tests.support.stage import KEY, Stage
from tests.unit.operator.cli.kubectl.seen import eventful, moved, moving_again, seen

FOLDER: Final = Path(__file__).resolve().parents[5] / "docs" / "pictures"
_FORMAT: Final = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<style>.{unique_id}-matrix{{font:{char_height}px/{line_height}px monospace}}{styles}</style>
{chrome}
<g transform="translate({terminal_x},{terminal_y})">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""
"""As rich's own, without a font from a server, and without clips."""
_CLIP: Final = re.compile(r' clip-path="[^"]*"')
_RULES: Final = what_if.Rules("those of ConfigMap perdure-system/perdure-operator-signals", "0.1.0", "0.1.0")


def terminal(command: str, page: Page, columns: int = 100) -> str:
    """A terminal in which the command has printed this page, as an SVG document."""
    console = Console(record=True, width=columns, file=io.StringIO(), highlight=False, markup=False, emoji=False)
    console.print(Text(f"$ {command}", style="dim"))
    for number, part in enumerate(parts_with_text(page)):
        if number:
            console.print()
        draw_part(part, console)
    return _CLIP.sub("", console.export_svg(title="", code_format=_FORMAT, unique_id="terminal"))


def reporting(stage: Stage, name: str, step: int, **progress: Any) -> None:
    """Rank 0 of the job's run has reported this step."""
    now = stage.now
    raw = asyncio.run(stage.cluster.get(JOBS, "ns", name))
    heard = TrainingProgress(
        run=raw["status"]["run"],
        step=step,
        step_time=now,
        began_time=now - timedelta(minutes=9),
        phase=TrainingPhase.TRAINING,
        phase_time=now - timedelta(minutes=9),
        seconds_per_step=0.4,
        observed_at=now,
        live=True,
        required_grace_seconds=9,
        death_costs="no finished step",
        **progress,
    )
    save = LastSave(step=step // 50 * 50, time=now - timedelta(seconds=41), observed_at=now)
    shown = {"progress": _plain(heard), "lastSave": _plain(save)}
    stage.cluster.change(JOBS, "ns", name, lambda job: job["status"].update(shown))
    stage.queue.add(("ns", name))
    stage.settle()


def _plain(value: Model) -> Json:
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


def several() -> list[JobSeen]:
    """Three jobs, of which one trains, one moves, and one finds no room."""
    stage = Stage()
    for number in range(1, 7):
        stage.node(f"n{number}")
    stage.apply(job("digits", disruption={"replacementTimeoutSeconds": 30}))
    stage.apply(job("llama", disruption={"replacementTimeoutSeconds": 120}))
    stage.start()
    stage.wait(2)
    stage.run_pods(["n1", "n2", "n3", "n4"])
    stage.wait(2)
    stage.apply(job("resnet"))
    stage.settle()
    stage.wait(300)
    stage.cordon("n4")
    stage.settle()
    stage.wait(1.2)
    reporting(stage, "digits", 1204)
    reporting(stage, "llama", 81_377)
    pods = tuple(parse.pod(one) for one in stage.pods())
    jobs = [JobSeen(reading.job_of(raw), pods, stage.now) for raw in asyncio.run(stage.cluster.list(JOBS, "ns"))]
    return sorted(jobs, key=lambda one: one.record.key)


def _status_of_all() -> str:
    jobs = several()
    page = status_page.table_of_jobs([summary(one) for one in jobs], jobs[0].now, namespaces=False)
    return terminal("kubectl perdure status", _named(page, *jobs), columns=130)


def _status_of_one() -> str:
    stage = moving_again()
    reporting(stage, "digits", 8712, values={"loss": 0.25})
    told = seen(stage)
    page = status_page.page_of_job(status_page.job_page(told), told.now)
    return terminal("kubectl perdure status digits", _named(page, told))


def _what_if_drained() -> str:
    stage = moved()
    reporting(stage, "digits", 8712)
    snapshot = asyncio.run(stage.observer.observe(KEY))
    assert snapshot is not None
    drain = what_if.what_if([what_if.DrainSeen(snapshot, (4.2, 5.0))], ["n3"], stage.now, _RULES)
    return terminal("kubectl perdure what-if drain n3", _named(what_if.page(drain), seen(stage)))


def _timeline() -> str:
    stage = eventful()
    told = seen(stage)
    found = timeline.timeline(told, asyncio.run(stage.cluster.list(EVENTS, "ns")))
    return _renamed(picture(found, told.now), [told])


def _named(page: Page, *jobs: JobSeen) -> Page:
    """With the same names each time: a pod's name has a part of the job's uid."""
    return tuple(_part_named(part, jobs) for part in page)


def _part_named(part: Table | Facts | str, jobs: Sequence[JobSeen]) -> Table | Facts | str:
    match part:
        case Table():
            return replace(part, rows=tuple(tuple(_renamed(cell, jobs) for cell in row) for row in part.rows))
        case Facts():
            return Facts(tuple((label, _renamed(text, jobs)) for label, text in part.facts))
        case str():
            return _renamed(part, jobs)


def _renamed(text: str, jobs: Sequence[JobSeen]) -> str:
    for one in jobs:
        name = one.record.key[1]
        text = text.replace(names.base(name, one.record.uid), names.base(name, UID))
    return text


PICTURES: Final[Mapping[str, Callable[[], str]]] = {
    "status-of-all.svg": _status_of_all,
    "status-of-one.svg": _status_of_one,
    "timeline.svg": _timeline,
    "what-if.svg": _what_if_drained,
}


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument("--write", action="store_true", help="write the files")
    ways.add_argument("--check", action="store_true", help="fail if a file is not what this draws")
    options = parser.parse_args()
    stale = {name: text for name, draw in PICTURES.items() if (text := draw()) != _written(FOLDER / name)}
    if options.write:
        FOLDER.mkdir(exist_ok=True)
        for name, text in stale.items():
            (FOLDER / name).write_text(text, encoding="utf-8")
        return 0
    for name in stale:
        print(f"docs/pictures/{name} is not what the command prints: run `make generate`", file=sys.stderr)
    return 1 if stale else 0


def _written(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
