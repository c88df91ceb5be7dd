"""`python3 -m e2e.prepare dev|cluster|all|scale|autoscaler|for-tests|torches|release`: what the Makefile calls."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
from collections.abc import Callable, Sequence

from e2e.prepare import apt, debian, envs, limits, tools, torches
from e2e.prepare.basics import PrepareError, Progress
from e2e.prepare.requirements import cannot_run, missing


def prepare_cluster(progress: Progress, modules: Sequence[tools.Module] = tools.MODULES) -> None:
    """Everything the local cluster needs; refuses with the whole list when this machine cannot have it."""
    lacks = missing(before_prepare=True)
    if lacks:
        raise PrepareError(cannot_run(lacks))
    apt.install(progress)
    limits.raise_limits(progress)
    tools.build(progress, modules)
    envs.build(progress)


def prepare_all(progress: Progress, modules: Sequence[tools.Module] = tools.MODULES) -> None:
    """The developer's environment always; the cluster where it can run, else a visible word why not."""
    envs.build_dev(progress)
    lacks = missing(before_prepare=True)
    if not lacks or os.environ.get("CI") == "true":
        prepare_cluster(progress, modules)
        return
    progress.say(f"NOT PREPARED: {cannot_run(lacks)}")
    if platform.system() == "Linux" and shutil.which("go"):
        tools.build(progress, tools.WITHOUT_ROOT)


def prepare_scale(progress: Progress) -> None:
    """What the scale bench needs beside an API server."""
    envs.build_dev(progress)
    tools.build(progress, (*tools.WITHOUT_ROOT, *tools.FOR_SCALE))


def prepare_autoscaler(progress: Progress) -> None:
    """All, and what the scenarios with an autoscaler need, in one build: they share what is compiled."""
    prepare_all(progress, (*tools.MODULES, *tools.FOR_AUTOSCALING))


def prepare_for_tests(progress: Progress) -> None:
    """All, and what tests alone need beside it: an autoscaler, and Prometheus."""
    prepare_autoscaler(progress)
    if shutil.which("apt-get") is None and os.environ.get("CI") != "true":
        progress.say("NOT PREPARED: Prometheus, as there is no apt-get: the tests with it are skipped")
    else:
        debian.unpack(debian.PROMETHEUS, progress)


def prepare_release(progress: Progress) -> None:
    """What a release is made with."""
    envs.build_dev(progress)
    tools.build(progress, tools.FOR_RELEASE)


STEPS: dict[str, Callable[[Progress], object]] = {
    "dev": envs.build_dev,
    "cluster": prepare_cluster,
    "all": prepare_all,
    "scale": prepare_scale,
    "autoscaler": prepare_autoscaler,
    "for-tests": prepare_for_tests,
    "torches": torches.build,
    "release": prepare_release,
}


def main() -> int:
    """Run one step; a user's problem is printed without a traceback."""
    parser = argparse.ArgumentParser(prog="python3 -m e2e.prepare", description=__doc__)
    parser.add_argument(
        "step",
        choices=STEPS,
        help="dev: .venv; cluster: tools and environments; all: both; scale: for make bench-scale; "
        "autoscaler: all, and for the scenarios with one; for-tests: that, and Prometheus; "
        "torches: environments with older versions of torch; release: .venv and helm",
    )
    step: str = parser.parse_args().step
    progress = Progress()
    try:
        STEPS[step](progress)
    except PrepareError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted: what is finished is kept, run it again to go on", file=sys.stderr)
        return 130
    progress.say(f"{step}: ready")
    return 0


if __name__ == "__main__":
    sys.exit(main())
