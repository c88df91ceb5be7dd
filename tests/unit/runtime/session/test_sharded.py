"""Models that FSDP2, HSDP and tensor parallelism shard are saved and resumed: bit for bit in the same world, and in any
other one with the state that was saved, as torch gathers it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perdure.cli.main import main
from perdure.live.liveness import EARLY_COLLECTIVES
from tests.unit.runtime.records import entries, traced
from tests.unit.runtime.session.ranks import Scene, play
from tests.unit.runtime.session.sharded import OPTIMIZERS, SAMPLES, dataset

MODULE = "tests.unit.runtime.session.sharded"
LEFT = "4"
"""The last step of a run that is asked to leave in the third: several ranks leave a step later."""
WAYS = {
    "loop": ("fsdp", 2),
    "foreach": ("fsdp", 2),
    "fused": ("fsdp", 2),
    "sgd": ("fsdp", 2),
    "flips": ("fsdp", 2),
    "rests": ("fsdp", 2),
    "hsdp": ("hsdp", 4),
    "tp": ("tp", 4),
}
"""The optimizer, what a script does, or the way to shard; the way to shard, and how many ranks."""
OTHERS = {
    "foreach": [("fsdp", 3), ("fsdp", 1), ("whole", 1), ("hsdp", 4)],
    "hsdp": [("fsdp", 3)],
    "tp": [("fsdp", 2), ("tp", 2)],
    "three": [("fsdp", 2)],
    "even": [("tp", 4)],
    "whole": [("fsdp", 3)],
}
"""The model left out, and the other worlds in which it is restored."""
IN_BACKGROUND = [("fsdp", 2, "fused", 23), ("hsdp", 4, "fused", 23), ("tp", 4, "foreach", 22)]
"""The way to shard, how many ranks, the optimizer, and the width."""
COMES_LATE = ("head", "group", "optimizer")
HELD = {"reduced": True, "not reduced": True, "dropped": False, "zeroed": False}
"""The state of the gradients of a batch without a step, and whether that is reported."""
DRAWN: Mapping[str, tuple[int, dict[str, Any]]] = {
    "tp": (4, {"how": "tp"}),
    "by-rank": (4, {"how": "tp", "seeds": "rank"}),
    "mixed": (4, {"how": "tp", "seeds": "mixed"}),
    "own": (4, {"how": "tp", "own_samples": True}),
    "fsdp": (4, {"how": "fsdp"}),
    "half": (2, {"how": "fsdp"}),
    "one": (2, {"how": "tp"}),
    "mesh": (4, {"how": "mesh"}),
    "older": (4, {"how": "tp", "older": True}),
}
"""How many ranks draw, and how."""
IN_PAIRS, IN_TURN, EACH, ALL = [0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 2, 3], [0, 0]
DRAW_ON: Mapping[tuple[str, str, int], list[list[int]]] = {
    ("tp", "tp", 2): [ALL] * 3,
    ("by-rank", "tp", 2): [[0, 1]] * 3,
    ("mixed", "tp", 2): [ALL, [0, 1], [0, 1]],
    ("own", "tp", 2): [ALL] * 3,
    ("tp", "fsdp", 4): [EACH] * 3,
    ("fsdp", "tp", 4): [IN_PAIRS] * 3,
    ("half", "tp", 4): [IN_PAIRS] * 3,
    ("one", "tp", 4): [[0] * 4] * 3,
    ("mesh", "mesh", 2): [ALL] * 3,
    ("fsdp", "mesh", 4): [IN_PAIRS] * 3,
    ("mesh", "turned", 4): [IN_TURN] * 3,
}
"""Whose ranks goes on, how, and in what world; by generator which ranks draw alike there."""
GO_ON = {"tp": "tp", "mesh": "mesh", "older": "tp"}
"""Which ones go on in the same mesh, and how."""
SAVED_AT = 3
PAIRS = [(left, how, world) for left, worlds in OTHERS.items() for how, world in worlds]

Results = dict[str, list[Any]]


def scenes(root: Path) -> list[Scene]:
    def train(name: str, where: str, world: int, environ: Any = (), **arguments: Any) -> Scene:
        variables = {"PERDURE_EVERY_STEPS": "", "PERDURE_CHECK_SECONDS": "0", "PERDURE_KEEP": "99", **dict(environ)}
        return Scene(name, "train", world, {"root": str(root / where), **arguments}, variables, MODULE)

    asked, in_second_epoch = {"PERDURE_EXIT_AT_STEP": "3"}, {"PERDURE_EXIT_AT_STEP": "8"}
    every: list[Scene] = []
    for name, (how, world) in {**WAYS, "three": ("fsdp", 3), "even": ("fsdp", 3), "whole": ("whole", 1)}.items():
        wide = 22 if name in ("tp", "even") else 23  # tensor parallelism cuts it in two
        given = {"how": how, "optimizer": name if name in OPTIMIZERS else "foreach", "wide": wide}
        if name in ("flips", "rests"):
            given[name] = True
        every.append(train(f"{name}-left", name, world, asked, **given))
        others = [one for one in PAIRS if one[0] == name]
        every += [
            train(f"{name}-{other}-{ranks}", name, ranks, **{**given, "how": other, "restores": True})
            for _, other, ranks in others
        ]
        if name in WAYS:
            every.append(train(f"{name}-on", name, world, **given))
            every.append(train(f"{name}-undisturbed", f"{name}-undisturbed", world, {"PERDURE_TRACE": "1"}, **given))
    for how in COMES_LATE:
        grown = [train(f"grown-{how}-undisturbed", f"grown-{how}-undisturbed", 2, how=how)]
        for world in (2, 3):
            grown.append(train(f"grown-{how}-left-{world}", f"grown-{how}-{world}", 2, in_second_epoch, how=how))
            grown.append(train(f"grown-{how}-on-{world}", f"grown-{how}-{world}", world, how=how))
        every += [replace(scene, function="grows") for scene in grown]
    for how in HELD:
        arguments = {"root": str(root / f"held-{how}"), "how": how}
        every.append(Scene(f"held-{how}", "accumulates", 2, arguments, {"PERDURE_CHECK_SECONDS": "0"}, MODULE))
    for world, saves in ((2, True), (2, False), (1, False), (3, False)):
        heavy: dict[str, Any] = {"root": str(root / "heavy"), "saves": saves}
        environ = {"PERDURE_EVERY_STEPS": "", "PERDURE_CHECK_SECONDS": "0", "PERDURE_BACKGROUND_BYTES": str(2**40)}
        every.append(Scene(f"heavy-{world}-{saves}", "heavy", world, heavy, environ, MODULE))
    for name, where, environ in (("", "page-", {}), ("-left", "page", asked), ("-on", "page", {})):
        every.append(Scene(f"page{name}", "page", 2, {"root": str(root / where)}, environ, MODULE))
    every += drawing(root)
    behind = {"PERDURE_EVERY_STEPS": "2", "PERDURE_BACKGROUND_BYTES": "0"}
    return [
        *every,
        *(
            train(f"{way}-{how}", f"{way}-{how}", world, {**behind, **given}, optimizer=optimizer, how=how, wide=wide)
            for how, world, optimizer, wide in IN_BACKGROUND
            for way, given in (("behind", {}), ("blocking", {"PERDURE_BACKGROUND_BYTES": str(2**40)}))
        ),
        train(
            "differs", "differs", 4, {"PERDURE_EVERY_STEPS": "2"}, how="hsdp", differs_at=2
        ),  # a failed Session: last
    ]


def drawing(root: Path) -> list[Scene]:
    def draw(name: str, world: int, begins: str = "", **given: Any) -> Scene:
        arguments = {"root": str(root / f"draws-{name}"), **given}
        if begins:
            arguments["begins"] = {"uri": f"file://{root / f'draws-{begins}'}", "step": SAVED_AT}
        environ = {"PERDURE_EVERY_STEPS": "", "PERDURE_CHECK_SECONDS": "0", "PERDURE_KEEP": "99"}
        return Scene(f"draws-{name}", "draws", world, arguments, environ, MODULE)

    every = [draw(name, world, saves_at=SAVED_AT, **given) for name, (world, given) in DRAWN.items()]
    for name, how, world in DRAW_ON:
        every.append(draw(f"{name}-{how}-{world}", world, name, **{**DRAWN[name][1], "how": how}))
    for name, how in GO_ON.items():
        every.append(draw(f"{name}-on", 4, name, how=how))
        every.append(draw(f"{name}-again", 4, f"{name}-on", how=how))
    every.append(draw("mesh-mesh-2-again", 2, "mesh-mesh-2", how="mesh"))
    return every


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("roots")


@pytest.fixture(scope="module")
def results(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return play(tmp_path_factory.mktemp("played"), scenes(root))


@pytest.mark.parametrize("name", WAYS)
def test_a_resumed_run_is_the_undisturbed_one_bit_for_bit(results: Results, name: str) -> None:
    """Each rank's parameters and optimizer state, and each loss and norm."""
    for left, on, undisturbed in zip(
        results[f"{name}-left"], results[f"{name}-on"], results[f"{name}-undisturbed"], strict=True
    ):
        assert max(left["steps"]) == LEFT
        assert on["begun"] == left["ended"]
        assert on["own"] == undisturbed["own"]
        assert len(undisturbed["own"]) > len(undisturbed["begun"])  # with the optimizer's state
        assert {**left["steps"], **on["steps"]} == undisturbed["steps"]


