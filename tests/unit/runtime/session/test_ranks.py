"""Sessions on two, three and four real ranks: all scenarios are played once, by the same processes."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.group.pace import MOST_CALLS
from tests.unit.runtime.records import entries, traced
from tests.unit.runtime.session.ranks import Scene, play
from tests.unit.runtime.session.scenarios import (
    DRAWN_ALIKE,
    LINE_SEARCHES,
    SAMPLES,
    buffers,
    line_search_alone,
    network,
    weights,
)

REQUESTS = [(0, 3), (1, 1), (2, 7), (3, 5)]
ENDS_OF_AN_EPOCH: dict[str, dict[str, Any]] = {
    "cadence": {"epochs": 2},
    "goal": {"epochs": 1},
    "break": {"epochs": 2, "leaves": True},
}
EVALUATIONS: list[tuple[int, Any]] = [(2, (1, "0a", 2)), (3, (0, "1b", 3)), (1, (0, "end", 1)), (2, None)]
"""Sizes of one job's runs, and the rank that is asked to leave each, the pass and the batch."""
READERS: list[tuple[int, Any]] = [(2, (1, 1)), (3, (0, 5)), (1, None)]
"""The same, and the step."""
WRAPPED_UNLIKE = {
    "turned": ("2.weight: float32 [3, 4] with strides [4, 1]", "2.weight: float32 [3, 4] with strides [1, 3]"),
    "channels last": (
        "0.weight: float32 [4, 2, 3, 3] with strides [18, 9, 3, 1]",
        "0.weight: float32 [4, 2, 3, 3] with strides [18, 1, 6, 2]",
    ),
    "wider": ("2.weight: float32 [3, 4] with strides [4, 1]", "2.weight: float32 [5, 4] with strides [4, 1]"),
    "shorter": ("2.bias: float32 [3] with strides [1]", "nothing more"),
}
"""How rank 1's model differs from rank 0's, and what each has where they differ first."""
STRAYED = [
    "rank 0 has the batch of step 2",
    "rank 1 evaluates with loader 'valid' after step 1, and waits in poll() of step 1",
]
SCORED = {"bare": 1, "polling": 1, "in turn": 1, "wrapped": 0, "synchronized": 0, "nothing": 0}
"""How a network is evaluated, and how often it is said that each rank does it with its own statistics."""
CALLED = {"bare": 1, "scored": 0}
"""How steps call a network in eval mode, and how often it is said that each rank does it with its own statistics."""
LEFT_OUT = {"kept": 1, "zeroed": 0, "removed": 0}
"""What becomes of the gradients of a batch without a step, and how often it is said that the next one adds to them."""
Results = dict[str, list[Any]]


