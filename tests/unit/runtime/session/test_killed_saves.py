"""Trainers and uploading processes are killed and stopped at any moment: the log names whole commits only, and the
training that continues ends with the weights of an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from e2e.harness.local_run import free_port
from perdure.checkpoint.image_file import Image
from perdure.cli.main import main
from tests.support.forked import Forked
from tests.support.uploaders import uploaders
from tests.unit.runtime.records import entries, kinds
from tests.unit.runtime.session.background import BATCH, SAMPLES, ignores

REPOSITORY = Path(__file__).parents[4]
PATIENCE_SECONDS = 60.0
MOST_RUNS = 40
EPOCHS = 12
FEW = 2
"""Epochs where the disturbance comes with the first save."""
EPOCH_STEPS = SAMPLES // BATCH


class Ranks:
    """The processes of one run."""

    def __init__(
        self,
        root: Path,
        world: int,
        epochs: int,
        *,
        rank: int | None = 0,
        disturbance: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`disturbance`: of one rank, or of all (None), see killed_saves. `environ` goes before what it has else."""
        self.root = root
        given = environ or {}
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
        environ |= {"OMP_NUM_THREADS": "1", "PERDURE_BACKGROUND_BYTES": "0", "PERDURE_EVERY_STEPS": "4"}
        environ |= {"PERDURE_KEEP": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        environ |= {"WORLD_SIZE": str(world), **given}
        self._opened = self.runs()
        self.processes = [
            Forked(
                [
                    *("-m", "tests.unit.runtime.session.killed_saves", str(root), str(epochs)),
                    *(disturbance if rank is None or one == rank else ()),
                ],
                cwd=REPOSITORY,
                env={**environ, "RANK": str(one)},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            for one in range(world)
        ]

    def runs(self) -> int:
        return kinds(self.root).count("Opened") if self.root.exists() else 0

    def is_open(self) -> bool:
        return self.runs() > self._opened or self.ended()

    def ended(self) -> bool:
        return all(process.poll() is not None for process in self.processes)

    def uploader_of(self, rank: int) -> int | None:
        owner = self.processes[rank].pid
        return next((pid for pid, trainer in uploaders().items() if trainer == owner), None)

    def result(self) -> list[str]:
        return [process.communicate(timeout=PATIENCE_SECONDS)[0].strip() for process in self.processes]


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not true():
        if time.monotonic() > until:
            raise TimeoutError(f"not within {PATIENCE_SECONDS:.0f} s: {true}")
        time.sleep(0.002)


def ends_with_its_trainer(uploader: int) -> bool:
    """Whether it has begun far enough to end, even stopped, where its trainer is killed; or has ended."""
    try:
        return ignores(uploader, signal.SIGTERM)
    except OSError:
        return True


def disturb(draw: random.Random, ranks: Ranks) -> None:
    """Some time after the run has begun: kills trainers, or the process that uploads for one, or stops that."""
    wait_until(ranks.is_open)
    time.sleep(draw.uniform(0.0, 1.2))
    act = draw.choice(["rank", "all", "uploader", "stop and rank", "stop and go"])
    rank = draw.randrange(len(ranks.processes))
    uploader = ranks.uploader_of(rank) if act not in ("rank", "all") else None
    if uploader:
        if act != "uploader":
            wait_until(lambda: ends_with_its_trainer(uploader))
        with suppress(ProcessLookupError):
            os.kill(uploader, signal.SIGKILL if act == "uploader" else signal.SIGSTOP)
        time.sleep(draw.uniform(0.0, 0.3))
        if act == "stop and go":
            with suppress(ProcessLookupError):
                os.kill(uploader, signal.SIGCONT)
    if act in ("uploader", "stop and go"):
        return
    for process in ranks.processes if act == "all" else [ranks.processes[rank]]:
        process.kill()


Undisturbed = Callable[[int, int], str]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """What so many ranks train in so many epochs."""

    @cache
    def weights(world: int, epochs: int) -> str:
        (found,) = set(Ranks(tmp_path_factory.mktemp("undisturbed") / "root", world, epochs).result())
        return found

    return weights


def train_on(root: Path, world: int, begin: Callable[[int], Ranks]) -> list[str]:
    """Runs follow each other, each begun by `begin` with its number, until one comes to its end."""
    for number in range(MOST_RUNS):
        ranks = begin(number)
        upload = [pid for rank in range(world) if (pid := ranks.uploader_of(rank))]
        results = ranks.result()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in upload))  # noqa: B023 - within the loop
        if root.exists() and entries(root):
            assert main(["verify", str(root)]) == 0
            steps = [entry["step"] for entry in entries(root) if entry["kind"] == "Committed"]
            assert steps == sorted(steps)
        if all(results):
            break
    return results


