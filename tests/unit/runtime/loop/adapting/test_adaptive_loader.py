"""A session whose loader adapts, in one process: its position, its mistakes, and what others see of it."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import perdure
from perdure import Adapt, UserError
from perdure.loop.adapting.adaptive_loader import AdaptiveLoader
from perdure.loop.framework import Framework
from perdure.loop.leaving import Exit
from perdure.session import driven
from tests.unit.runtime.known_measures import know
from tests.unit.runtime.records import entries
from tests.unit.runtime.session.training import Join
from tests.unit.runtime.whole_numbers import SAMPLES, Weights, losses, optimizer_of, samples

BATCH = 12
LIST: list[dict[str, Any]] = [
    {"epoch": 0, "consumed": 0, "batch": 12},
    {"epoch": 0, "consumed": 24, "batch": 24, "rate": 2.0},
]
ADAPT = Adapt(up_to=60, per_rank=(1, 12), decisions=LIST)


class Training:
    """A training that leaves in step `stop`."""

    def __init__(
        self,
        session: perdure.Session,
        adapt: Adapt | None,
        *,
        measures: float | None = None,
        max_progress: float | None = None,
        **options: Any,
    ) -> None:
        """`measures`: the noise scale that it is to have measured from its first step on."""
        self.session, self.net, self.measures, self.max_progress = session, Weights(), measures, max_progress
        self.optimizer = optimizer_of(self.net)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)
        session.register(net=self.net, optimizer=self.optimizer, scheduler=self.scheduler)
        self.batches = session.loader(samples(), BATCH, adapt=adapt, **options)
        self.ids: list[int] = []
        self.rates: list[float] = []
        self.seen: list[tuple[int, int, int]] = []
        """Before each batch its number, how many are left, and how many there are."""
        self.optimizer.register_step_pre_hook(self._note)

    def _note(self, optimizer: Any, _arguments: Any, _named: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])
        if self.measures is not None:
            know(self.session, self.measures, 6, BATCH)
            self.measures = None

    def run(self, epochs: int = 2, stop: int | None = None) -> Training:
        batches = self.batches
        with self.session as session:
            for _ in session.epochs(epochs, max_progress=self.max_progress):
                for number, (inputs, wanted, ids) in enumerate(batches, batches.batch_index):
                    self.ids += ids.tolist()
                    self.seen.append((number, batches.remaining, len(batches)))
                    with session.micro() as last:
                        session.weighted(losses(self.net(inputs), wanted).mean()).backward()
                    if last:
                        self.optimizer.step()
                        self.optimizer.zero_grad()
                        if session.steps_done + 1 == stop:
                            os.kill(os.getpid(), signal.SIGTERM)
                        session.step()
                        self.scheduler.step()
        return self

    def left(self, stop: int) -> Training:
        with pytest.raises(Exit):
            self.run(stop=stop)
        return self

    @property
    def won(self) -> float:
        samples = perdure.progress(self.session).samples
        assert samples is not None
        return samples

    @property
    def end(self) -> tuple[Any, ...]:
        momentum = self.optimizer.state_dict()["state"][0]["momentum_buffer"]
        return (
            self.net.fields.tolist(),
            momentum.tolist(),
            self.optimizer.param_groups[0]["lr"],
            self.session.steps_done,
        )


def cursors(root: Path) -> Mapping[str, Any]:
    return next(entry["cursors"] for entry in reversed(entries(root)) if "cursors" in entry)


def test_a_commit_has_the_decision_and_the_position_of_any_other_loader(join: Join, tmp_path: Path) -> None:
    Training(join(), ADAPT).left(3)
    decision = {"epoch": 0, "consumed": 24, "ranks": 1, "batch": 24, "micro": 12, "accumulation": 1}
    assert cursors(tmp_path)["train"] == {
        "kind": "global-order",
        "epoch": 0,
        "consumed": 48,
        "samples": SAMPLES,
        "seed": 0,
        "shuffle": True,
        "decision": {**decision, "noise": None, "rate": 2.0},
        "batches": 4,
    }


def test_a_loader_that_does_not_adapt_leaves_what_it_always_left(join: Join, tmp_path: Path) -> None:
    training = Training(join(), None).left(3)
    assert cursors(tmp_path)["train"] == {
        "kind": "global-order",
        "epoch": 0,
        "consumed": 36,
        "samples": SAMPLES,
        "seed": 0,
        "shuffle": True,
    }
    own = training.session._core.run.registry.named["session_stopping"].state_dict()
    assert sorted(own) == ["asked", "datasets", "seconds"]
    assert not isinstance(training.batches, AdaptiveLoader)
    assert "step" not in vars(torch.optim.SGD(training.net.parameters()))


def test_with_nothing_decided_training_makes_the_same_bits_as_without(join: Join, tmp_path: Path) -> None:
    plain = Training(join(), None).run()
    adapting = Training(perdure.Session.from_env(tmp_path / "other"), Adapt(up_to=60)).run()
    assert (adapting.ids, adapting.rates, adapting.end) == (plain.ids, plain.rates, plain.end)


@pytest.mark.parametrize("stop", range(2, 7))
def test_a_resumed_run_makes_the_same_bits(join: Join, tmp_path: Path, stop: int) -> None:
    whole = Training(perdure.Session.from_env(tmp_path / "whole"), ADAPT).run()
    assert [one["batch"] for one in whole.batches.decisions] == [12, 24]
    first, second = Training(join(), ADAPT).left(stop), Training(join(), ADAPT).run()
    assert first.ids + second.ids == whole.ids
    assert first.seen + second.seen == whole.seen
    assert first.rates + second.rates == whole.rates
    assert second.end == whole.end


def test_the_list_that_a_run_gives_repeats_it(join: Join, tmp_path: Path) -> None:
    whole = Training(join(), ADAPT).run()
    path = tmp_path / "decisions.json"
    path.write_text(json.dumps(whole.batches.decisions))
    again = Training(perdure.Session.from_env(tmp_path / "again"), Adapt(up_to=60, per_rank=(1, 12), decisions=path))
    assert (again.run().ids, again.rates, again.end) == (whole.ids, whole.rates, whole.end)


GROWS = Adapt(up_to=36)
NOISE = 1e9
"""Nearly all of the gradient: three times the samples of a step win three times as much."""


def places(training: Training) -> list[tuple[int, int, int]]:
    return [(one["epoch"], one["consumed"], one["batch"]) for one in training.batches.decisions]


def test_a_batch_is_decided_where_a_checkpoint_is_due_and_the_checkpoint_holds_it(join: Join, tmp_path: Path) -> None:
    training = Training(join(EVERY_STEPS="2"), GROWS, measures=NOISE).run()
    assert places(training) == [(0, 0, 12), (0, 24, 36)]
    held = [(entry["step"], entry["cursors"]["train"]) for entry in entries(tmp_path) if "cursors" in entry]
    assert [(step, cursor["consumed"], cursor["decision"]["batch"]) for step, cursor in held[:2]] == [
        (2, 24, 36),
        (4, 36, 36),
    ]


def test_without_a_checkpoint_a_batch_is_decided_at_the_begin_of_an_epoch(join: Join) -> None:
    assert places(Training(join(), GROWS, measures=NOISE).run()) == [(0, 0, 12), (1, 0, 36)]


@pytest.mark.parametrize("stop", [3, 4])
def test_a_run_that_was_resumed_goes_on_with_what_was_decided_at_a_checkpoint(
    join: Join, tmp_path: Path, stop: int
) -> None:
    session = perdure.Session.from_env
    with pytest.MonkeyPatch.context() as context:
        context.setenv("PERDURE_EVERY_STEPS", "2")
        whole = Training(session(tmp_path / "whole"), GROWS, measures=NOISE).run()
    first = Training(join(EVERY_STEPS="2"), GROWS, measures=NOISE).left(stop)
    second = Training(join(EVERY_STEPS="2"), GROWS).run()
    assert places(second) == places(whole)
    assert first.ids + second.ids == whole.ids
    assert first.rates + second.rates == whole.rates
    assert second.end == whole.end
    listed = Training(session(tmp_path / "listed"), Adapt(up_to=36, decisions=second.batches.decisions)).run()
    assert (listed.ids, listed.rates, listed.end) == (whole.ids, whole.rates, whole.end)


def test_nothing_is_decided_where_a_run_leaves(join: Join) -> None:
    Training(join(EVERY_STEPS="2"), GROWS, measures=NOISE).left(2)
    assert places(Training(join(EVERY_STEPS="2"), GROWS).run()) == [(0, 0, 12), (0, 48, 36)]


def test_a_list_says_all_at_checkpoints_too(join: Join) -> None:
    training = Training(join(EVERY_STEPS="1"), ADAPT).run()
    assert places(training) == [(0, 0, 12), (0, 24, 24)]


WORTH: list[dict[str, Any]] = [
    {"epoch": 0, "consumed": 0, "batch": 12, "noise": 4.0},
    {"epoch": 0, "consumed": 24, "batch": 24, "noise": 12.0},
    {"epoch": 1, "consumed": 12, "batch": 36},
]
"""Samples count 1, then (12 + 12) / (12 + 24), then 1, because nothing is known of the noise."""


def test_progress_counts_samples_by_what_they_win(join: Join) -> None:
    training = Training(join(), Adapt(up_to=36, decisions=WORTH))
    assert training.won == 0.0
    training.run()
    assert training.won == pytest.approx(24 + 36 * 2 / 3 + 12 * 2 / 3 + 48)
    assert Training(join(), GROWS).run(epochs=1).won == training.won


@pytest.mark.parametrize("stop", range(2, 7))
def test_progress_goes_on_where_it_was(join: Join, tmp_path: Path, stop: int) -> None:
    adapt = Adapt(up_to=36, decisions=WORTH)
    whole = Training(perdure.Session.from_env(tmp_path / "whole"), adapt).run()
    Training(join(), adapt).left(stop)
    second = Training(join(), adapt)
    perdure.restore(second.session)
    assert 0 < second.won < whole.won
    assert second.run().won == whole.won


def test_a_loop_ends_after_the_epoch_in_which_its_progress_is_reached(join: Join) -> None:
    training = Training(join(), Adapt(up_to=36, decisions=WORTH), max_progress=49.0).run(epochs=9)
    assert training.won == pytest.approx(24 + 36 * 2 / 3 + 56)
    assert len(training.ids) == 120
    again = Training(join(), Adapt(up_to=36, decisions=WORTH), max_progress=49.0).run(epochs=9)
    assert not again.ids, "nothing is left of it"
    more = Training(join(), Adapt(up_to=36, decisions=WORTH), max_progress=105.0).run(epochs=9)
    assert len(more.ids) == 60


def test_progress_needs_a_loader_that_counts_it(join: Join) -> None:
    plain = Training(join(), None, max_progress=49.0)
    assert perdure.progress(plain.session).samples is None
    with pytest.raises(UserError, match=r"max_progress is 49\.0, and no loader of this session counts progress"):
        plain.run()
    assert len(plain.ids) == BATCH


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_has_skipped_wins_nothing(join: Join, fused: bool) -> None:
    session, net = join(), Weights()
    optimizer = torch.optim.SGD(net.parameters(), lr=1 / 64, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    session.register(net=net, optimizer=optimizer, scaler=scaler)
    known: list[float | None] = []
    with session:
        for _ in session.epochs(1):
            for inputs, wanted, _ in session.loader(samples(), BATCH, adapt=Adapt(up_to=BATCH)):
                worst = float("inf") if session.steps_done in (0, 2) else 1.0
                scaler.scale(losses(net(inputs), wanted).mean() * worst).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                session.step()
                known.append(perdure.progress(session).samples)
    assert known == [0.0, 12.0, 12.0, 24.0, 36.0]


def test_without_an_optimizer_each_step_counts(join: Join) -> None:
    session, net = join(), Weights()
    session.register(net=net)
    with session:
        for _ in session.epochs(1):
            for _ in session.loader(samples(), BATCH, adapt=Adapt(up_to=BATCH)):
                session.step()
    assert perdure.progress(session).samples == SAMPLES


def test_what_is_left_is_counted_in_parts_as_far_as_it_is_decided(join: Join) -> None:
    training = Training(join(), ADAPT).run(epochs=1)
    assert training.seen == [(0, 4, 5), (1, 3, 5), (2, 2, 5), (3, 1, 5), (4, 0, 5)]
    assert training.rates == [1 / 64, 1 / 64, 2 / 64, 1 / 64]


def test_a_run_without_adapt_continues_one_with_it_and_the_other_way_round(join: Join, tmp_path: Path) -> None:
    first = Training(join(), ADAPT).left(3)
    plain = Training(join(), None).left(5)
    assert plain.ids[:12] == Training(perdure.Session.from_env(tmp_path / "whole"), ADAPT).run().ids[48:60]
    assert plain.rates == [1 / 128] * 2, "the scheduler's, and no factor"
    last = Training(join(), Adapt(up_to=60, per_rank=(1, 6))).run()
    assert sorted(first.ids + plain.ids[:12]) == sorted(plain.ids[12:] + last.ids) == list(range(SAMPLES))
    decisions: Sequence[Mapping[str, Any]] = last.batches.decisions
    assert [(one["epoch"], one["consumed"], one["accumulation"]) for one in decisions] == [
        (0, 0, 0),
        (0, 24, 1),
        (1, 12, 1),
    ]


def steps_after_each_part(training: Training, *, optimizer: bool) -> None:
    with training.session as session:
        for _ in session.epochs(1):
            for inputs, wanted, _ in training.batches:
                losses(training.net(inputs), wanted).mean().backward()
                if optimizer:
                    training.optimizer.step()
                session.step()


def test_a_step_before_the_last_part_is_a_mistake(join: Join) -> None:
    training = Training(join(), Adapt(up_to=60, per_rank=(1, 4)))
    with pytest.raises(UserError, match=r"this batch has 3 parts, and step\(\) is called before the last one"):
        steps_after_each_part(training, optimizer=False)


def test_an_optimizer_that_steps_before_the_last_part_is_a_mistake(join: Join) -> None:
    training = Training(join(), Adapt(up_to=60, per_rank=(1, 4)))
    with pytest.raises(UserError, match=r"an optimizer steps after part of a batch that has 3 parts: write `with"):
        steps_after_each_part(training, optimizer=True)
    assert not training.rates


def test_items_are_weighted_with_those_of_the_whole_batch_or_not_at_all(join: Join) -> None:
    training = Training(join(), Adapt(up_to=60, per_rank=(1, 6)))
    with pytest.raises(UserError, match="also give of=, this rank's items in the whole batch"), training.session:
        training.session.weighted(torch.tensor(1.0), n=3)
    whole = Training(join(), Adapt(up_to=60, accumulates=False))
    perdure.restore(whole.session)
    assert whole.session.weighted(torch.tensor(1.0), n=3).item() == 1.0


def test_a_part_of_a_batch_is_weighted_with_its_items_if_all_are_given(join: Join) -> None:
    training = Training(join(), Adapt(up_to=60, per_rank=(1, 6)))
    perdure.restore(training.session)
    assert training.session.weighted(torch.tensor(1.0), n=3, of=12).item() == 0.25


def test_without_adapt_each_batch_is_the_last_part(join: Join) -> None:
    training = Training(join(), None).run(epochs=1)
    assert len(training.rates) == 5
    with training.session.micro() as last:
        assert last is True


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"train": False}, "adapt= does not go with train=False: no step is made"),
        ({"per_epoch": 24}, "adapt= does not go with per_epoch"),
        ({"per_epoch": 24, "rewind": False}, "adapt= does not go with per_epoch"),
        ({"rewind": False}, "adapt= does not go with rewind=False"),
        ({"drop_last": True}, "adapt= does not go with drop_last"),
        ({"adapt": 4096}, r"adapt is 4096: give perdure\.Adapt"),
        ({"adapt": Adapt(up_to=8)}, "give the largest global batch, 12 or more"),
        ({"adapt": Adapt(up_to=60, decisions=[])}, "give a list of decisions"),
        ({"adapts": ADAPT}, r"adapts=...\): there is no such option: write adapt="),
    ],
)
def test_what_cannot_adapt_is_refused_in_words(join: Join, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        join().loader(samples(), BATCH, **{"adapt": ADAPT, **options})


def test_a_second_loader_that_adapts_is_refused_and_the_same_one_is_returned(join: Join) -> None:
    session = join()
    loader = session.loader(samples(), BATCH, adapt=ADAPT)
    assert session.loader(samples(), BATCH, adapt=ADAPT) is loader
    with pytest.raises(UserError, match=r"loader 'other': loader 'train' adapts already"):
        session.loader(samples(), BATCH, name="other", adapt=ADAPT)
    with pytest.raises(UserError, match="loader 'train' exists already, with adapt="):
        session.loader(samples(), BATCH)
    assert not isinstance(session.loader(samples(), BATCH, name="valid", train=False), AdaptiveLoader)


@pytest.mark.parametrize("accumulates", [True, False])
def test_a_construct_that_counts_parts_is_said_to_do_so_once(
    join: Join, accumulates: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    adapt = Adapt(up_to=60, per_rank=(1, 6 if accumulates else 60), accumulates=accumulates)
    training = Training(join(), adapt)
    with training.session as session:
        for _ in session.epochs(2):
            for inputs, wanted, _ in itertools.islice(training.batches, 4):
                with session.micro() as last:
                    session.weighted(losses(training.net(inputs), wanted).mean()).backward()
                if last:
                    training.optimizer.step()
                    training.optimizer.zero_grad()
                    session.step()
    words = "loader 'train': islice(), zip() or range() ends the script's loop after 4 parts"
    assert capsys.readouterr().err.count(words) == accumulates


def test_another_loaders_steps_are_at_the_scripts_own_rate(join: Join) -> None:
    """Also beside a loop over the loader that adapts, and where a step has a batch of either."""
    training = Training(join(), Adapt(up_to=60, decisions=[{"epoch": 0, "consumed": 0, "batch": 30, "rate": 4.0}]))
    session = training.session
    other = session.loader(samples(), 30, name="other")

    def step(inputs: torch.Tensor, wanted: torch.Tensor) -> None:
        session.weighted(losses(training.net(inputs), wanted).mean()).backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        session.step()

    with session:
        for epoch in session.epochs(3):
            if epoch == 2:
                for (inputs, wanted, _), _ in zip(training.batches, other, strict=True):
                    step(inputs, wanted)
                continue
            for inputs, wanted, _ in training.batches:
                step(inputs, wanted)
                if epoch == 1 and not other.walking and other.remaining:
                    for more, so, _ in other:
                        step(more, so)
            for inputs, wanted, _ in other if epoch == 0 else ():
                step(inputs, wanted)
    own, scaled = 1 / 64, 4 / 64
    assert training.rates == [scaled, scaled, own, own, scaled, own, own, scaled, scaled, scaled]


def test_a_framework_that_makes_the_steps_itself_is_refused(join: Join) -> None:
    session = join()
    driven.drive(session, Framework("the Trainer", lambda: ""))
    with pytest.raises(UserError, match="adapt= cannot be used with the Trainer, which makes the steps"):
        session.loader(samples(), BATCH, adapt=ADAPT)


def test_a_framework_that_comes_after_the_loader_is_refused_at_its_first_batch(join: Join) -> None:
    training = Training(join(), ADAPT)
    driven.drive(training.session, Framework("the Trainer", lambda: ""))
    with pytest.raises(UserError, match="adapt= cannot be used with the Trainer"):
        training.run()
    assert not training.ids


def test_a_decision_that_a_checkpoint_does_not_hold_whole_is_named(join: Join) -> None:
    loader = join().loader(samples(), BATCH, adapt=ADAPT)
    cursor = {**loader.plan.cursor(0, 12), "decision": {"epoch": 0, "consumed": 0, "batch": 0}}
    with pytest.raises(UserError, match="loader 'train': the decision in the checkpoint: batch is 0"):
        loader.resume(cursor, 0)


def test_a_dataset_is_read_by_torchs_dataloader_as_ever(join: Join) -> None:
    training = Training(join(), ADAPT, num_workers=1).run(epochs=1)
    plain = DataLoader(samples(), batch_size=SAMPLES)
    assert sorted(training.ids) == next(iter(plain))[2].tolist()


def test_a_description_has_the_scripts_own_batches(join: Join) -> None:
    session = join()
    session.loader(samples(), BATCH, adapt=Adapt(up_to=60, per_rank=(1, 4)))
    assert [str(one) for one in perdure.describe(session).loaders] == [
        "60 samples, shuffled: 5 batches of 12 an epoch, all on the one rank"
    ]
