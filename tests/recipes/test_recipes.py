"""Trainings as people write them, interrupted in a random step and restarted: they end as if nothing had happened.

The comparison is of a recipe's own final state, its weights and everything else it holds, as digests that it prints.
On another number of ranks sums are rounded differently, so there a resumed run is compared with the save that it
begins at: it has the same registered objects, values, accumulators and position. A rank's random generators begin anew.
A recipe is exact, refused, or told (`TOLD`): Perdure warns of what it cannot restore, and trains on. The messages are
pinned here.
"""

import random
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

from tests.recipes.scripts.reinforcement import dealt_out
from tests.recipes.stage import Played, Stage, Theatre

LEFT = 75  # saved and left: docs/concepts/completion.md

EXACT = {
    "language": (
        "pretraining",
        "adapters",
        "preferences",
        "rewards",
        "carried_state",
        "switched_adapters",
        "distilled",
    ),
    "generative": ("dcgan", "critics", "diffusion", "annealing", "codebook"),
    "selfsupervised": ("queue", "queue_of_all_ranks", "dino"),
    "reinforcement": ("dqn", "a2c"),
    "optimizers": (
        "averaged",
        "lookahead",
        "hessians",
        "schedule_free",
        "scaled",
        "muon",
        "registered_dice",
        "registered_momentum",
    ),
    "schedules": (
        "one_cycle",
        "evaluating_for_ever",
        "plateau",
        "restarts",
        "chained",
        "thawing",
        "thawed_from_then_on",
        "thawed_once",
    ),
    "data": ("mixup", "hard_samples", "shards", "buckets", "progressive", "multi_scale", "keys"),
    "tasks": ("balanced", "projected"),
    "structure": ("pruned_from_the_start", "quantized", "timm", "torchvision", "kept_best", "distilled"),
    "practices": (
        "cutmix",
        "recomputed",
        "parametrized",
        "range_test",
        "mean_teacher",
        "adversaries",
        "wrapped_adversaries",
        "group_weights",
    ),
}
FRAMEWORKS = (
    "frameworks.sequence_classification",
    "frameworks.causal_language_model",
    "frameworks.masked_language_model",
    "frameworks.autoencoder",
    "frameworks.manual_optimization",
    "frameworks.accelerated",
)
"""Driven by transformers, Lightning and Accelerate, whose ranks never change while they train."""
LONG = "structure.compiled"
AGAIN = "each resumed run would start it from scratch"
TOLD = {
    "language.merged_adapters": f"steps change an unregistered Linear (weight): {AGAIN}; register it",
    "generative.forgotten_annealing": f"steps change annealer, an unregistered Annealer (current): {AGAIN}; keep",
    "selfsupervised.forgotten_centre": f"steps change an unregistered DINOLoss (center): {AGAIN}; register it",
    "selfsupervised.late_predictor": f"steps change an unregistered Linear (weight, bias): {AGAIN}; register it",
    "reinforcement.forgotten_target": "steps change an unregistered Sequential (0.weight, 0.bias, 2.weight, ...)",
    "optimizers.attributes": "steps change counter of 'optimizer', which its state_dict does not have",
    "optimizers.noisy_gradients": f"steps change dice, an unregistered Generator: {AGAIN}; keep its state",
    "optimizers.momentum_by_hand": "steps change velocities, which carries on gradients of weights that no optim",
    "schedules.quiet_batch_norm": "momentum of 'model', which its state_dict does not have",
    "schedules.rising_dropout": "p of 'model', which its state_dict does not have",
    "schedules.dropping_once": "steps change module.3.p of 'model', which its state_dict does not have",
    "schedules.rising_smoothing": "steps change an unregistered CrossEntropyLoss (label_smoothing)",
    "structure.detection": "an unregistered LinearLR sets the learning rate of optimizer 'optimizer'",
    "data.counting_workers": "loader 'train': the dataset has a private random generator, rng: its state is in no",
    "practices.averaged_in_a_dict": f"steps change shadow, which follows weights of a registered module: {AGAIN}",
    "data.forgotten_mixup": f"steps change rng, an unregistered Generator: {AGAIN}; keep its state",
}
"""What a whole run says of what it would lose. It trains on: it is right while nobody interrupts it, and whether
training depends on that, Perdure cannot know (docs/concepts/exactness.md)."""
CHANGED_DATA = ("data.curriculum", "data.worker_curriculum")
"""Samples differ in a resumed run, which is reported there."""
REFUSED = {
    "data.bad_samples": "session.state['counts'] is a collections.defaultdict, which a checkpoint cannot hold",
    "frameworks.finetuning": "FeatureExtractorFreezeUnfreeze is not possible with a Session: it changes the optimizer",
    "structure.pruned": "optimizer 'optimizer' has other parameters or parameter groups than when training began",
}
LATE = "is a copy of the weights with which this process began"
TOLD_LATE = {"language.late_reference": (12, f"an unregistered GPT {LATE}, at step 12: a run that was never inter")}
"""What happens once, before this step: a resumed run does it with other weights, and says so (decision 044)."""
OWN_IN_STEPS = {"practices.adversaries": "model.1.running_mean, model.1.running_var"}
"""What each rank has of its own when a step calls layers in eval mode: a resumed run of several ranks is not exact."""
ALONE = frozenset(
    {
        "language.carried_state",
        "generative.critics",
        "generative.annealing",
        "selfsupervised.queue",
        *OWN_IN_STEPS,
        "practices.group_weights",
        "tasks.balanced",
        "tasks.projected",
        "schedules.thawing",
    }
)
"""For one rank: not wrapped, with a state for whole batches, or with each rank's own statistics in its steps."""
QUICK = frozenset(
    {
        "language.pretraining",
        "generative.dcgan",
        "generative.codebook",
        "reinforcement.dqn",
        "optimizers.averaged",
        "optimizers.scaled",
        "optimizers.registered_momentum",
        "selfsupervised.queue_of_all_ranks",
        "schedules.one_cycle",
        "schedules.evaluating_for_ever",
        "schedules.thawed_once",
        "data.multi_scale",
        "data.progressive",
        "structure.timm",
        "structure.kept_best",
        "frameworks.causal_language_model",
        "frameworks.autoencoder",
        "selfsupervised.queue",
        "tasks.balanced",
    }
)
"""Those that `make test` plays on several ranks, or moves from one process to another."""
MOVED = frozenset(
    {
        "language.pretraining",
        "generative.codebook",
        "reinforcement.dqn",
        "optimizers.averaged",
        "optimizers.scaled",
        "selfsupervised.queue_of_all_ranks",
        "schedules.evaluating_for_ever",
        "structure.timm",
    }
)
"""Of those on several ranks, the ones whose second rank is replaced; the others go on on another number of ranks."""
BY_BATCH = frozenset({"data.progressive", "structure.pruned_from_the_start", "structure.kept_best"})
"""Weights follow from the global batches alone: another number of ranks changes how sums are rounded, and no more."""
REFUSED_ON_TWO = {"reinforcement.a2c": "differs between rank 0 and rank 1: wrap the model with session.wrap"}
"""A training of one rank, continued on two, draws each rank's own numbers there, and is not wrapped."""
DEALT_OUT = {"reinforcement.dqn": {"replay": 30}}
"""Each rank's own state with a `merge`: another number of ranks deals the entries out anew, and keeps so many."""
EVALUATED = "calls layers in eval mode whose statistics differ between rank 0 and rank 1: "
DIFFERS = "between rank 0 and rank 1 these differ: "
OWN_BY_RANK = {
    "practices.mean_teacher": "teacher.1.running_mean, teacher.1.running_var",
    "selfsupervised.dino": "criterion.center",
    "optimizers.averaged": "average.module.1.running_mean, average.module.1.running_var",
    "optimizers.schedule_free": "session",
    "schedules.plateau": "scheduler, session",
    "schedules.restarts": "session.snapshots.0.1.running_mean",
    "structure.torchvision": "ema.module.1.running_mean, ema.module.1.running_var",
}
"""Each rank's own state in these, which is reported."""
FOLLOW_RANK_0 = frozenset(
    {"practices.mean_teacher", "selfsupervised.dino", "optimizers.schedule_free", "schedules.plateau"}
)
"""A newcomer goes on with rank 0's of that: it ends as a restart at that step does, and not as an undisturbed run."""


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage.opened() as stage:
        yield stage


