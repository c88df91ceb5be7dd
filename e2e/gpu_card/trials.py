"""The trials of the card: each trains the same script and returns rows of the page, or says why it cannot.

A trial that fails is a row with the words of the failure: the page shows what is, also where nobody has looked yet.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.harness import evidence
from e2e.harness.local_members import LocalMembers
from perdure.testing import processes
from perdure.wire import Env, ExitKind, Leave

SCRIPT: Final = ("-m", "e2e.gpu_card.training")
REPOSITORY: Final = Path(__file__).parents[2]
MANY: Final = 100_000
"""Steps of a training that ends when it is asked to."""
SECONDS: Final = 60
BEGUN: Final = 10
"""Steps before members change."""


@dataclass(frozen=True)
class Row:
    """One line of the page."""

    trial: str
    found: str
    command: str


@dataclass(frozen=True)
class Card:
    """How large the trials are, and where they leave their files."""

    device: str
    folder: Path
    mib: int
    moves: int
    steps: int
    pace: float

    def script(self, *, mib: int = 0, steps: int = 0, pace: float = 0.0) -> tuple[str, ...]:
        """The arguments of Python."""
        sizes = (f"--mib={mib}", f"--steps={steps or self.steps}", f"--pace={pace}")
        return (*SCRIPT, f"--device={self.device}", *sizes)

    @property
    def environ(self) -> dict[str, str]:
        """What lets several ranks share one device, and change there."""
        shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        return {"PYTHONPATH": str(REPOSITORY), Env.LIVE: "yes", **(shared if self.device == "cuda" else {})}


def resumes(card: Card) -> str:
    """An interrupted training beside one that is not."""
    whole = processes(1, *card.script(), root=card.folder / "whole", environ=card.environ)
    for at in (card.steps // 2, None):
        parted = processes(1, *card.script(), root=card.folder / "parted", exit_at=at, environ=card.environ)
    one, other = (dict(ended.result or {})["digest"] for ended in (whole, parted))
    return f"{'equal' if one == other else 'OTHER'} weights after {whole.step} steps: {one[:16]}, {other[:16]}"


def stalls(card: Card) -> str:
    """The slowest step beside saves, and the median step."""
    every = {Env.EVERY_STEPS: str(max(2, card.steps // 3)), Env.KEEP: "1"}
    ended = processes(
        1,
        *card.script(mib=card.mib),
        root=card.folder / "stall",
        environ={**card.environ, **every},
        timeout_seconds=240,
    )
    found = dict(ended.result or {})
    slower = found["slowest_ms"] - found["step_ms"]
    return (
        f"{card.mib} MiB: the slowest step takes {slower:.0f} ms more than the median one of {found['step_ms']:.1f} ms"
    )


def changes(old: Sequence[str], new: Sequence[str]) -> Callable[[Card], str]:
    """Members change while a training goes on."""

    def trial(card: Card) -> str:
        with _job(card, f"{len(old)}-{len(new)}") as job:
            job.first_run(*old, beside=[name for name in new if name not in old])
            job.trains(1, BEGUN)
            job.moves(old, new, run=1)
            return _told(job, new)

    return trial


def changes_often(card: Card) -> str:
    """One member is replaced again and again; the first one stays."""
    with _job(card, "often", steps=MANY) as job:
        job.first_run("a", "b0")
        for number in range(card.moves):
            old, new = f"b{number}", f"b{number + 1}"
            member = job.standby(new)
            job.waits(f"{new} is warm", lambda member=member: member.warm)  # type: ignore[misc]
            job.trains(number + 1, 2)
            job.moves(("a", old), ("a", new), run=number + 1)
            job.trains(number + 2, 1)
        for name in ("a", f"b{card.moves}"):
            job.members[name].assign(Leave(card.moves + 2, "the trial is over", SECONDS))
        ended = job.members["a"].outcome()
    moved = sum(evidence.took_over(job.root.entries(), run) for run in range(2, card.moves + 2))
    memory = dict(ended.result or {}).get("device_mib", 0.0)
    return f"{moved} of {card.moves} moves were live, and the device holds {memory:.0f} MiB of tensors afterwards"


def dies(card: Card) -> str:
    """A member is killed, and the next run resumes."""
    with _job(card, "killed") as job:
        job.first_run("a", "b", beside=["c"])
        job.trains(1, BEGUN)
        job.kill("b")
        job.members["b"].process.wait()
        first = job.members["a"]
        job.begins(2, ("a", "c"), lost=(1,))
        ended = [job.members[name].outcome() for name in ("a", "c")]
        steps = job.root.trace().steps
    before = max(step.step for step in steps if step.run == 1)
    after = min((step.step for step in steps if step.run == 2), default=0)
    done = all(one.outcome is ExitKind.COMPLETED for one in ended)
    lost = max(0, before + 1 - after) if after else before  # a killed rank has not traced its last step
    return f"{'completed' if done else 'FAILED: ' + first.said[-300:]}; {lost} steps are trained again"


TRIALS: Final[Mapping[str, Callable[[Card], str]]] = {
    "a resume": resumes,
    "a save": stalls,
    "live, 2 to 2": changes("ab", "ac"),
    "live, 2 to 3": changes("ab", "abc"),
    "live, 3 to 2": changes("abc", "ab"),
    "live, again and again": changes_often,
    "kill -9": dies,
}


def tried(card: Card, say: Callable[[str], None], names: Iterable[str] = TRIALS) -> list[Row]:
    """These, one after another."""
    command = " ".join(("python", *card.script()))
    rows = []
    for name in names:
        say(name)
        try:
            found = TRIALS[name](card)
        except Exception as error:  # noqa: BLE001 - a page with what has failed is what was asked for
            found = f"FAILED: {type(error).__name__}: {str(error).strip()[-500:]}"
        rows.append(Row(name, found, command))
    return rows


@contextmanager
def _job(card: Card, name: str, *, steps: int = 0) -> Iterator[LocalMembers]:
    argv = [sys.executable, *card.script(pace=card.pace, steps=steps)]
    with LocalMembers(argv, card.folder / name, card.environ) as job:
        yield job


def _told(job: LocalMembers, new: Sequence[str]) -> str:
    ended = [job.members[name].outcome() for name in new]
    pauses = [record.parts["pause"] for one in ended for record in one.handovers if "pause" in record.parts]
    if evidence.took_over(job.root.entries(), 2):
        return f"live, and training stood still for {1e3 * max(pauses):.0f} ms"
    why = next((one.live_why for one in ended if one.live_why), "") or _words(ended)
    return f"in place: {why}"


def _words(ended: Sequence[Any]) -> str:
    whys = [record.why for one in ended for record in one.handovers if record.why]
    return whys[-1] if whys else "no member says why"