@pytest.mark.parametrize(("name", "how", "world"), DRAW_ON)
def test_ranks_of_one_share_draw_alike_in_another_world_or_mesh_if_they_did(
    results: Results, name: str, how: str, world: int
) -> None:
    """They seed by the rank in the mesh of samples, so that a dropout of what each of them has whole is equal."""
    on = results[f"draws-{name}-{how}-{world}"]
    assert [min(map(int, drawn)) for drawn in on] == [SAVED_AT] * world, on
    for step in on[0]:
        for generator, expected in enumerate(DRAW_ON[name, how, world]):
            numbers = [drawn[step][generator] for drawn in on]
            assert [numbers.index(one) for one in numbers] == [expected.index(one) for one in expected], numbers


@pytest.mark.parametrize("name", GO_ON)
def test_ranks_that_share_batches_draw_on_where_they_were_in_the_same_mesh(results: Results, name: str) -> None:
    """Also from the commit that a run under another root begins with, before its script has made a loader."""
    for begun, on, again in zip(*(results[f"draws-{name}{which}"] for which in ("", "-on", "-again")), strict=True):
        assert on == again == {step: drawn for step, drawn in begun.items() if int(step) >= SAVED_AT}


def test_a_commit_from_before_the_script_has_made_a_loader_is_seeded_by_shares_once_it_has(results: Results) -> None:
    """In another world than the one that it continues."""
    assert results["draws-mesh-mesh-2-again"] == results["draws-mesh-mesh-2"]