@pytest.fixture(scope="module")
def stage_of_frameworks() -> Iterator[Stage]:
    with Stage.opened("tests.recipes.scripts.frameworks") as stage:
        yield stage


@pytest.fixture
def frameworks(stage_of_frameworks: Stage, tmp_path: Path) -> Theatre:
    return Theatre(stage_of_frameworks, tmp_path)


@pytest.fixture
def theatre(stage: Stage, tmp_path: Path) -> Theatre:
    return Theatre(stage, tmp_path)


def interrupted_and_resumed(theatre: Theatre, recipe: str, seed: int) -> tuple[Played, Played, Played]:
    whole = theatre.play(recipe, "whole")
    assert whole.status == 0, whole.output
    left = theatre.play(recipe, "parts", random.Random(f"{seed} {recipe}").randrange(2, whole.steps))
    assert left.status == LEFT, left.output
    ended = theatre.play(recipe, "parts")
    assert ended.status == 0, ended.output
    return whole, left, ended


@pytest.mark.parametrize(
    "recipe",
    [
        *(f"{file}.{name}" for file, names in EXACT.items() for name in names),
        pytest.param(LONG, marks=pytest.mark.chaos),
    ],
)
def test_a_recipe_that_is_interrupted_ends_as_if_nothing_had_happened(recipe: str, theatre: Theatre, seed: int) -> None:
    whole, _, ended = interrupted_and_resumed(theatre, recipe, seed)
    assert whole.held
    assert ended.held == whole.held, ended.output
    assert not re.search(f"{AGAIN}|{LATE}", whole.output + ended.output), "nothing is forgotten"


