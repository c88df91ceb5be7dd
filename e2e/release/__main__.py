"""`python -m e2e.release x.y.z`: what `make release` calls."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from e2e.prepare import PrepareError, Progress, tool_folders
from e2e.prepare.basics import REPOSITORY
from e2e.prepare.envs import prepared_uv
from e2e.release import building, contents, installing
from e2e.release.building import Builders, Built
from e2e.release.changelog import version_problems

INTO: Final = REPOSITORY / "build" / "release"
BESIDE: Final = ("crds/perdure.dev_trainingjobs.yaml", "CHANGELOG.md")
"""Released as they are."""


def release(version: str, progress: Progress) -> None:
    """Make everything in build/release, which is not there unless all checks pass."""
    tools = Builders(prepared_uv(progress), tool_folders()["helm"] / "helm")
    shutil.rmtree(INTO, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "source"
        time = building.export(REPOSITORY, source)
        refuse(version_problems(source, version))
        built = building.build(source, time, folder / "built", tools, progress)
        check(built, version, tools, progress)
        elsewhere = source.rename(folder / "elsewhere")
        check_again(elsewhere, time, built, tools, progress)
        for trial in installing.TRIALS:
            brought = installing.install_and_run(built.wheel, trial, tools.uv, progress)
            refuse(installing.foreign(trial, brought))
        INTO.mkdir(parents=True)
        for file in (built.wheel, built.sdist, built.chart, *(elsewhere / name for name in BESIDE)):
            shutil.copyfile(file, INTO / file.name)
        building.write_checksums(INTO)


def check(built: Built, version: str, tools: Builders, progress: Progress) -> None:
    """Look into each of the three."""
    local = (str(REPOSITORY), str(Path.home()) + "/")
    wheel = contents.entries(built.wheel)
    refuse(contents.problems(wheel, contents.rules_of_wheel(version), local))
    refuse(contents.wheel_problems(wheel, version))
    refuse(contents.problems(contents.entries(built.sdist), contents.rules_of_sdist(version), local))
    refuse(contents.problems(contents.entries(built.chart), contents.rules_of_chart(), local))
    building.lint(built.chart, tools, progress)


def check_again(source: Path, time: int, built: Built, tools: Builders, progress: Progress) -> None:
    """Build all again in another folder, and the wheel of the sdist: the bytes are the same."""
    with tempfile.TemporaryDirectory() as folder:
        again = building.build(source, time, Path(folder, "again"), tools, progress)
        of_sdist = building.build_wheel(built.sdist, time, Path(folder, "sdist"), tools, progress)
        refuse(f"{name} has other bytes the second time" for name in building.differences(built, again))
        if of_sdist.read_bytes() != built.wheel.read_bytes():
            refuse([f"{built.sdist.name} does not build the bytes of {built.wheel.name}"])


def refuse(problems: Iterable[str]) -> None:
    """Stop if there are any."""
    lines = list(problems)
    if lines:
        raise PrepareError("not released:\n  " + "\n  ".join(lines))


def main() -> int:
    """The exit status."""
    progress = Progress()
    version = sys.argv[1] if len(sys.argv) == 2 else ""
    try:
        release(version, progress)
    except PrepareError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for file in sorted(INTO.iterdir()):
        print(f"{file.stat().st_size / 1024:8.0f} KiB  {file.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
