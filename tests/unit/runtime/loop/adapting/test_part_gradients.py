"""A batch in parts trains on the gradient of the whole batch, or on none: scripts that do it right, and mistakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import perdure
from perdure import Adapt, UserError
from tests.unit.runtime.session.training import Join
from tests.unit.runtime.whole_numbers import FIELDS, losses, samples

BATCH, PARTS, STEPS = 12, 3, 5


class Net(nn.Module):
    """Has weights that are frozen, and some that no batch uses."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.ones(FIELDS, dtype=torch.float64), requires_grad=False)
        self.unused = nn.ParameterList(nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(5))
        self.fields = nn.Parameter(torch.zeros(FIELDS, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ (self.fields * self.frozen)


class Training:
    """Trains an epoch, of five batches of three parts each, as `script` makes a part of it."""

    def __init__(self, session: perdure.Session, parts: int = PARTS, **registered: Any) -> None:
        self.session, self.net = session, Net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1 / 64, momentum=0.5)
        session.register(net=self.net, optimizer=self.optimizer, **registered)
        self.batches = session.loader(samples(), BATCH, adapt=Adapt(up_to=BATCH, per_rank=(1, BATCH // parts)))
        self.first = True
        """Whether the present part is the first one of its batch."""

    def run(self, script: Callable[[Training, Tensor, Tensor], bool]) -> list[float]:
        with self.session as session:
            for _ in session.epochs(1):
                for inputs, wanted, _ in self.batches:
                    self.first = script(self, inputs, wanted)
                    if self.first:
                        session.step()
        assert session.steps_done == STEPS
        return self.weights

    @property
    def weights(self) -> list[float]:
        found: list[float] = self.net.fields.tolist()
        return found

    def loss(self, inputs: Tensor, wanted: Tensor) -> Tensor:
        return self.session.weighted(losses(self.net(inputs), wanted).mean())


def nothing(_training: Training) -> None:
    pass


def clear(training: Training) -> None:
    training.optimizer.zero_grad()


def clear_in_place(training: Training) -> None:
    training.optimizer.zero_grad(set_to_none=False)


def clear_model(training: Training) -> None:
    training.net.zero_grad()


def remove(training: Training) -> None:
    for parameter in training.net.parameters():
        parameter.grad = None


def clip(training: Training) -> None:
    nn.utils.clip_grad_norm_(training.net.parameters(), 0.5)


def check_numbers(training: Training) -> None:
    """Writes to the gradients, in each part."""
    for parameter in training.net.parameters():
        if parameter.grad is not None:
            torch.nan_to_num_(parameter.grad)


CLEARS = [clear, clear_in_place, clear_model, remove]


@dataclass(frozen=True)
class Loop:
    """Where a script does what."""

    head: Callable[[Training], None] = nothing
    first_head: Callable[[Training], None] = nothing
    inside: Callable[[Training], None] = nothing
    behind: Callable[[Training], None] = nothing
    before_step: Callable[[Training], None] = nothing
    after_step: Callable[[Training], None] = nothing
    in_block: bool = field(default=True)
    """Whether the backward pass is in the block of `micro`."""

    def __call__(self, training: Training, inputs: Tensor, wanted: Tensor) -> bool:
        self.head(training)
        if training.first:
            self.first_head(training)
        with training.session.micro() as last:
            self.inside(training)
            loss = training.loss(inputs, wanted)
            if self.in_block:
                loss.backward()
        if not self.in_block:
            loss.backward()
        if last:
            self.before_step(training)
            training.optimizer.step()
            self.after_step(training)
        self.behind(training)
        return last


@pytest.fixture(name="whole")
def fixture_whole(join: Join, tmp_path: Any) -> Callable[[Loop], list[float]]:
    """What the same script makes of batches in one part."""
    return lambda loop: Training(perdure.Session.from_env(tmp_path / "whole"), 1).run(loop)


@pytest.mark.parametrize("in_block", [True, False])
@pytest.mark.parametrize("clears", CLEARS)
@pytest.mark.parametrize(
    "loop",
    [
        lambda clears, **how: Loop(after_step=clears, **how),
        lambda clears, **how: Loop(first_head=clears, **how),
        lambda clears, **how: Loop(after_step=clears, first_head=clears, before_step=clip, **how),
        lambda clears, **how: Loop(after_step=clears, behind=check_numbers, **how),
    ],
)
def test_gradients_may_be_cleared_from_the_step_to_the_first_part(
    join: Join, whole: Any, loop: Any, clears: Any, in_block: bool
) -> None:
    script = loop(clears, in_block=in_block)
    assert Training(join()).run(script) == pytest.approx(whole(script), rel=1e-12)


@pytest.mark.parametrize("clears", CLEARS)
@pytest.mark.parametrize(
    ("loop", "in_block"),
    [
        (lambda clears, **how: Loop(head=clears, **how), True),
        (lambda clears, **how: Loop(head=clears, **how), False),
        (lambda clears, **how: Loop(inside=clears, **how), True),
        (lambda clears, **how: Loop(inside=clears, **how), False),
        (lambda clears, **how: Loop(behind=clears, **how), True),
        (lambda clears, **how: Loop(head=clears, before_step=clip, **how), True),
    ],
)
def test_gradients_that_are_cleared_between_two_parts_are_a_mistake_before_the_step(
    join: Join, loop: Any, clears: Any, in_block: bool
) -> None:
    training = Training(join())
    before = training.weights
    with pytest.raises(UserError, match=r"'train': this batch has 3 parts, and the gradient of an earlier one was cl"):
        training.run(loop(clears, in_block=in_block))
    assert training.weights == before


def test_a_batch_of_one_part_may_be_cleared_anywhere(join: Join, whole: Any) -> None:
    assert Training(join(), 1).run(Loop(head=clear)) == whole(Loop(after_step=clear))


def test_a_scaler_skips_a_step_and_the_next_batch_is_whole(join: Join, tmp_path: Any) -> None:
    found = []
    for parts, session in ((PARTS, join()), (1, perdure.Session.from_env(tmp_path / "whole"))):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        training = Training(session, parts, scaler=scaler)

        def script(training: Training, inputs: Tensor, wanted: Tensor, scaler: Any = scaler) -> bool:
            with training.session.micro() as last:
                infinite = float("inf") if training.session.steps_done == 1 else 1.0
                scaler.scale(training.loss(inputs, wanted) * infinite).backward()
            if last:
                scaler.unscale_(training.optimizer)
                clip(training)
                scaler.step(training.optimizer)
                scaler.update()
                training.optimizer.zero_grad()
            return last

        found.append(training.run(script))
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_another_optimizer_may_be_cleared_with_each_part_if_it_does_not_step(join: Join, whole: Any) -> None:
    """As one whose parameters get gradients of a loss that is not theirs."""
    session = join()
    module = nn.ParameterList([torch.ones(FIELDS, dtype=torch.float64)])
    beside, other = module[0], torch.optim.SGD(module.parameters(), lr=1.0)
    training = Training(session, module=module, beside=other)
    loop = Loop(after_step=clear)

    def script(training: Training, inputs: Tensor, wanted: Tensor) -> bool:
        with training.session.micro() as last:
            (training.loss(inputs, wanted) + (beside * inputs[0]).sum()).backward()
        other.zero_grad()
        if last:
            training.optimizer.step()
            training.optimizer.zero_grad()
        return last

    assert training.run(script) == pytest.approx(whole(loop), rel=1e-12)
    assert beside.tolist() == [1.0] * FIELDS


def test_a_script_that_adds_up_the_parts_itself_is_none_of_our_business(join: Join, whole: Any) -> None:
    training = Training(join())
    sums: list[Tensor] = []

    def script(training: Training, inputs: Tensor, wanted: Tensor) -> bool:
        training.optimizer.zero_grad()
        with training.session.micro() as last:
            training.loss(inputs, wanted).backward()
        assert training.net.fields.grad is not None
        sums.append(training.net.fields.grad.clone())
        if last:
            training.net.fields.grad = torch.stack(sums).sum(0)
            sums.clear()
            training.optimizer.step()
        return last

    assert training.run(script) == pytest.approx(whole(Loop(after_step=clear)), rel=1e-12)


def test_a_batch_that_is_given_up_may_be_cleared(join: Join) -> None:
    training = Training(join())

    def script(training: Training, inputs: Tensor, wanted: Tensor) -> bool:
        with training.session.micro() as last:
            training.loss(inputs, wanted).backward()
        training.optimizer.zero_grad()
        return last

    assert training.run(script) == [0.0] * FIELDS


@pytest.mark.parametrize("parts", [1, PARTS])
def test_a_loss_without_a_weight_is_a_mistake_where_a_batch_has_parts(join: Join, parts: int) -> None:
    training = Training(join(), parts)
    before = training.weights

    def script(training: Training, inputs: Tensor, wanted: Tensor) -> bool:
        with training.session.micro() as last:
            losses(training.net(inputs), wanted).mean().backward()
        if last:
            training.optimizer.step()
            training.optimizer.zero_grad()
        return last

    if parts == 1:
        assert training.run(script) != before
        return
    with pytest.raises(UserError, match=r"3 parts, and none of its losses went through session\.weighted\(\): the sum"):
        training.run(script)
    assert training.weights == before


@pytest.mark.parametrize("own", [True, False])
def test_a_script_that_weights_by_itself_says_so_or_trains_on_all_parts_at_once(
    join: Join, whole: Any, own: bool
) -> None:
    training = Training(join())
    kept: list[tuple[Tensor, Tensor]] = []

    def script(training: Training, inputs: Tensor, wanted: Tensor) -> bool:
        with training.session.micro() as last:
            if own:
                share = losses(training.net(inputs), wanted).sum() / BATCH
                training.session.weighted(share, n=1, of=1).backward()
        kept.append((inputs, wanted))
        if last and not own:
            all_inputs, all_wanted = (torch.cat(pieces) for pieces in zip(*kept, strict=True))
            losses(training.net(all_inputs), all_wanted).mean().backward()
        if last:
            kept.clear()
            training.optimizer.step()
            training.optimizer.zero_grad()
        return last

    assert training.run(script) == pytest.approx(whole(Loop(after_step=clear)), rel=1e-12)