def test_the_example_of_the_page_ends_as_if_it_had_not_been_interrupted(results: Results) -> None:
    assert all("weights" in found for found in results["page"])
    assert results["page-left"] != results["page"]
    assert results["page-on"] == results["page"]


@pytest.mark.parametrize(("name", "how", "world"), PAIRS)
def test_another_world_restores_what_was_saved(results: Results, name: str, how: str, world: int) -> None:
    saved = results[f"{name}-left"][0]["ended"]
    for found in results[f"{name}-{how}-{world}"]:
        assert found.get("begun") == saved, found


@pytest.mark.parametrize("how", COMES_LATE)
def test_what_comes_late_in_a_sharded_model_goes_on_where_it_was(results: Results, how: str) -> None:
    """On as many ranks bit for bit, and on any number with the state that was saved."""
    undisturbed, on = results[f"grown-{how}-undisturbed"], results[f"grown-{how}-on-2"]
    assert [one.get("own") for one in on] == [one["own"] for one in undisturbed], on
    for world in (2, 3):
        left = results[f"grown-{how}-left-{world}"][0]
        assert 6 < left["step"] < 18
        for found in results[f"grown-{how}-on-{world}"]:
            assert found.get("begun") == left["whole"], found


@pytest.mark.parametrize("how", [how for how, *_ in IN_BACKGROUND])
def test_a_save_in_the_background_is_the_same(results: Results, root: Path, how: str) -> None:
    """Also one whose copy goes on while the ranks train."""
    behind, blocking = (root / f"{way}-{how}" for way in ("behind", "blocking"))
    assert [found["own"] for found in results[behind.name]] == [found["own"] for found in results[blocking.name]]
    assert [found["deferred"][:1] for found in results[behind.name]] == [[2]] * len(results[behind.name])
    made = {one["step"]: one["seq"] for one in entries(behind) if one["kind"] == "Committed"}
    assert (min(made), max(made)) == (2, 6)  # one of step 4 is skipped where that of step 2 is still under way
    assert main(["verify", str(behind)]) == 0
    same = next(one["seq"] for one in entries(blocking) if one["kind"] == "Committed" and one["step"] == 2)
    assert main(["diff", "--tensors-only", f"{behind}@{made[2]}", f"{blocking}@{same}"]) == 0


