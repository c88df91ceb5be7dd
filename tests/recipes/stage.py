"""Processes that play recipes, alone or as the ranks of one run, and the result of each."""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from e2e.harness.local_run import free_port
from perdure.live.protocol.parties import attempt_of
from perdure.wire import Env, Handover, Leave, Train, write_handover
from perdure.wire.channel import write_offer
from tests.support.forked import Forked

REPOSITORY = Path(__file__).parents[2]
HAND_OVER_SECONDS = 60


@dataclass(frozen=True)
class Played:
    """One process that has ended."""

    status: int
    output: str
    steps: int

    @property
    def held(self) -> dict[str, str]:
        """What the recipe says that it holds at its end."""
        return self._told("held")

    @property
    def begun(self) -> dict[str, str]:
        """What was registered, as soon as it was restored."""
        return self._told("begun")

    @property
    def saved(self) -> dict[str, str]:
        """... and when it was last saved."""
        return self._told("saved")

    def _told(self, when: str) -> dict[str, str]:
        return dict(re.findall(rf"^{when} (\S+) (\S+)$", self.output, re.MULTILINE))

    @property
    def weights(self) -> list[float]:
        return [float(value) for value in re.findall(r"^weight (\S+)$", self.output, re.MULTILINE)]


@dataclass
class Stage:
    """One process that forks all others."""

    asked: IO[str]
    answered: IO[str]

    @classmethod
    @contextmanager
    def opened(cls, *modules: str) -> Iterator[Self]:
        """`modules` are imported before the first fork."""
        command = ["-m", "tests.recipes.play", *modules]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PERDURE_CHECK_SECONDS": "0", "GLOO_SOCKET_IFNAME": "lo"}
        with Forked(command, cwd=REPOSITORY, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as player:
            assert player.stdin
            assert player.stdout
            yield cls(player.stdin, player.stdout)
            player.stdin.close()
            assert player.wait() == 0

    def play(
        self,
        recipe: str,
        folder: Path,
        environ: Sequence[dict[str, str]],
        interrupted: int | None,
        waits: Sequence[int | None],
    ) -> list[Played]:
        question = {"recipe": recipe, "folder": str(folder), "environ": environ, "interrupted": interrupted}
        print(json.dumps({**question, "waits": waits}), file=self.asked, flush=True)
        ended = json.loads(self.answered.readline())
        return [
            Played(status, (folder / f"output-{number}").read_text(), len((folder / f"steps-{number}").read_text()))
            for number, status in enumerate(ended)
        ]


@dataclass(frozen=True)
class Theatre:
    """Plays recipes over roots in one folder."""

    stage: Stage
    folder: Path

    def play(self, recipe: str, name: str, interrupted: int | None = None) -> Played:
        """One process of the recipe, over the root of this name."""
        (played,) = self.play_on(1, recipe, name, interrupted)
        return played

    def play_on(self, ranks: int, recipe: str, name: str, interrupted: int | None = None) -> list[Played]:
        """The same on so many ranks, by rank."""
        port = free_port()
        environ = [self._root(name) | (rank_of(ranks, number, port) if ranks > 1 else {}) for number in range(ranks)]
        return self.stage.play(recipe, self._fresh(name), environ, interrupted, [None] * ranks)

    def move(self, recipe: str, name: str, at: int, world: int = 2) -> list[Played]:
        """On so many ranks, of which another process takes the last one over at about this step of an optimizer: the
        ranks of the run that began, and the newcomer."""
        folder, port, following, last = self._fresh(name), free_port(), free_port(), world - 1
        master = f"127.0.0.1:{free_port()}"
        block = Handover(1, world, (last,), (last,), master, HAND_OVER_SECONDS, token=f"token-{name}")
        assert [(party.old, party.new) for party in attempt_of(block, 2).parties] == [
            *((rank, rank) for rank in range(last)),
            (last, None),
            (None, last),
        ]
        offers: tuple[Train | Leave, ...] = (
            *(Train(2, rank, world, f"127.0.0.1:{following}", handover=block) for rank in range(last)),
            Leave(2, handover=block),
        )
        environ = []
        for number, offer in enumerate(offers):
            file = folder / f"offer-{number}"
            write_offer(file, offer)
            environ.append(self._root(name) | _run(1, number, world, port) | {"PERDURE_HANDOVER_FILE": str(file)})
        told = {
            Env.HANDOVER: json.dumps(write_handover(block)),
            "PERDURE_HANDOVER_FILE": str(folder / f"offer-{world}"),
        }
        environ.append(self._root(name) | _run(2, last, world, following) | told)
        return self.stage.play(recipe, folder, environ, None, [*([at] * world), None])

    def _root(self, name: str) -> dict[str, str]:
        return {"PERDURE_ROOT": (self.folder / f"root-{name}").as_uri()}

    def _fresh(self, name: str) -> Path:
        folder = self.folder / f"{name}-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        return folder


def _run(run: int, rank: int, world: int, port: int) -> dict[str, str]:
    return {"PERDURE_RUN": str(run), "PERDURE_MEMBER": f"run-{run}-{rank}"} | rank_of(world, rank, port)


def rank_of(world: int, rank: int, port: int) -> dict[str, str]:
    """As torchrun tells it."""
    found = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port}
    return {name: str(value) for name, value in found.items()} | {"MASTER_ADDR": "127.0.0.1"}
