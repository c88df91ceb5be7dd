"""`make check`: all checks at once, each one's output in one piece. `make quick`: the nearest tests beside them.

Run as `python -m tests.support.checks [--nearest | --tests-of FILE]`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import IO

from tests.support.nearest import nearest

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
TOOLS = Path(PYTHON).parent
CHECKS: Mapping[str, Sequence[str | Path]] = {
    "types": [TOOLS / "mypy"],
    "format": [TOOLS / "ruff", "format", "--check", "."],
    "lint": [TOOLS / "ruff", "check", "."],
    "layers": [TOOLS / "lint-imports"],
    "docs": [TOOLS / "mkdocs", "build"],
    "CRD": [PYTHON, "-m", "perdure_operator.schema.crd", "--check"],
    "reference": [PYTHON, "-m", "perdure_operator.schema.reference_page", "--check"],
    "signals": [PYTHON, "-m", "perdure_operator.schema.signals_page", "--check"],
    "dashboards": [PYTHON, "-m", "helm.dashboards", "--check"],
    "pictures": [PYTHON, "-m", "tests.unit.operator.cli.kubectl.pictures", "--check"],
    "names of tests": [PYTHON, "-m", "tests.support.names_of_tests"],
    "tests of older torches": [PYTHON, "-m", "tests.support.torch_versions", "--check"],
    "README": [PYTHON, "-m", "tests.support.readme_box"],
}
SECONDS = 90
"""After so long no further test begins: types take the rest of three minutes on a busy machine, or a long test does."""
MOST_FILES = 30
"""To read more of them takes longer than to run what could be run."""
PYTEST = [PYTHON, "-m", "pytest", "-q", "-n", "2", "-m", "not cluster and not api"]
BASE = "origin/main"


def together(commands: Mapping[str, Sequence[str | Path]], folder: Path, out: IO[str]) -> list[str]:
    """Runs all at once, in `folder`; prints what each has printed when it has ended, and returns which have failed."""
    begun = time.monotonic()
    failed = []

    def run(command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )

    with ThreadPoolExecutor(len(commands)) as threads:
        running = {threads.submit(run, command): name for name, command in commands.items()}
        for ended in as_completed(running):
            name, done = running[ended], ended.result()
            if done.returncode:
                failed.append(name)
            print(f"--- {name}, {time.monotonic() - begun:.0f} s{': FAILED' * (name in failed)}", file=out)
            print(done.stdout, end="", file=out, flush=True)
    return failed


def changed(folder: Path) -> list[str]:
    """Files that differ from where this branch left origin/main, committed or not; from HEAD where there is no such."""
    base = _git(folder, "merge-base", BASE, "HEAD") or ["HEAD"]
    differ = _git(folder, "diff", "--name-only", *base)
    return sorted({*differ, *_git(folder, "ls-files", "--others", "--exclude-standard")})


def _git(folder: Path, *words: str) -> list[str]:
    git = shutil.which("git") or "git"
    return subprocess.run([git, *words], cwd=folder, capture_output=True, text=True, check=False).stdout.splitlines()


def sources(folder: Path) -> dict[str, str]:
    """All Python files that git knows, or would."""
    known = _git(folder, "ls-files", "--cached", "--others", "--exclude-standard", "*.py")
    return {path: (folder / path).read_text() for path in known if (folder / path).exists()}


def nearest_to(file: str, sources: Mapping[str, str]) -> list[str]:
    """The test files nearest to a file, which is named by its path or by the end of it, nearest first.

    Raises:
        ValueError: none is named so, or several are.

    """
    named = [path for path in sources if f"/{path}".endswith(f"/{file}")]
    if len(named) != 1:
        raise ValueError(f"{file}: {', '.join(named) if named else 'no such Python file'}")
    return nearest(named, sources)[:MOST_FILES]


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--nearest", action="store_true", help="run the tests nearest to what has changed, too")
    ways.add_argument("--tests-of", metavar="FILE", help="only print the test files nearest to this one")
    options = parser.parse_args()
    if options.tests_of:
        try:
            print(*nearest_to(options.tests_of, sources(REPOSITORY)), sep="\n")
        except ValueError as error:
            parser.error(str(error))
        return 0
    commands = dict(CHECKS)
    if options.nearest:
        found = nearest(changed(REPOSITORY), sources(REPOSITORY))
        left = f", the nearest {MOST_FILES}" if len(found) > MOST_FILES else ""
        print(f"{len(found)} test files are near to what has changed{left}:", *found[:MOST_FILES], sep="\n  ")
        if found:
            plugin = ["-p", "tests.support.deadline", f"--no-test-after={SECONDS}"]
            commands["tests"] = [*PYTEST, *plugin, *found[:MOST_FILES]]
    failed = together(commands, REPOSITORY, sys.stdout)
    print(f"FAILED: {', '.join(failed)}" if failed else f"all is well: {', '.join(commands)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
