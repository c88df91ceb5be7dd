"""Random scripts, disturbed in random ways: their trainings equal their undisturbed twins' line by line, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.property.play import Request, contradiction, report, shrunk
from tests.property.ranks import Forge

CASES = 4
PROGRAMS = 4
"""In each case: what one process plays one after another."""
MANY = 300


@pytest.fixture(scope="module")
def forge() -> Iterator[Forge]:
    with Forge() as forge:
        yield forge


def hold(forge: Forge, folder: Path, seeds: range) -> None:
    """Fails with the smallest program found that is not the same as its twin."""
    for seed in seeds:
        request = Request(seed)
        found = contradiction(forge, folder, request.program)
        if found is not None:
            smaller = shrunk(forge, folder, request)
            pytest.fail(report(smaller, f"{found}\n{request.command()}, made smaller:"), pytrace=False)


@pytest.mark.parametrize("first", range(0, CASES * PROGRAMS, PROGRAMS))
def test_a_disturbed_script_trains_as_its_undisturbed_twin(forge: Forge, tmp_path: Path, first: int) -> None:
    hold(forge, tmp_path, range(first, first + PROGRAMS))


@pytest.mark.chaos
def test_random_disturbed_scripts_train_as_their_undisturbed_twins(forge: Forge, tmp_path: Path, seed: int) -> None:
    hold(forge, tmp_path, range(seed * MANY, (seed + 1) * MANY))
