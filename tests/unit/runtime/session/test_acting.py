"""Sessions whose loader adapts, on one, two and three real ranks: all scenarios are played by the same processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.runtime.session import adapting
from tests.unit.runtime.session.ranks import Scene, play
from tests.unit.runtime.whole_numbers import SAMPLES, losses, samples

WORLDS = (1, 2, 3)
LIST: list[dict[str, Any]] = [
    {"epoch": 0, "consumed": 0, "batch": 8},
    {"epoch": 0, "consumed": 24, "batch": 16, "rate": 2.0, "noise": 24.0},
    {"epoch": 1, "consumed": 0, "batch": 12, "accumulation": 2, "rate": 1.5},
    {"epoch": 2, "consumed": 12, "batch": 40, "rate": 0.5},
]
SIZES = [8, 8, 8, 16, 16, 4, 12, 12, 12, 12, 12, 12, 40, 8]
"""The batches of the steps."""
PARTS = {1: [2, 2, 2, 4, 4, 1, 3, 3, 3, 3, 3, 3, 8, 2], 2: [1, 1, 1, 2, 2, 1, 3, 3, 3, 3, 3, 3, 4, 1]}
CUTS = list(product((1, 2, 3), (0, 1, 4), (8, 21)))
CHAINS = (2, 3, 4, 7, 12)
"""After how many steps of its own the first run of a chain of runs is asked to leave; each later one is after two."""
Results = dict[str, list[Any]]


def scenes(root: Path) -> list[Scene]:
    def train(
        name: str, where: str, world: int, *, environ: Mapping[str, str] | None = None, **arguments: Any
    ) -> Scene:
        named = {"root": str(root / where), "decisions": LIST, **arguments}
        told = {"PERDURE_CHECK_SECONDS": "0", **(environ or {})}
        return Scene(name, "train", world, named, told, adapting.__name__)

    chained = (
        train(f"chain-{first}-{number}", f"chain-{first}", 1 + number % 3, terminate=(0, 2 if number else first))
        for first in CHAINS
        for number in range(5)
    )
    return [
        *(train(f"whole-{world}", f"whole-{world}", world) for world in WORLDS),
        train("workers", "workers", 2, workers=2),
        *chained,
        *(train(f"chain-{first}-end", f"chain-{first}", 2) for first in CHAINS),
        *(
            train(f"measured-{world}", f"measured-{world}", world, decisions=None, most=40, epochs=6)
            for world in (1, 2)
        ),
        *(
            train(f"stopped-{part}", "stopped", 2, decisions=None, most=40, epochs=6, terminate=stop)
            for part, stop in enumerate([(0, 20), None])
        ),
        *(
            train(
                name,
                where,
                2,
                decisions=None,
                most=40,
                noise=1e9,
                terminate=stop,
                environ={"PERDURE_EVERY_STEPS": "2"},
            )
            for name, where, stop in [
                ("saved", "saved", None),
                ("left-0", "left", (0, 5)),
                ("left-1", "left", None),
            ]
        ),
        *(
            Scene(
                f"gradient-{world}-{accumulation}-{batch}",
                "gradient",
                world,
                {"root": str(root / f"g-{world}-{accumulation}-{batch}"), "accumulation": accumulation, "batch": batch},
                module=adapting.__name__,
            )
            for world, accumulation, batch in CUTS
        ),
        *(
            Scene(
                name,
                "gradient",
                2,
                {"root": str(root / name), "accumulation": accumulation, "batch": batch, **how},
                module=adapting.__name__,
            )
            for name, accumulation, batch, how in (
                ("hooked", 0, 8, {"late_hook": True}),
                ("in-parts-hooked", 1, 8, {"late_hook": True}),
                ("mesh", 1, 8, {"parts_of_mesh": True}),
                ("static", 2, 21, {"static_graph": "session"}),
                ("scripts-static", 2, 21, {"static_graph": "script"}),
                ("not-static", 2, 21, {"late_hook": False}),
            )
        ),
        Scene(
            "sharded",
            "gradient",
            2,
            {"root": str(root / "sharded"), "accumulation": 2, "batch": 21, "shards": True},
            module=adapting.__name__,
        ),
    ]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("ranks")
    return play(folder, scenes(folder))


def end(found: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(found[name] for name in ("done", "weights", "momentum", "rate", "progress"))


@pytest.mark.parametrize("world", WORLDS)
def test_any_number_of_ranks_makes_the_same_steps_by_the_same_decisions(results: Results, world: int) -> None:
    by_rank = results[f"whole-{world}"]
    steps = list(zip(*(found["steps"] for found in by_rank), strict=True))
    assert [sum(len(one["ids"]) for one in ranks) for ranks in steps] == SIZES
    assert {end(found) for found in map(_plain, by_rank)} == {end(_plain(results["whole-1"][0]))}
    if world in PARTS:
        assert [ranks[0]["parts"] for ranks in steps] == PARTS[world]
    for epoch in range(3):
        seen = Counter(chain.from_iterable(one["ids"] for ranks in steps for one in ranks if one["epoch"] == epoch))
        assert seen == Counter(range(SAMPLES))
    decided = [(one["epoch"], one["consumed"], one["batch"], one["rate"]) for one in by_rank[-1]["decisions"]]
    assert decided == [(one["epoch"], one["consumed"], one["batch"], one.get("rate", 1.0)) for one in LIST]


def test_workers_that_fetch_ahead_change_nothing(results: Results) -> None:
    assert [found["steps"] for found in results["workers"]] == [found["steps"] for found in results["whole-2"]]


@pytest.mark.parametrize("first", CHAINS)
def test_runs_of_other_sizes_continue_in_the_middle_of_any_epoch_by_the_same_decisions(
    results: Results, first: int
) -> None:
    runs = [results[f"chain-{first}-{number}"] for number in range(5)] + [results[f"chain-{first}-end"]]
    assert {end(_plain(found)) for found in runs[-1]} == {end(_plain(results["whole-1"][0]))}
    seen: dict[int, Counter[int]] = {epoch: Counter() for epoch in range(3)}
    for found in chain.from_iterable(runs):
        for step in found["steps"]:
            seen[step["epoch"]].update(step["ids"])
    assert seen == {epoch: Counter(range(SAMPLES)) for epoch in range(3)}


def test_the_chains_of_runs_were_interrupted_behind_every_step(results: Results) -> None:
    left = {results[f"chain-{first}-{number}"][0]["done"] for first in CHAINS for number in range(5)}
    assert left >= set(range(2, len(SIZES)))


@pytest.mark.parametrize("world", [1, 2])
def test_what_was_decided_by_measures_is_repeated_by_its_list(results: Results, tmp_path: Path, world: int) -> None:
    by_rank = results[f"measured-{world}"]
    decided = by_rank[0]["decisions"]
    assert [found["decisions"] for found in by_rank] == [decided] * world
    assert (decided[0]["batch"], decided[0]["noise"], decided[0]["rate"]) == (8, None, 1.0)
    assert all((one["consumed"], one["noise"] is None) == (0, one is decided[0]) for one in decided)
    scene = {"root": str(tmp_path / "again"), "decisions": decided, "most": 40, "epochs": 6}
    again = play(tmp_path, [Scene("again", "train", world, scene, {}, adapting.__name__)])["again"]
    assert [(found["steps"], end(_plain(found)), found["decisions"]) for found in again] == [
        (found["steps"], end(_plain(found)), found["decisions"]) for found in by_rank
    ]


def test_ranks_decide_together_where_a_checkpoint_is_due_and_a_resumed_run_goes_on_with_that(results: Results) -> None:
    whole, first, second = results["saved"], results["left-0"], results["left-1"]
    for found in chain(whole, first, second):
        assert [(one["epoch"], one["consumed"], one["batch"]) for one in found["decisions"]] == [(0, 0, 8), (0, 16, 40)]
    assert {end(_plain(found)) for found in second} == {end(_plain(found)) for found in whole}
    for before, after, alone in zip(first, second, whole, strict=True):
        assert before["steps"] + after["steps"] == alone["steps"]


def test_a_run_that_measures_decides_nothing_anew_where_it_continues_in_the_middle_of_an_epoch(
    results: Results,
) -> None:
    first, second = results["stopped-0"], results["stopped-1"]
    known = first[0]["decisions"]
    assert [found["decisions"][: len(known)] for found in second] == [known] * 2
    epoch = max(step["epoch"] for step in first[0]["steps"])
    assert all(one["epoch"] > epoch for one in second[0]["decisions"][len(known) :])
    seen: dict[int, Counter[int]] = {epoch: Counter() for epoch in range(6)}
    for found in chain(first, second):
        for step in found["steps"]:
            seen[step["epoch"]].update(step["ids"])
    assert seen == {epoch: Counter(range(SAMPLES)) for epoch in range(6)}


@pytest.mark.parametrize(("world", "accumulation", "batch"), CUTS)
def test_the_gradient_is_that_of_the_whole_batch(results: Results, world: int, accumulation: int, batch: int) -> None:
    by_rank = results[f"gradient-{world}-{accumulation}-{batch}"]
    check_gradient(by_rank, batch)
    for found in by_rank:
        assert found["parts"] == accumulation + 1
        assert found["averaged"] == (list(range(found["steps"])) if world > 1 else []), "with the last part alone"


def test_a_sharded_model_reduces_its_gradient_with_the_last_part_alone(results: Results) -> None:
    by_rank = results["sharded"]
    assert [found["reduced"] for found in by_rank] == [[False, False, True]] * 2
    check_gradient(by_rank, 21)


@pytest.mark.parametrize("name", ["hooked", "in-parts-hooked"])
def test_a_hook_of_the_scripts_that_comes_after_the_loader_averages_and_ends_the_measuring_in_words(
    results: Results, name: str
) -> None:
    by_rank = results[name]
    check_gradient(by_rank, 8)
    for found in by_rank:
        assert found["averaged"] == list(range(found["steps"]))
        assert found["measured"] == 0
    words = "is not measured, without which no other batch is chosen: gradients are averaged with a communication hook"
    assert [sum(words in line for line in found["lines"]) for found in by_rank] == [1, 0], by_rank


def test_a_mesh_whose_ranks_share_their_samples_is_said_to_measure_nothing(results: Results) -> None:
    by_rank = results["mesh"]
    assert {tuple(found["ids"]) for found in by_rank} == {tuple(by_rank[0]["ids"])}
    words = "without which no other batch is chosen: loader 'train' shares a batch among 1 of 2 ranks"
    assert [sum(words in line for line in found["lines"]) for found in by_rank] == [1, 0], by_rank
    assert by_rank[0]["measured"] == 0


@pytest.mark.parametrize("name", ["static", "scripts-static"])
def test_a_model_with_a_static_graph_may_begin_with_a_batch_in_parts(results: Results, name: str) -> None:
    by_rank = results[name]
    check_gradient(by_rank, 21)
    assert [found["steps"] for found in by_rank] == [by_rank[0]["steps"]] * 2


def test_a_static_graph_changes_no_bit_of_a_wrapped_model(results: Results) -> None:
    assert [found["gradient"] for found in results["static"]] == [found["gradient"] for found in results["not-static"]]


def check_gradient(by_rank: list[Any], batch: int) -> None:
    inputs, wanted, _ = samples()[sorted(chain.from_iterable(found["ids"] for found in by_rank))]
    assert len(inputs) == batch
    net = adapting.network()
    losses(net(inputs).squeeze(-1), wanted).mean().backward()
    whole = torch.tensor(adapting.gradient_of(net), dtype=torch.float64)
    for found in by_rank:
        own = torch.tensor(found["gradient"], dtype=torch.float64)
        torch.testing.assert_close(own, whole, rtol=1e-12, atol=1e-12)


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