@pytest.mark.parametrize(
    ("recipe", "ranks"),
    [
        pytest.param(recipe, ranks, marks=() if recipe in QUICK else pytest.mark.chaos)
        for recipe in FRAMEWORKS
        for ranks in (1, 2)
    ],
)
def test_a_recipe_in_a_frameworks_loop_that_is_interrupted_ends_as_if_nothing_had_happened(
    recipe: str, ranks: int, frameworks: Theatre, seed: int
) -> None:
    whole = frameworks.play_on(ranks, recipe, "whole")
    assert [one.status for one in whole] == [0] * ranks, whole[0].output
    at = random.Random(f"{seed} {recipe} {ranks}").randrange(2, whole[0].steps - 2)
    left = frameworks.play_on(ranks, recipe, "parts", interrupted=at)
    assert [one.status for one in left] == [LEFT] * ranks, left[0].output
    ended = frameworks.play_on(ranks, recipe, "parts")
    assert [one.status for one in ended] == [0] * ranks, ended[0].output
    assert whole[0].held
    assert [one.held for one in ended] == [one.held for one in whole], ended[0].output
    assert not re.search(f"{AGAIN}|{LATE}", whole[0].output + ended[0].output)


def on_several_ranks(quick: Collection[str], besides: Collection[str] = ()) -> list[object]:
    named = [f"{file}.{name}" for file, names in EXACT.items() for name in names]
    return [
        pytest.param(recipe, marks=() if recipe in quick else pytest.mark.chaos)
        for recipe in named
        if recipe not in {*ALONE, *besides}
    ]


def restarted(theatre: Theatre, recipe: str, step: int) -> list[Played]:
    """Two ranks that begin again behind this step, as both ranks that a save at it gives rank 0's values to."""
    left = theatre.play_on(2, recipe, "restarted", interrupted=step - 1)  # the ranks agree in one step more
    assert [one.status for one in left] == [LEFT, LEFT], left[0].output + left[1].output
    again = theatre.play_on(2, recipe, "restarted")
    assert f", step {step}, made" in again[0].output
    return again