@pytest.mark.usefixtures("results")
def test_equal_states_have_no_difference_whatever_the_world_that_saved_them(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = [next(one["seq"] for one in entries(root / name) if one["kind"] == "Committed") for name in ("loop", "fused")]
    assert main(["diff", "--tensors-only", f"{root / 'loop'}@{at[0]}", f"{root / 'loop'}@{at[0]}"]) == 0
    assert main(["diff", "--tensors-only", f"{root / 'loop'}@{at[0]}", f"{root / 'fused'}@{at[1]}"]) == 1
    assert "model.embedding.weight" in capsys.readouterr().out


@pytest.mark.usefixtures("results")
def test_a_commit_in_boxes_has_a_version_of_its_own_and_shows_them(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (manifest, *_) = sorted((root / "foreach").glob("data/1/*/manifest.json"))
    assert json.loads(manifest.read_text())["version"] == 5
    assert main(["show", str(root / "foreach"), "--tensors"]) == 0
    assert "model.embedding.weight float32 [37, 14], of it [0:19, 0:14]" in capsys.readouterr().out


def test_no_hand_over_is_live_and_no_image_is_left_with_the_reason(results: Results) -> None:
    for found in results["foreach-on"]:
        live, image = found["told"]
        assert live == EARLY_COLLECTIVES, "the script gathers whole tensors before its first batch"
        assert image == "model is sharded, and no other rank holds what a lost one did"


def test_only_what_the_script_gathers_is_in_the_way_of_replicas(results: Results) -> None:
    assert {found["told"][0] for found in results["hsdp-on"]} == {EARLY_COLLECTIVES}


@pytest.mark.usefixtures("results")
def test_replicas_share_the_work(root: Path) -> None:
    (folder, *_) = sorted((root / "hsdp").glob("data/1/*"))
    sizes = [shard.stat().st_size for shard in sorted(folder.glob("shard-*"))]
    assert len(sizes) == 4
    assert max(sizes) < 2 * min(sizes)


def test_replicas_that_differ_are_found_before_anything_is_committed(results: Results, root: Path) -> None:
    for found in results["differs"]:
        assert found["raised"] == "UserError"
        assert "model.blocks.0.b.weight at [7, 0] differs between rank 1 and rank 3" in found["message"]
    assert [one["kind"] for one in entries(root / "differs")] == ["Opened"]


@pytest.mark.parametrize("how", HELD)
def test_gradients_that_a_stop_would_lose_are_reported(results: Results, how: str) -> None:
    first, second = results[f"held-{how}"]
    assert ("call session.step() only after optimizer.step()" in first) == HELD[how], first
    assert "call session.step()" not in second


def test_a_hook_that_is_to_get_whole_tensors_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    """In processes of its own, because its Session fails."""
    played = play(tmp_path, [Scene("collects", "collects", 2, {"root": str(tmp_path / "root")}, {}, MODULE)])
    for found in played["collects"]:
        assert found["raised"] == "UserError"
        assert "perdure export" in found["message"]
    assert not (tmp_path / "root" / "log").exists()


def test_ranks_that_compute_parts_of_one_batch_get_the_same_samples_and_together_all(results: Results) -> None:
    first, second, third, fourth = (found["seen"] for found in results["tp-undisturbed"])
    assert first == second != third == fourth
    every = sorted(words for step in [*first, *third] for words in step)
    assert every == sorted(dataset().tensors[0].tolist())


@pytest.mark.usefixtures("results")
def test_ranks_with_the_same_samples_record_them_once(root: Path) -> None:
    used = [ids for line in traced(root / "tp-undisturbed") for ids in line.get("ids", ())]
    assert sorted(used) == list(range(SAMPLES))


def test_batches_of_each_rank_its_own_are_refused_where_ranks_compute_parts_of_one(tmp_path: Path) -> None:
    """In processes of its own, because its Session fails."""
    played = play(tmp_path, [Scene("parallel", "parallel", 2, {"root": str(tmp_path / "root")}, {}, MODULE)])
    for found in played["parallel"]:
        assert found["raised"] == "UserError"
        assert "model's tensor parallelism compute parts of one batch: name the mesh dimensions" in found["message"]


def test_no_rank_takes_memory_for_a_whole_tensor(results: Results) -> None:
    """Each of the two weights has 64 MiB, and so has each of their momenta."""
    for name in ("heavy-2-True", "heavy-2-False", "heavy-1-False", "heavy-3-False"):
        for found in results[name]:
            assert max(found["taken"]) < 56 * 1024, (name, found)


def test_the_ranks_together_read_a_sharded_model_once(results: Results) -> None:
    """256 MiB, as the kernel counts them. In a world of another size each rank that needs a byte of a block reads all
    of it: here each of 16 stretches adds 8 MiB at most."""
    for world, most in ((1, 256), (2, 256), (3, 256 + 16 * 8)):
        read = [found["read"] / 2**20 for found in results[f"heavy-{world}-False"]]
        assert 256 <= sum(read) < most + 8 * world, read  # and what it reads of the log, and of libraries