def scenes(root: Path) -> list[Scene]:
    def train(name: str, world: int, where: str, **arguments: Any) -> Scene:
        environ = {"PERDURE_TRACE": "1", "PERDURE_EVERY_STEPS": "5", "PERDURE_CHECK_SECONDS": "0"}
        return Scene(name, "train", world, {"root": str(root / where), **arguments}, environ)

    three = {"batch": 48, "deterministic": True}
    return [
        Scene("agree", "agree", 4, {"requests": REQUESTS, "interval": 0.0}),
        Scene("agree-seldom", "agree", 4, {"requests": REQUESTS, "interval": 60.0}),
        Scene("weights", "weighted_gradient", 4, {"root": str(root / "weights")}),
        Scene("loaders-alike", "two_loaders", 2, {"root": str(root / "loaders-alike"), "second": 10}),
        Scene("loaders-unlike", "two_loaders", 2, {"root": str(root / "loaders-unlike"), "second": 9}),
        Scene("tokens", "token_gradients", 4, {"root": str(root / "tokens"), "parts": 1}),
        Scene("tokens-parts", "token_gradients", 3, {"root": str(root / "tokens-parts"), "parts": 2}),
        Scene("miscounted", "miscounted", 2, {"root": str(root / "miscounted")}),
        *(
            Scene(
                f"{kind}-{wrapped}",
                "line_search",
                2,
                {"root": str(root / f"{kind}-{wrapped}"), "kind": kind, "wrapped": wrapped},
            )
            for kind, wrapped in [*product(LINE_SEARCHES, (True, False)), ("uneven", True)]
        ),
        Scene("stop", "stopping", 2, {"root": str(root / "stop"), "write": (1, 3)}, {"PERDURE_CHECK_SECONDS": "0"}),
        Scene("stop-on", "stopping", 2, {"root": str(root / "stop")}),
        Scene("stop-never", "stopping", 2, {"root": str(root / "stop-never")}),
        Scene("pins", "pins", 2, {"root": str(root / "pins")}, {"PERDURE_KEEP": "1"}),
        Scene("cannot-wrap", "cannot_wrap", 2, {"root": str(root / "cannot-wrap")}),
        Scene("pins-unlike", "pins", 2, {"root": str(root / "pins-unlike"), "unlike": True}),
        Scene("uneven", "uneven", 2, {"root": str(root / "uneven")}),
        *(
            Scene(
                f"scored-{way}",
                "scored",
                2,
                {"root": str(root / f"scored-{way}"), "way": way},
                {"PERDURE_EVERY_STEPS": "2", "PERDURE_CHECK_SECONDS": "0"},
            )
            for way in SCORED
        ),
        *(
            Scene(
                f"called-{way}",
                "called",
                2,
                {"root": str(root / f"called-{way}"), "way": way},
                {"PERDURE_CHECK_SECONDS": "0"},
            )
            for way in CALLED
        ),
        *(
            Scene(
                f"left-out-{left}-{views}",
                "leaves_out",
                2,
                {"root": str(root / f"left-out-{left}-{views}"), "views": views, "left": left},
                {"PERDURE_CHECK_SECONDS": "0"},
            )
            for left, views in product(LEFT_OUT, (True, False))
        ),
        Scene("parted", "parted", 2, {"root": str(root / "parted")}, {"PERDURE_CHECK_SECONDS": "0"}),
        Scene(
            "strayed", "strayed", 2, {"root": str(root / "strayed"), "parts": STRAYED}, {"PERDURE_CHECK_SECONDS": "0"}
        ),
        Scene("polls", "polls", 3, {"root": str(root / "polls"), "polling": [0]}),
        Scene(
            "seconds",
            "seconds",
            2,
            {"root": str(root / "seconds")},
            {"PERDURE_EVERY_SECONDS": "3600", "PERDURE_CHECK_SECONDS": "0"},
        ),
        Scene("exchange", "exchange", 2, {"root": str(root / "exchange")}),
        Scene("exhausted", "exhausted", 2, {"root": str(root / "exhausted")}),
        Scene("spawned", "spawned", 2, {"root": str(root / "spawned")}),
        Scene("without-a-server", "without_a_server", 2, {"root": str(root / "without-a-server")}),
        Scene("twice", "twice", 2, {"root": str(root / "twice")}),
        Scene("subgroup", "subgroup", 3, {"root": str(root / "subgroup")}),
        *(
            Scene(f"wrap-unlike-{how}", "wraps_unlike", 2, {"root": str(root / f"wrap-unlike-{how}"), "how": how})
            for how in WRAPPED_UNLIKE
        ),
        Scene("thaw", "thaw", 2, {"root": str(root / "thaw")}),
        *(
            Scene(
                f"own-ddp-{once}-{part}",
                "thaws_in_own_ddp",
                2,
                {"root": str(root / f"own-ddp-{once}"), "once": once},
                {"PERDURE_CHECK_SECONDS": "0", **environ},
            )
            for once in (False, True)
            for part, environ in (("left", {"PERDURE_EXIT_AT_STEP": "4"}), ("on", {}))
        ),
        Scene(
            "own-ddp-undisturbed",
            "thaws_in_own_ddp",
            2,
            {"root": str(root / "own-ddp-undisturbed"), "once": True},
            {"PERDURE_CHECK_SECONDS": "0"},
        ),
        train("two", 2, "two"),
        Scene(
            "two-asked",
            "asked_for_a_save",
            2,
            {"root": str(root / "two-asked"), "asked": [[1, 8], [0, 12]]},
            {"PERDURE_TRACE": "1", "PERDURE_EVERY_STEPS": "5", "PERDURE_CHECK_SECONDS": "0"},
        ),
        train("two-first", 2, "two-parts", terminate=(1, 9)),
        train("two-second", 2, "two-parts"),
        train("two-again", 2, "two-parts"),
        train("two-more", 2, "two-parts", epochs=5),
        train("from-first", 2, "from", terminate=(1, 23), resume_from={"uri": str(root / "two"), "step": 20}),
        train("from-second", 2, "from", resume_from={"uri": str(root / "two"), "step": 20}),
        train("three", 3, "three", **three),
        train("three-first", 3, "three-parts", **three, terminate=(2, 5)),
        train("three-second", 3, "three-parts", **three),
        train("sizes-three", 3, "sizes", terminate=(0, 4)),
        train("sizes-one", 1, "sizes", terminate=(0, 11)),
        train("sizes-two", 2, "sizes"),
        train("fault", 2, "fault", fault=(1, 7)),
        Scene("life-two", "life", 2, {"root": str(root / "life"), "leave": 1}, {"PERDURE_CHECK_SECONDS": "0"}),
        Scene("life-three", "life", 3, {"root": str(root / "life"), "ask": 2}),
        *(
            Scene(
                f"evaluates-{number}",
                "evaluates",
                world,
                {"root": str(root / "evaluates"), "terminate": terminate},
                {"PERDURE_CHECK_SECONDS": "0"},
            )
            for number, (world, terminate) in enumerate(EVALUATIONS)
        ),
        *(
            Scene(
                f"reads-{number}",
                "reads",
                world,
                {"root": str(root / "reads"), "terminate": terminate},
                {"PERDURE_CHECK_SECONDS": "0"},
            )
            for number, (world, terminate) in enumerate(READERS)
        ),
        *(
            Scene(f"lost-{name}", "lost_in_save", 2, {"root": str(root / name), **how}, {"PERDURE_EVERY_EPOCHS": "1"})
            for name, how in ENDS_OF_AN_EPOCH.items()
        ),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def played(folder: Path) -> Results:
    return play(folder, scenes(folder))


def steps(root: Path) -> list[int]:
    """Of all commits."""
    return [entry["step"] for entry in entries(root) if entry["kind"] == "Committed"]


def trained(root: Path) -> list[dict[str, Any]]:
    """The trace's steps."""
    return [line for line in traced(root) if "ids" in line]


def test_all_ranks_stop_at_one_step_two_checks_after_a_request_at_most(played: Results) -> None:
    stops = [result["stops"] for result in played["agree"]]
    assert stops == [stops[0]] * 4
    for (_, asked), stopped in zip(REQUESTS, stops[0], strict=True):
        assert stopped - asked <= 2


def test_all_ranks_stop_at_one_step_also_where_only_some_steps_are_checks(played: Results) -> None:
    stops = [result["stops"] for result in played["agree-seldom"]]
    assert stops == [stops[0]] * 4
    for (_, asked), stopped in zip(REQUESTS, stops[0], strict=True):
        assert stopped - asked <= MOST_CALLS + 1


def test_a_ragged_batch_gives_the_gradient_of_the_global_mean_with_empty_ranks_too(played: Results) -> None:
    assert all(difference < 1e-6 for result in played["weights"] for difference in result)


def test_a_loss_that_is_weighted_by_the_last_of_two_batches_with_unlike_shares_is_said_once(played: Results) -> None:
    words = "batches of one and two of which it has unlike shares"
    assert [said.count(words) for said in played["loaders-alike"]] == [0, 0]
    assert [said.count(words) for said in played["loaders-unlike"]] == [1, 1]


@pytest.mark.parametrize("views", [True, False])
@pytest.mark.parametrize("left", LEFT_OUT)
def test_gradients_of_a_batch_without_a_step_are_reported_if_the_next_batch_is_added_to_them(
    played: Results, left: str, views: bool
) -> None:
    first, second = played[f"left-out-{left}-{views}"]
    assert first.count("was added to the gradients that were there") == LEFT_OUT[left], first
    assert "was added to" not in second


@pytest.mark.parametrize("scene", ["tokens", "tokens-parts"])
def test_a_loss_by_tokens_gives_the_gradient_of_the_mean_over_all_tokens_of_the_step(
    played: Results, scene: str
) -> None:
    assert all(difference < 1e-6 for result in played[scene] for difference in result), played[scene]


def test_a_save_that_one_rank_is_asked_for_is_made_once_by_all_and_changes_nothing(
    played: Results, folder: Path
) -> None:
    assert played["two-asked"] == played["two"]
    told = entries(folder / "two-asked")
    commits = {entry["step"]: entry["reason"] for entry in told if entry["kind"] == "Committed"}
    assert sorted(commits) == [5, 9, 10, 15, 20, 25, 28]  # read by all one step after it was said
    assert commits[9] == "asked"


def test_a_rank_that_counts_more_items_than_it_has_raises_on_all(played: Results) -> None:
    assert [result["raised"] for result in played["miscounted"]] == ["UserError"] * 2
    assert all("rank 1: weighted(loss, n=3, of=2)" in result["message"] for result in played["miscounted"])


@pytest.mark.parametrize("kind", LINE_SEARCHES)
def test_ranks_search_along_the_loss_of_the_global_batch_as_one_process_does(kind: str, played: Results) -> None:
    first, second = played[f"{kind}-True"]
    alone = line_search_alone(kind)
    assert first == second
    assert [calls for _, calls in first["found"]] == [calls for _, calls in alone["found"]]
    assert max(calls for _, calls in alone["found"]) > 1
    assert [loss for loss, _ in first["found"]] == pytest.approx([loss for loss, _ in alone["found"]], rel=1e-4)
    for own, whole in zip(first["weights"], alone["weights"], strict=True):
        assert own == pytest.approx(whole, abs=1e-3)


@pytest.mark.parametrize("scene", [*(f"{kind}-False" for kind in LINE_SEARCHES), "uneven-True"])
def test_ranks_that_search_along_what_is_their_own_are_refused_in_words(scene: str, played: Results) -> None:
    results = played[scene]
    assert [result["raised"] for result in results] == ["UserError"] * 2
    assert all(re.search("closure unequally often|wrap the model", result["message"]) for result in results)


def test_a_file_that_one_rank_sees_stops_all_where_they_ask_and_the_next_run_goes_on_there(
    folder: Path, played: Results
) -> None:
    assert [(result["left"], result["steps"]) for result in played["stop"]] in ([(True, 3)] * 2, [(True, 4)] * 2)
    assert played["stop-on"] == played["stop-never"]
    assert [result["left"] for result in played["stop-on"]] == [False] * 2
    commits = [entry for entry in entries(folder / "stop") if entry["kind"] == "Committed"]
    assert commits[0]["reason"] == f"GracefulExit in {folder / 'stop' / 'exit-1.json'}"


def test_ranks_that_poll_unequally_get_the_same_named_error(played: Results) -> None:
    assert [result["raised"] for result in played["polls"]] == ["UserError"] * 3
    assert all("poll() and step()" in result["message"] for result in played["polls"])


def test_ranks_that_would_leave_at_different_places_get_the_same_named_error(played: Results) -> None:
    assert [result["raised"] for result in played["uneven"]] == ["UserError"] * 2
    assert all("leave at different places" in result["message"] for result in played["uneven"])


def test_ranks_of_which_one_evaluates_and_one_ends_its_epoch_get_the_same_error_that_says_so(played: Results) -> None:
    words = "come apart: rank 0 ends an epoch, rank 1 evaluates in the rest of an epoch: make the same calls"
    assert all(words in result["message"] for result in played["parted"]), played["parted"]


def test_ranks_that_wait_for_each_other_at_different_calls_say_where_each_stands(played: Results) -> None:
    first, second = played["strayed"]
    assert all(part in second["said"] for part in STRAYED), second
    assert re.search(r"step 2 \(for \d+ s\); rank 1 .* \(for \d+ s\): if none of them", second["said"])
    assert "check unequally often" in first["error"]


@pytest.mark.parametrize(("way", "times"), SCORED.items())
def test_ranks_that_evaluate_with_statistics_of_their_own_are_reported_once(
    played: Results, way: str, times: int
) -> None:
    words = (
        "in the evaluation after step 1 these differ between rank 0 and rank 1: model.1.running_mean, "
        "model.1.running_var: each rank scores with its own statistics: evaluate what session.wrap returned"
    )
    assert_rank_0_says(played[f"scored-{way}"], words, "in the evaluation", times)


@pytest.mark.parametrize(("way", "times"), CALLED.items())
def test_steps_that_call_a_network_with_each_ranks_statistics_are_reported_once(
    played: Results, way: str, times: int
) -> None:
    words = (
        "calls layers in eval mode whose statistics differ between rank 0 and rank 1: model.1.running_mean, "
        "model.1.running_var: if it trains on what they give, a resumed run is not exact"
    )
    assert_rank_0_says(played[f"called-{way}"], words, "calls layers", times)


def assert_rank_0_says(outputs: Any, words: str, topic: str, times: int) -> None:
    """So often, and rank 1 never; of the `topic` there are no other words."""
    first, second = outputs
    assert first.count(words) == first.count(topic) == times, first
    assert topic not in second


def test_two_ranks_begin_from_a_commit_of_another_root_and_go_on_from_their_own(folder: Path, played: Results) -> None:
    assert [result["begun"] for result in played["from-first"]] == [20, 20]
    assert played["from-second"][0]["begun"] in range(23, 26)
    assert steps(folder / "from")[0] == 20
    for result, expected in zip(played["from-second"], played["two"], strict=True):
        assert {**result, "begun": 0, "drawn": []} == {**expected, "begun": 0, "drawn": []}


def test_two_ranks_pin_together(folder: Path, played: Results) -> None:
    assert played["pins"] == [[13], [13]]
    assert [entry["step"] for entry in entries(folder / "pins") if entry.get("pin")] == [3, 6, 10, 13]
    assert [commit.step for commit in perdure.history(folder / "pins")] == [14, 13]


def test_ranks_of_which_only_some_pin_get_the_same_named_error(played: Results) -> None:
    assert [result["raised"] for result in played["pins-unlike"]] == ["UserError"] * 2
    assert all("in save() and save(pin=...)" in result["message"] for result in played["pins-unlike"])


def test_rank_0s_clock_says_when_a_checkpoint_is_due_and_all_make_it_once(folder: Path, played: Results) -> None:
    assert played["seconds"] == [None, None]
    assert steps(folder / "seconds") == [4, 7]


def test_what_a_step_said_is_not_lost_in_a_save_that_follows(played: Results) -> None:
    assert played["exhausted"] == [True, True]


def test_gradients_are_summed_in_rank_order_over_the_group_that_wrap_was_given(played: Results) -> None:
    assert played["subgroup"] == [[1.5], [1.5], [3.0]]


@pytest.mark.parametrize("how", WRAPPED_UNLIKE)
def test_every_rank_is_told_which_parameter_of_wrap_is_unlike(played: Results, how: str) -> None:
    first, second = WRAPPED_UNLIKE[how]
    told = [(result["raised"], result["message"]) for result in played[f"wrap-unlike-{how}"]]
    assert [kind for kind, _ in told] == ["UserError"] * 2
    assert all(f"rank 0 has {first}, rank 1 has {second}: build the same model" in words for _, words in told), told


def test_a_model_that_cannot_be_wrapped_is_none_that_follows_the_ranks(played: Results) -> None:
    assert played["cannot-wrap"] == [False, False]


def test_a_layer_that_is_frozen_or_unfrozen_while_training_stays_equal_on_all_ranks(played: Results) -> None:
    first, second = played["thaw"]
    assert first == second, first
    layers = list(zip(*first["layers"], strict=True))
    assert [len(set(hashes)) for hashes in layers] == [3, 2], "frozen layers stay, the others are trained"


def test_a_ddp_of_the_scripts_own_that_is_made_again_over_a_thawed_layer_goes_on(played: Results) -> None:
    undisturbed = played["own-ddp-undisturbed"]
    left, on = played["own-ddp-False-left"], played["own-ddp-False-on"]
    assert undisturbed[0] == undisturbed[1]
    assert [[*first, *then] for first, then in zip(left, on, strict=True)] == undisturbed
    assert all(left)
    assert all(on)


def test_one_that_a_resumed_run_does_not_make_again_is_named_and_not_saved(played: Results, folder: Path) -> None:
    """It would leave the layer to each rank alone."""
    assert steps(folder / "own-ddp-True") == [len(played["own-ddp-True-left"][0])]
    for rank in played["own-ddp-True-on"]:
        assert rank["raised"] == "UserError"
        assert "model.0.bias differs between rank 0 and rank 1: wrap the model with session.wrap" in rank["message"]


def test_two_ranks_resume_to_the_result_of_an_undisturbed_run(played: Results) -> None:
    assert [result["left"] for result in played["two-first"]] == [10, 10]
    assert [result["begun"] for result in played["two-second"]] == [10, 10]
    straight, resumed = played["two"], played["two-second"]
    # Another rank's buffers are its own business until rank 0 broadcasts its own.
    own = {"begun": 0, "drawn": []}
    assert {**resumed[1], **own, "buffers": ""} == {**straight[1], **own, "buffers": ""}
    assert {**resumed[0], **own} == {**straight[0], **own}
    assert resumed[0]["rate"] == pytest.approx(1e-4)


def test_three_ranks_resume_bit_identically_in_rank_order(played: Results) -> None:
    straight, resumed = played["three"], played["three-second"]
    assert [result["begun"] for result in resumed] == [6] * 3
    assert [result["weights"] for result in resumed] == [result["weights"] for result in straight]
    assert resumed[0]["buffers"] == straight[0]["buffers"]


def test_other_worlds_go_on_and_every_sample_of_every_epoch_is_used_once(folder: Path, played: Results) -> None:
    assert [result["begun"] for result in played["sizes-two"]] == [11, 11]
    used = Counter((line["epoch"], sample) for line in trained(folder / "sizes") for sample in line["ids"])
    assert used == Counter((epoch, sample) for epoch in range(4) for sample in range(SAMPLES))


def test_in_another_world_what_all_ranks_drew_alike_goes_on_and_the_rest_is_redrawn(played: Results) -> None:
    alike = random.Random(DRAWN_ALIKE)  # noqa: S311
    expected = [alike.random() for _ in range(14)]
    drawn = played["sizes-one"][0]["drawn"]
    assert drawn == [[step, expected[step]] for step, _ in drawn]
    assert drawn[0][0] > 0
    one, other = (dict(result["drawn"]) for result in played["sizes-two"])
    assert not set(one.values()) & set(other.values())  # one rank alone has nothing alike with another


def test_a_finished_job_is_completed_again_without_training(folder: Path, played: Results) -> None:
    again = played["two-again"][0]
    assert (again["begun"], again["weights"]) == (None, played["two-second"][0]["weights"])
    assert {line["run"] for line in trained(folder / "two-parts")} == {1, 2, 4}
    assert [entry["kind"] for entry in entries(folder / "two-parts")].count("Completed") == 3


def test_a_raised_goal_trains_on_from_the_end(played: Results) -> None:
    end = played["two-second"][0]["steps"]
    assert [result["begun"] for result in played["two-more"]] == [end, end]
    assert played["two-more"][0]["steps"] > end


def test_a_rank_that_raises_is_blamed_and_its_peers_are_not(played: Results) -> None:
    peer, culprit = played["fault"]
    assert (culprit["raised"], culprit["outcome"], culprit["blamed"]) == ("ValueError", "failed", True)
    assert (peer["outcome"], peer["blamed"]) == ("peer-lost", False), peer


def test_hooks_are_told_of_a_resume_by_other_ranks_and_rank_0_alone_collects(played: Results) -> None:
    assert [found["told"] for found in played["life-two"]] == [["init"]] * 2
    after = ["resumed", "ranks", "exit"]
    assert [found["told"] for found in played["life-three"]] == [["resumed", "ranks", "collect", "exit"], after, after]
    assert [found["rank"] for found in played["life-three"]] == [0, 0, 0]


def test_ranks_tell_each_other_small_values(played: Results) -> None:
    for found in played["exchange"]:
        assert found["gathered"] == [{"rank": 0, "text": "é"}, {"rank": 1, "text": "é"}]
        assert (found["sum"], found["mean"], found["most"]) == (3, [1.5, 0.5], {"a": 2, "b": -1})
        assert found["tensor"] == [[3.0, 0.5]]


def test_ranks_that_exchange_values_at_different_steps_raise(played: Results) -> None:
    for found in played["exchange"]:
        assert "rank 0 calls gather() after step 2, rank 1 calls gather() after step 1" in found["refused"]


def test_what_one_rank_cannot_tell_is_an_error_on_all(played: Results) -> None:
    for found in played["exchange"]:
        assert "rank 1: gather() after step 2: Object of type Tensor is not JSON serializable" in found["tensors"]


def test_at_the_end_every_rank_has_the_result_of_rank_0(played: Results) -> None:
    assert [found["result"] for found in played["life-three"]] == [{"of": 0}] * 3


def test_every_rank_is_told_of_a_commit_who_made_it_and_the_log_who_began(played: Results, folder: Path) -> None:
    for name, world in (("life-two", 2), ("life-three", 3)):
        told = [found["made"] for found in played[name]]
        assert told == [told[0]] * world, "every rank is told the same"
        for commit in told[0]:
            assert [member["name"] for member in commit["members"]] == [f"member-{rank}" for rank in range(world)]
            own = [seconds["stage"] + seconds["upload"] for seconds in commit["seconds"]]
            assert own[commit["slowest"]] == max(own)
            assert [sorted(seconds) for seconds in commit["seconds"][1:]] == [["stage", "upload"]] * (world - 1)
            assert commit["seconds"][0]["commit"] > 0
    keys = ("seq", "step", "epoch")
    recorded = [[entry[key] for key in keys] for entry in entries(folder / "life") if entry["kind"] == "Committed"]
    told_of = [[commit[key] for key in keys] for run in ("life-two", "life-three") for commit in played[run][0]["made"]]
    assert told_of == recorded
    named = [entry["members"]["key"] for entry in entries(folder / "life") if entry["kind"] == "Opened"]
    found = [json.loads((folder / "life" / key).read_text())["members"] for key in named]
    assert [[(member["name"], member["node"]) for member in members] for members in found] == [
        [(f"member-{rank}", f"node-{rank}") for rank in range(world)] for world in (2, 3)
    ]


def test_one_rank_that_wants_to_stop_ends_the_loop_on_all(played: Results, folder: Path) -> None:
    assert [found["steps"] for found in played["life-three"]] == [4, 4, 4]
    assert entries(folder / "life")[-1]["goal"] == {"epochs": 9, "stop": ["plateau"]}


@pytest.mark.parametrize("end", ENDS_OF_AN_EPOCH)
def test_a_peer_that_is_lost_while_an_epochs_end_is_saved_costs_no_step_of_it(played: Results, end: str) -> None:
    assert played[f"lost-{end}"] == [{"raised": "PeerLost", "left": [2, 1]}, {"raised": "OSError", "left": None}]


def test_what_two_ranks_have_saved_is_loaded_by_one_process_without_a_session(played: Results, folder: Path) -> None:
    net = network()
    net.load_state_dict(perdure.load(folder / "two", ["model"])["model"])
    assert weights(net) == played["two"][0]["weights"]
    assert buffers(net) == played["two"][0]["buffers"]
    assert {commit.world for commit in perdure.history(folder / "sizes")} <= {1, 2, 3}
    assert perdure.history(folder / "sizes")[0].world == 2


def test_sessions_meet_in_the_group_that_is_there_and_leave_it_as_it_was(played: Results) -> None:
    for rank, trainings in enumerate(played["spawned"]):
        for training in trainings:
            place = {name: training[name] for name in ("rank", "world", "steps", "kept", "total")}
            assert place == {"rank": rank, "world": 2, "steps": -(-SAMPLES // 16), "kept": True, "total": 3}
    one, two = played["spawned"]
    assert one[0]["gradients"] == one[1]["gradients"] == two[0]["gradients"] == two[1]["gradients"]
    assert any(one[0]["gradients"])


@pytest.mark.parametrize(
    ("scene", "remedy"),
    [("without-a-server", "initialise it with init_method='env://'"), ("twice", "another Session of this process")],
)
def test_a_group_that_a_session_cannot_use_is_a_mistake_on_each_rank(played: Results, scene: str, remedy: str) -> None:
    for told in played[scene]:
        assert told["raised"] == "UserError"
        assert remedy in told["message"]


def test_an_evaluation_goes_on_in_the_middle_among_any_number_of_ranks_with_every_sample_once(played: Results) -> None:
    runs = [played[f"evaluates-{number}"] for number in range(len(EVALUATIONS))]
    assert [{("left" in found, found.get("left", found.get("steps"))) for found in run} for run in runs] == [
        {(True, 3)},
        {(True, 6)},
        {(True, 6)},
        {(False, 6)},
    ]
    seen: dict[str, Counter[int]] = {}
    for run in runs:
        for rank in run:
            for name, ids in rank["seen"]:
                seen.setdefault(name, Counter()).update(ids)
    assert seen == {name: Counter(range(SAMPLES)) for name in ("0a", "0b", "1a", "1b", "end")}
    first = [name for name, _ in runs[1][0]["seen"]]
    assert first[0] == "0a"
    assert 0 < first.count("0a") < 7, "it goes on in the middle"


def test_a_reader_reads_on_among_any_number_of_ranks_with_every_sample_once(played: Results) -> None:
    runs = [played[f"reads-{number}"] for number in range(len(READERS))]
    assert [{found.get("left", found.get("steps")) for found in run} for run in runs] == [{2}, {6}, {14}], (
        "in the middle of epochs"
    )
    seen: dict[int, list[int]] = {}
    for rank in (rank for run in runs for rank in run):
        for epoch, ids in rank["seen"]:
            seen.setdefault(epoch, []).extend(ids)
    assert {epoch: len(ids) for epoch, ids in seen.items()} == {0: 30, 1: 30, 2: 30, 3: 12}
    assert Counter(number for ids in seen.values() for number in ids) == Counter(range(SAMPLES))