@pytest.mark.parametrize("recipe", on_several_ranks(MOVED))
def test_a_recipe_whose_second_rank_is_replaced_while_it_trains_ends_as_if_nothing_had_happened(
    recipe: str, theatre: Theatre, seed: int
) -> None:
    whole = theatre.play_on(2, recipe, "whole")
    stays, leaves, comes = theatre.move(recipe, "moved", random.Random(f"{seed} {recipe}").randrange(2, 7))
    assert [one.status for one in (*whole, stays, leaves, comes)] == [0] * 5, stays.output + comes.output
    assert "took over the living run" in stays.output
    assert leaves.held == {}
    if recipe in FOLLOW_RANK_0:
        told = re.findall(f"{DIFFERS}([^:]*):", stays.output)
        assert set(", ".join(told).split(", ")) <= set(OWN_BY_RANK[recipe].split(", "))
        (step,) = re.findall(r"took over the living run at step (\d+)", stays.output)
        assert [stays.held, comes.held] == [one.held for one in restarted(theatre, recipe, int(step))]
    else:
        assert [stays.held, comes.held] == [one.held for one in whole]
    assert not re.search(f"{AGAIN}|{LATE}", stays.output + comes.output)
    assert EVALUATED not in whole[0].output + stays.output
    if own := OWN_BY_RANK.get(recipe):
        assert DIFFERS + own in whole[0].output
    else:
        assert whole[0].held == whole[1].held
        assert DIFFERS not in whole[0].output


@pytest.mark.parametrize(
    "recipe", [pytest.param(recipe, marks=() if recipe in QUICK else pytest.mark.chaos) for recipe in sorted(ALONE)]
)
def test_a_recipe_whose_only_rank_is_replaced_while_it_trains_ends_as_if_nothing_had_happened(
    recipe: str, theatre: Theatre, seed: int
) -> None:
    whole = theatre.play(recipe, "whole")
    leaves, comes = theatre.move(recipe, "moved", random.Random(f"{seed} {recipe}").randrange(2, 7), world=1)
    assert [one.status for one in (whole, leaves, comes)] == [0] * 3, leaves.output + comes.output
    assert "took over the living run" in comes.output
    assert leaves.held == {}
    assert whole.held
    assert comes.held == whole.held
    assert not re.search(f"{AGAIN}|{LATE}", leaves.output + comes.output)


@pytest.mark.parametrize(("recipe", "own"), OWN_IN_STEPS.items())
def test_steps_that_use_each_ranks_own_statistics_are_reported_once(recipe: str, own: str, theatre: Theatre) -> None:
    whole = theatre.play_on(2, recipe, "whole")
    stays, leaves, comes = theatre.move(recipe, "moved", 3)
    assert [one.status for one in (*whole, stays, leaves, comes)] == [0] * 5, stays.output + comes.output
    assert "took over the living run" in stays.output
    for one in (whole[0], stays):
        assert one.output.count(EVALUATED) == one.output.count(f"{EVALUATED}{own}: if it trains on what") == 1
    assert EVALUATED not in whole[1].output + leaves.output + comes.output


def begun_by(saved: Sequence[Played], recipe: str, world: int) -> list[dict[str, str]]:
    """What each rank of a resumed run begins with, bit for bit: what rank 0 had when these ranks saved, and of an
    object with a `merge` the entries that its function deals out to that rank."""
    assert "position" in saved[0].saved
    begun = [dict(saved[0].saved) for _ in range(world)]
    for name, newest in DEALT_OUT.get(recipe, {}).items():
        entries = [{"kept": one.saved[name].split(",")} for one in saved]
        for rank in range(world):
            begun[rank][name] = ",".join(dealt_out(entries, rank, world)["kept"][-newest:])
    return begun


