"""Real processes change their ranks while they train: nothing but the ranks is different afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perdure.channel import write_offer
from perdure.contract import Handover, Leave, Train
from perdure.contract.handover import write_handover
from perdure.handover.parties import Part, attempt_of
from tests.unit.runtime.handover.nursery import Nursery
from tests.unit.runtime.session.ranks import _free_port

WAIT_AT = 4


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path_factory.mktemp("live"))
    yield nursery
    nursery.close()


def log(root: Path) -> list[dict[str, Any]]:
    """The log's entries, oldest first."""
    return [json.loads(path.read_text()) for path in sorted((root / "log").glob("*.json"), reverse=True)]


class Training:
    """One job: what it is called, and its processes."""

    def __init__(self, nursery: Nursery, name: str, world: int, **arguments: Any) -> None:
        self.nursery = nursery
        self.root = nursery.folder / f"root-{name}"
        self.name = name
        self.world = world
        self.arguments = {"root": str(self.root), **arguments}
        self.port = _free_port()
        self.pids: dict[str, int] = {}
        self._wait_at: int | None = None

    def begin(self) -> Training:
        """Starts the ranks of run 1."""
        for rank in range(self.world):
            self._start(f"old{rank}", 1, rank, self.world, self.port, wait_at=self._wait_at)
        return self

    def offered(self, world: int, joins: tuple[int, ...], leavers: tuple[int, ...]) -> Training:
        """Before its ranks begin, they are offered to become run 2, with these newcomers, without these."""
        self._wait_at = WAIT_AT
        port, address = _free_port(), f"127.0.0.1:{_free_port()}"
        block = Handover(1, self.world, joins, leavers, address, 60, f"token-{self.name}")
        attempt = attempt_of(block, 2)
        for party in attempt.parties:
            if party.part is Part.NEWCOMER and party.new is not None:
                body = {"PERDURE_HANDOVER": json.dumps(write_handover(block))}
                self._start(f"new{party.new}", 2, party.new, world, port, **body)
                continue
            train = Train(2, party.new or 0, world, f"127.0.0.1:{port}", handover=block)
            offer = Leave(2, handover=block) if party.new is None else train
            write_offer(self._offer_file(f"old{party.old}"), offer)
        return self

    def end(self) -> dict[str, Any]:
        """The results by process, when all have ended."""
        statuses = {name: self.nursery.wait(pid) for name, pid in self.pids.items()}
        results = {name: self.nursery.result(f"{self.name}-{name}") for name in self.pids}
        assert set(statuses.values()) == {0}, (statuses, {name: self.nursery.output(f"{self.name}-{name}") for name in self.pids})
        return results

    def _offer_file(self, name: str) -> Path:
        return self.nursery.folder / f"{self.name}-{name}.offer"

    def _start(self, name: str, run: int, rank: int, world: int, port: int, wait_at: int | None = None, **more: str) -> None:
        environ = {
            "PERDURE_RUN": run, "RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "PERDURE_TRACE": 1, "PERDURE_CHECK_SECONDS": 0, "PERDURE_HANDOVER_FILE": self._offer_file(name),
        }
        told = {key: str(value) for key, value in environ.items()} | more
        arguments = {**self.arguments, "wait_at": wait_at}
        self.pids[name] = self.nursery.start(f"{self.name}-{name}", "train", arguments, told)


def by_rank(results: dict[str, Any]) -> dict[int, Any]:
    keys = ("steps", "weights", "buffers", "optimizer", "rate", "random")
    return {found["rank"]: {key: found[key] for key in keys} for found in results.values() if "rank" in found}


def undisturbed(nursery: Nursery, name: str, world: int, **arguments: Any) -> dict[int, Any]:
    return by_rank(Training(nursery, name, world, **arguments).begin().end())


def test_rank_1_of_two_is_replaced_and_nothing_else_changes(nursery: Nursery) -> None:
    training = Training(nursery, "replaced", 2).offered(2, (1,), (1,)).begin()
    results = training.end()
    print(results, training.nursery.output("replaced-old0"))
    assert by_rank(results) == undisturbed(nursery, "undisturbed", 2)
    assert [(entry["kind"], entry["run"], entry.get("takesOver")) for entry in log(training.root)][:2] == [
        ("Opened", 1, None),
        ("Opened", 2, 1),
    ]


MOVES = {
    "rank 0 of two": (2, 2, (0,), (0,), {}),
    "both of two": (2, 2, (0, 1), (0, 1), {}),
    "rank 1 of three": (3, 3, (1,), (1,), {"deterministic": True}),
    "rank 0 of two, batch norm": (2, 2, (0,), (0,), {"model": "norm"}),
    "rank 1 of two, workers": (2, 2, (1,), (1,), {"workers": 2}),
    "rank 0 of two, bucket views": (2, 2, (0,), (0,), {"options": {"gradient_as_bucket_view": True}}),
    "rank 0 of two, static graph": (2, 2, (0,), (0,), {"options": {"static_graph": True}}),
    "rank 1 of two, unused parameters": (2, 2, (1,), (1,), {"options": {"find_unused_parameters": True}}),
    "the only one": (1, 1, (0,), (0,), {}),
}


@pytest.mark.parametrize("move", MOVES)
def test_a_replaced_rank_changes_nothing(nursery: Nursery, move: str) -> None:
    world, new, joins, leavers, arguments = MOVES[move]
    name = move.replace(" ", "-").replace(",", "")
    results = Training(nursery, name, world, **arguments).offered(new, joins, leavers).begin().end()
    print(results)
    assert by_rank(results) == undisturbed(nursery, f"{name}-undisturbed", world, **arguments)