HISTORIES = [(seed, 1 + seed % 2) for seed in range(40)]


@pytest.mark.parametrize(
    ("seed", "world"),
    [pytest.param(*history, marks=[] if history[0] < 2 else [pytest.mark.chaos]) for history in HISTORIES],
)
def test_whatever_is_killed_every_commit_is_whole_and_nothing_is_trained_twice_or_left_out(
    undisturbed: Undisturbed, tmp_path: Path, seed: int, world: int
) -> None:
    draw, root = random.Random(seed), tmp_path / "root"  # noqa: S311

    def begin(_: int) -> Ranks:
        ranks = Ranks(root, world, EPOCHS)
        disturb(draw, ranks)
        return ranks

    assert set(train_on(root, world, begin)) == {undisturbed(world, EPOCHS)}


@dataclass(frozen=True)
class Act:
    """One rank sends a signal at one moment of its first save."""

    whom: str
    number: signal.Signals
    moment: str
    world: int
    rank: int

    def __str__(self) -> str:
        return f"{self.number.name} for {self.whom} {self.rank} of {self.world} {self.moment}"

    @property
    def words(self) -> list[str]:
        return [self.moment, self.whom, str(int(self.number)), "1"]


EVERYWHERE = [f"{when} {act}" for act in ("Copy", "StartUpload", "TellCommitted") for when in ("before", "after")]
EVERYWHERE += ["during Copy"]
ON_RANK_0 = [f"{when} {act}" for act in ("Prepare", "Append") for when in ("before", "after")]
ACTS = [
    Act(whom, number, moment, world, rank)
    for whom in ("trainer", "uploader")
    for number in (signal.SIGKILL, signal.SIGSTOP, *([signal.SIGTERM] if whom == "trainer" else []))
    for world, rank in ((1, 0), (2, 0), (2, 1))
    for moment in EVERYWHERE + ON_RANK_0 * (not rank)
]
FEW_ACTS = [act for act in ACTS if act.world == 1 and act.whom == "trainer" and act.number is signal.SIGKILL]
FEW_ACTS += [
    Act("trainer", signal.SIGTERM, moment, world, rank)
    for moment, world, rank in (("during Copy", 1, 0), ("after StartUpload", 1, 0), ("after StartUpload", 2, 1))
]


def is_stopped(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def wake(ranks: Ranks, act: Act) -> None:
    """Waits until the process is stopped that this act stops, and lets it go on."""

    def victim() -> int | None:
        return ranks.processes[act.rank].pid if act.whom == "trainer" else ranks.uploader_of(act.rank)

    wait_until(lambda: is_stopped(victim() or 0))
    if pid := victim():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "act", [pytest.param(act, marks=[] if act in FEW_ACTS else [pytest.mark.chaos], id=str(act)) for act in ACTS]
)
def test_an_act_of_a_save_in_which_a_process_is_killed_or_stopped(
    undisturbed: Undisturbed, tmp_path: Path, act: Act
) -> None:
    root = tmp_path / "root"

    def begin(run: int) -> Ranks:
        ranks = Ranks(root, act.world, FEW, rank=act.rank, disturbance=[] if run else act.words)
        if act.number is signal.SIGSTOP and not run:
            wake(ranks, act)
        return ranks

    assert set(train_on(root, act.world, begin)) == {undisturbed(act.world, FEW)}
    followed = kinds(root).count("Opened") > 1
    if act.number is signal.SIGTERM:  # at a later moment it may have come to its end
        of_first = [entry for entry in entries(root) if entry["kind"] == "Committed" and entry["run"] == 1]
        assert of_first[-1]["final"], "it has left without its last step"
        assert followed or act not in FEW_ACTS
    else:
        assert followed is (act.whom == "trainer" and act.number is signal.SIGKILL)


def test_a_step_whose_save_is_copied_and_not_committed_is_left_as_an_image(tmp_path: Path) -> None:
    """Rank 1 is lost in the step after an epoch's end, the state of which nobody has uploaded yet."""
    root, image = tmp_path / "root", tmp_path / "image"
    image.touch()
    environ = {"PERDURE_EVERY_STEPS": "", "PERDURE_EVERY_EPOCHS": "1", "PERDURE_IMAGE": str(image)}
    ranks = Ranks(root, 2, FEW, rank=None, disturbance=[str(EPOCH_STEPS + 1)], environ=environ)
    assert ranks.result() == ["", ""]
    assert kinds(root) == ["Opened"]
    assert Image(image).label.stamp.step == EPOCH_STEPS