@pytest.mark.parametrize("recipe", on_several_ranks((QUICK - MOVED) | DEALT_OUT.keys(), REFUSED_ON_TWO.keys()))
def test_a_recipe_goes_on_on_two_ranks_and_then_on_one_again(recipe: str, theatre: Theatre, seed: int) -> None:
    whole = theatre.play(recipe, "whole")
    steps = whole.steps // 4
    first, more = (random.Random(f"{seed} {recipe} {part}").randrange(2, steps) for part in range(2))
    alone = theatre.play(recipe, "parts", first)
    assert alone.status == LEFT
    both = theatre.play_on(2, recipe, "parts", more)
    assert [one.status for one in both] == [LEFT, LEFT], both[0].output + both[1].output
    ended = theatre.play(recipe, "parts")
    if alone.saved:  # else the signal came between two optimizer steps of its first step, and the next run starts fresh
        assert [one.begun for one in both] == begun_by([alone], recipe, world=2)
    if both[0].saved:
        assert [ended.begun] == begun_by(both, recipe, world=1)
    assert (ended.status, ended.held.keys()) == (0, whole.held.keys()), ended.output
    assert not re.search(f"{AGAIN}|{LATE}", both[0].output + both[1].output + ended.output)
    if recipe in BY_BATCH:
        assert ended.weights == pytest.approx(whole.weights, abs=1e-4)
        assert whole.weights


@pytest.mark.parametrize("recipe", REFUSED_ON_TWO)
def test_a_recipe_that_does_not_train_together_is_refused_in_words_on_two_ranks(recipe: str, theatre: Theatre) -> None:
    assert theatre.play(recipe, "parts", interrupted=4).status == LEFT
    both = theatre.play_on(2, recipe, "parts", interrupted=6)
    assert [one.status for one in both] == [1, 1]
    assert all(REFUSED_ON_TWO[recipe] in one.output for one in both), both[0].output


@pytest.mark.parametrize("recipe", TOLD)
def test_what_a_recipe_forgets_is_reported_before_anybody_interrupts_it(recipe: str, theatre: Theatre) -> None:
    whole = theatre.play(recipe, "whole")
    assert whole.status == 0, whole.output
    assert whole.output.count(TOLD[recipe]) == 1, whole.output


@pytest.mark.parametrize("recipe", TOLD_LATE)
def test_what_happens_once_with_other_weights_in_a_resumed_run_is_reported_there(recipe: str, theatre: Theatre) -> None:
    step, told = TOLD_LATE[recipe]
    whole = theatre.play(recipe, "whole")
    left = theatre.play(recipe, "parts", interrupted=step)
    ended = theatre.play(recipe, "parts")
    assert [one.status for one in (whole, left, ended)] == [0, LEFT, 0], left.output + ended.output
    assert ended.held.keys() == whole.held.keys()
    assert ended.held != whole.held
    assert LATE not in whole.output + left.output
    assert ended.output.count(told) == 1, ended.output


def test_a_file_of_the_script_that_a_resumed_run_does_not_have_ends_it_with_the_scripts_own_error(
    theatre: Theatre,
) -> None:
    assert theatre.play("structure.transfer", "whole").status == 0
    assert theatre.play("structure.transfer", "parts", interrupted=12).status == LEFT
    ended = theatre.play("structure.transfer", "parts")
    assert (ended.status, ended.held) == (1, {})
    assert re.search(r"FileNotFoundError: .*best_model_params\.pt", ended.output)


@pytest.mark.parametrize("recipe", CHANGED_DATA)
def test_samples_that_a_script_changes_with_the_steps_are_reported_by_the_run_that_reads_others(
    recipe: str, theatre: Theatre
) -> None:
    assert theatre.play(recipe, "parts", interrupted=13).status == LEFT
    ended = theatre.play(recipe, "parts")
    told = "loader 'train': sample 0 is another one than that of the checkpoint: the script changes this dataset"
    assert ended.output.count(told) == 1


@pytest.mark.parametrize("recipe", REFUSED)
def test_what_no_checkpoint_could_hold_is_refused_in_words(recipe: str, theatre: Theatre) -> None:
    whole = theatre.play(recipe, "whole")
    assert (whole.status, whole.held) == (1, {})
    assert f"perdure.errors.UserError: {REFUSED[recipe]}" in whole.output
