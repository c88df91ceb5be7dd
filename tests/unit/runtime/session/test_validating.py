"""The mistakes found in a script before its first batch and in its first steps; and correct scripts have none."""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import json
import random
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import perdure
from perdure import Session
from perdure.loop.leaving import Exit
from perdure.session.unregistered_check import FURTHER, STEPS
from perdure.session.validating import findings
from perdure.wire.names import PREVIEW_JSON
from tests.property.grammar import drawn
from tests.property.script import script
from tests.unit.runtime.session import test_docs
from tests.unit.runtime.session.training import Join, samples

Step = Callable[[torch.Tensor], None]
WORDS = test_docs.WOULD_START


def stepping(*pairs: tuple[nn.Module, torch.optim.Optimizer]) -> Step:
    def step(inputs: torch.Tensor) -> None:
        for module, optimizer in pairs:
            optimizer.zero_grad()
            module(inputs).square().mean().backward()
            optimizer.step()

    return step


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(module.parameters())


def plainly_registered(session: Session) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """A network and what trains it, both in each checkpoint."""
    model = network()
    optimizer = adam(model)
    session.register(model=model, optimizer=optimizer)
    return model, optimizer


def scaling(model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> Step:
    def step(inputs: torch.Tensor) -> None:
        optimizer.zero_grad()
        scaler.scale(model(inputs).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


# Scripts that are right. Each registers what it wants, and gives its step.


def frozen(session: Session) -> Step:
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
    session.register(model=session.wrap(model), optimizer=optimizer)
    return stepping((model, optimizer))


def teacher(session: Session) -> Step:
    """It is called, and neither trained nor registered."""
    model, optimizer = network(), None
    optimizer = adam(model)
    session.wrap(network().requires_grad_(False))
    session.register(model=model, optimizer=optimizer)
    return stepping((model, optimizer))


def averages(session: Session) -> Step:
    model = network()
    optimizer = adam(model)
    ema, swa = copy.deepcopy(model), torch.optim.swa_utils.AveragedModel(model)
    rate = torch.optim.swa_utils.SWALR(optimizer, 0.1)
    session.register(model=model, optimizer=optimizer, swa=swa, rate=rate, ema=ema)
    return averaging(model, optimizer, ema, swa)


def averaging(model: nn.Module, optimizer: torch.optim.Optimizer, ema: nn.Module, *swas: Any) -> Step:
    plain = stepping((model, optimizer))

    def step(inputs: torch.Tensor) -> None:
        plain(inputs)
        for swa in swas:
            swa.update_parameters(model)
        for mine, its in zip(ema.parameters(), model.parameters(), strict=True):
            mine.data.lerp_(its.data, 0.1)

    return step


class Trainer:
    """It saves all that it holds."""

    def __init__(self) -> None:
        self.model = network()
        self.optimizer = adam(self.model)
        self.averages = {"ema": copy.deepcopy(self.model), "swa": torch.optim.swa_utils.AveragedModel(self.model)}
        self.rates = [torch.optim.lr_scheduler.ConstantLR(self.optimizer), sequence(self.optimizer)]
        self.parts: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, **self.averages}

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


def sequence(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    rates = [torch.optim.lr_scheduler.ConstantLR(optimizer), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return torch.optim.lr_scheduler.SequentialLR(optimizer, list(rates), [3])


def held_by_a_trainer(session: Session) -> Step:
    trainer = Trainer()
    session.register(model=trainer.model, trainer=trainer)
    step = averaging(trainer.model, trainer.optimizer, trainer.averages["ema"], trainer.averages["swa"])

    def all_of_it(inputs: torch.Tensor) -> None:
        step(inputs)
        for rate in trainer.rates:
            rate.step()

    return all_of_it


def sequences(session: Session) -> Step:
    """The parts of a scheduler are saved with it."""
    model = network()
    optimizer = adam(model)
    session.register(model=model, optimizer=optimizer, rate=sequence(optimizer))
    return stepping((model, optimizer))


def placed(session: Session) -> Step:
    """It begins its scheduler where the training stands; a registered parameter is in its module by another name."""
    model = network()
    optimizer = adam(model)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    rate = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9, last_epoch=session.steps_done + 40)
    session.register(model=model, optimizer=optimizer)
    plain = stepping((nn.ModuleDict({"again": model})["again"], optimizer))

    def step(inputs: torch.Tensor) -> None:
        plain(inputs)
        rate.step()

    return step


class Sums(nn.Module):
    """A metric, as many libraries make them."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1))


def copied_anew(session: Session) -> Step:
    """A target network gets the weights of now, another those of the step before; and a metric counts."""
    model, target, old, sums = network(), network(), network(), Sums()
    optimizer = adam(model)
    session.register(model=model, optimizer=optimizer)
    plain = stepping((model, optimizer))
    off = torch.amp.GradScaler("cpu", enabled=False)

    def step(inputs: torch.Tensor) -> None:
        old.load_state_dict(model.state_dict())
        plain(inputs)
        target.load_state_dict(model.state_dict())
        sums.total += 1
        step.kept = off  # type: ignore[attr-defined]

    return step


def tied(session: Session) -> Step:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    optimizer = adam(model)
    session.register(model=model, optimizer=optimizer)
    return stepping((model, optimizer))


def scaled(session: Session) -> Step:
    model = network()
    optimizer, scaler = adam(model), torch.amp.GradScaler("cpu")
    session.register(model=model, optimizer=optimizer, scaler=scaler)
    return scaling(model, optimizer, scaler)


class Around(torch.optim.Optimizer):
    """Lightning's and Accelerate's own optimizers are such: they step by the one that they hold."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        self.inner.step()


def held(session: Session) -> Step:
    model, optimizer = plainly_registered(session)
    return stepping((model, Around(optimizer)))


def gan(session: Session) -> Step:
    generator, critic = network(), network()
    of_generator, of_critic = adam(generator), adam(critic)
    session.register(generator=generator, critic=critic, of_generator=of_generator, of_critic=of_critic)
    return stepping((generator, of_generator), (critic, of_critic))


def parts_of_one(session: Session) -> Step:
    """Two optimizers for two parts of one module."""
    model = network()
    first, last = adam(model[0]), adam(model[2])
    session.register(model=model, first=first, last=last)
    return stepping((model, first), (model, last))


class Warmup:
    """Something around an optimizer, which saves it."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.parts = {"inner": inner}

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.parts["inner"].state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts["inner"].load_state_dict(state["inner"])


def around(session: Session) -> Step:
    model = network()
    optimizer = adam(model)
    session.register(model=model, optimizer=Warmup(optimizer))
    return stepping((model, optimizer))


def without_state(session: Session) -> Step:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session.register(model=model)
    return stepping((model, optimizer))


def inner_loop(session: Session) -> Step:
    """A copy is trained and thrown away in each step, and an input is searched for."""
    model, optimizer = plainly_registered(session)
    plain = stepping((model, optimizer))

    def step(inputs: torch.Tensor) -> None:
        twin = copy.deepcopy(model)
        stepping((twin, adam(twin)))(inputs)
        plain(inputs)
        step.kept = twin  # type: ignore[attr-defined]

    wanted = inputs_searched_for = torch.zeros(8, 4, requires_grad=True)
    search = torch.optim.Adam([inputs_searched_for])

    def all_of_it(inputs: torch.Tensor) -> None:
        step(inputs)
        search.zero_grad()
        model(wanted).square().mean().backward()
        search.step()

    return all_of_it


class Accuracy(nn.Module):
    """A metric as torchmetrics makes them: it sums up the model's outputs, and trains nothing."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(()))

    def forward(self, outputs: torch.Tensor) -> None:
        self.total += outputs.detach().mean()

    def compute(self) -> torch.Tensor:
        return self.total


def measured(session: Session) -> Step:
    return fed_beside(session, Accuracy())


def fed_beside(session: Session, module: nn.Module) -> Step:
    """Training in which an unregistered module gets each batch, too."""
    plain = stepping(plainly_registered(session))

    def step(inputs: torch.Tensor) -> None:
        module(inputs)
        plain(inputs)

    return step


class Stream:
    """It has a position, and saves it."""

    def __init__(self) -> None:
        self.taken = 0
        self.batches: Iterator[Any] = iter(DataLoader(samples(), 4))

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.taken, self.batches = state["taken"], itertools.islice(DataLoader(samples(), 4), state["taken"], None)


def fed_from_a_stream(session: Session) -> Step:
    model, stream = network(), Stream()
    optimizer = adam(model)
    session.register(model=model, optimizer=optimizer, stream=stream)
    plain = stepping((model, optimizer))

    def step(inputs: torch.Tensor) -> None:
        stream.taken += 1
        plain(torch.cat((inputs, next(stream.batches)[0])))

    return step


def evaluated_at_each_step(session: Session) -> Step:
    """Whole passes, of which the last one's end may still be held; and one that shows a batch and goes no further."""
    model, optimizer = plainly_registered(session)
    plain, test = stepping((model, optimizer)), DataLoader(samples(), 20)
    passes: list[Iterator[Any]] = []
    shown = iter(test)
    next(shown)

    def step(inputs: torch.Tensor) -> None:
        plain(inputs)
        passes[:] = [iter(test)] if len(passes) != 1 else passes
        for inside, _ in passes[0]:
            model(inside)
        assert shown

    return step


class Watched(nn.Module):
    """It keeps what people look at after a step, and what it can make again."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.maps: dict[str, torch.Tensor] = {}
        self.outputs: list[torch.Tensor] = []
        self.angles: torch.Tensor | None = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.angles is None:
            self.angles = torch.arange(3.0).cos()
        found: torch.Tensor = self.linear(inputs) * self.angles
        self.last, self.maps["last"] = found.detach(), found.softmax(1).detach()
        self.outputs.clear()
        self.outputs.append(found.detach())
        return found


def watched(session: Session) -> Step:
    model = Watched()
    optimizer = adam(model)
    session.register(model=session.wrap(model), optimizer=optimizer)
    return stepping((model, optimizer))


RIGHT = [
    watched,
    fed_from_a_stream,
    evaluated_at_each_step,
    measured,
    frozen,
    teacher,
    averages,
    held_by_a_trainer,
    sequences,
    placed,
    copied_anew,
    tied,
    scaled,
    held,
    gan,
    parts_of_one,
    around,
    without_state,
    inner_loop,
]


# Scripts with a mistake, its name, whether training reports it, and words of the message.


def forgotten_head(session: Session) -> Step:
    model, head = network(), nn.Linear(4, 1)
    optimizer, of_head = adam(model), adam(head)
    session.register(model=model, optimizer=optimizer)
    return stepping((model, optimizer), (head, of_head))


def forgotten_optimizer(session: Session) -> Step:
    """The scheduler does not save the optimizer that it holds."""
    model = network()
    optimizer = adam(model)
    session.register(model=model, scheduler=torch.optim.lr_scheduler.ConstantLR(optimizer))
    return stepping((model, optimizer))


class Rate(Warmup):
    """Something that holds an optimizer, and saves it as little as torch's schedulers do."""

    def state_dict(self) -> dict[str, Any]:
        return {}


def forgotten_by_its_holder(session: Session) -> Step:
    model = network()
    optimizer = adam(model)
    session.register(model=model, rate=Rate(optimizer))
    return stepping((model, optimizer))


class Slow(Around):
    """It keeps weights of its own, and the script has registered what it steps by."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["slow"] = parameter.detach().clone()


def forgotten_wrapper(session: Session) -> Step:
    model, optimizer = plainly_registered(session)
    slow = Slow(optimizer)
    stepping((model, slow))(torch.ones(2, 4))
    return stepping((model, slow))


def forgotten_model(session: Session) -> Step:
    model, other = network(), session.wrap(nn.Linear(4, 1))
    optimizer = adam(model)
    session.register(model=model, optimizer=optimizer)

    def step(inputs: torch.Tensor) -> None:
        stepping((model, optimizer))(inputs)
        other(inputs).mean().backward()

    return step


def shared(session: Session) -> Step:
    model, head = network(), nn.Linear(4, 1)
    optimizer, of_head = adam(model), adam(nn.ModuleList([model[0], head]))
    session.register(model=model, head=head, optimizer=optimizer, of_head=of_head)
    return stepping((model, optimizer), (head, of_head))


def twice(session: Session) -> Step:
    model = network()
    optimizer = adam(model)
    session.register(model=session.wrap(model), net=model, optimizer=optimizer)
    return stepping((model, optimizer))


def forgotten_scheduler(session: Session) -> Step:
    model, optimizer = plainly_registered(session)
    rate, plain = sequence(optimizer), stepping((model, optimizer))

    def step(inputs: torch.Tensor) -> None:
        plain(inputs)
        rate.step()

    return step


def forgotten_plateau(session: Session) -> Step:
    """It has done nothing yet in the first steps."""
    model, optimizer = plainly_registered(session)
    plain, rate = stepping((model, optimizer)), torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    return lambda inputs: plain(inputs) if rate else None


def forgotten_scaler(session: Session) -> Step:
    model = network()
    optimizer, scaler = adam(model), torch.amp.GradScaler("cpu")
    session.register(model=model, optimizer=optimizer)
    return scaling(model, optimizer, scaler)


def forgotten_average(session: Session) -> Step:
    """Averages are often kept from a later epoch on alone."""
    model, optimizer = plainly_registered(session)
    plain, swa = stepping((model, optimizer)), torch.optim.swa_utils.AveragedModel(model)
    return lambda inputs: plain(inputs) if swa else None


# Mistakes that only steps show.


def average_by_hand(session: Session) -> Step:
    model = network()
    optimizer = adam(model)
    session.register(model=session.wrap(model), optimizer=optimizer)
    return averaging(model, optimizer, copy.deepcopy(model))


class Shadow:
    """As diffusers and torch_ema keep an average."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow_params = [one.detach().clone() for one in model.parameters()]
        self.updates = 0

    def update_parameters(self, model: nn.Module) -> None:
        self.updates += 1
        for mine, its in zip(self.shadow_params, model.parameters(), strict=True):
            mine.lerp_(its.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return vars(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def shadow(session: Session) -> Step:
    model, optimizer = plainly_registered(session)
    return averaging(model, optimizer, model, Shadow(model))


def features(session: Session) -> Step:
    """A network that is not trained, whose BatchNorm follows the batches."""
    return fed_beside(session, network().requires_grad_(False))


class Meter:
    """It counts, and saves nothing."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def meter(session: Session) -> Step:
    model, counts = network(), Meter()
    optimizer = adam(model)
    session.register(model=model, optimizer=optimizer, counts=counts)
    plain = stepping((model, optimizer))

    def step(inputs: torch.Tensor) -> None:
        plain(inputs)
        counts.count += 1

    return step


class Mean(nn.Module):
    """A metric as torchmetrics makes them: its sums are in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(1)


def metric(session: Session) -> Step:
    model, mean = network(), Mean()
    optimizer = adam(model)
    session.register(model=model, optimizer=optimizer, mean=mean, criterion=nn.CrossEntropyLoss(torch.ones(3)))
    plain = stepping((model, optimizer))

    def step(inputs: torch.Tensor) -> None:
        plain(inputs)
        mean.total += 1

    return step


class Memory(nn.Module):
    """It has a buffer that its state_dict leaves out, and one that never changes."""

    past: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.register_buffer("past", torch.zeros(1), persistent=False)
        self.register_buffer("positions", torch.arange(4), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear(inputs)
        self.past += found.detach().mean()
        return found + self.past


def memory(session: Session) -> Step:
    model = Memory()
    optimizer = adam(model)
    session.register(model=session.wrap(model), optimizer=optimizer)
    return stepping((model, optimizer))


class Queue(nn.Module):
    """Contrast with the newest keys, as MoCo writes it with a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.keys = torch.zeros(2, 16)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear(inputs)
        against = found @ self.keys
        self.keys = torch.cat([found.detach().T, self.keys], 1)[:, :16]
        return against + found.sum()


def queue(session: Session) -> Step:
    model = nn.Sequential(Queue())
    optimizer = adam(model)
    session.register(model=session.wrap(model), optimizer=optimizer)
    return stepping((model, optimizer))


def fed_from_a_loader_of_its_own(session: Session) -> Step:
    """Unlabelled samples beside the labelled ones, say."""
    model, optimizer = plainly_registered(session)
    plain, beside = stepping((model, optimizer)), iter(DataLoader(samples(), 4, shuffle=True))
    return lambda inputs: plain(torch.cat((inputs, next(beside)[0])))


CHANGED: dict[Callable[[Session], Step], str] = {
    average_by_hand: "steps change an unregistered Sequential (0.weight, 0.bias, 1.weight, ...)",
    shadow: "steps change an unregistered Shadow (shadow_params, updates)",
    meter: "steps change count of 'counts', which its state_dict does not have",
    metric: "steps change total of 'mean', which its state_dict does not have",
    memory: "past of 'model', which its state_dict does not have",
    queue: "0.keys of 'model', which its state_dict does not have",
    features: "steps change an unregistered Sequential (1.running_mean, 1.running_var)",
    fed_from_a_loader_of_its_own: "steps take batches from a DataLoader of the script's own",
}


class Mistake(NamedTuple):
    """A script with one, and its message."""

    script: Callable[[Session], Step]
    name: str
    words: str
    certain: bool = True
    said: bool = False
    """Whether training says it."""


WRONG = [
    Mistake(
        forgotten_head,
        "unregistered-parameters",
        "an unregistered Adam trains 2 parameters (5 numbers)",
        said=True,
    ),
    Mistake(
        forgotten_optimizer,
        "unregistered-optimizer",
        "an unregistered Adam trains 6 parameters (25 numbers) of registered modules",
        said=True,
    ),
    Mistake(
        forgotten_by_its_holder,
        "unregistered-optimizer",
        "an unregistered Adam trains 6 parameters (25 numbers) of registered modules",
        said=True,
    ),
    Mistake(
        forgotten_wrapper,
        "unregistered-optimizer",
        "an unregistered Slow trains 6 parameters (25 numbers) of registered modules",
        said=True,
    ),
    Mistake(
        forgotten_model, "unregistered-parameters", "session.wrap was given a Linear with 2 parameters (5 numbers)"
    ),
    Mistake(
        shared,
        "shared-parameters",
        "optimizer 'optimizer' and optimizer 'of_head' both train 2 parameters (15 numbers)",
        certain=False,
    ),
    Mistake(
        forgotten_scheduler,
        "unregistered-scheduler",
        "an unregistered SequentialLR sets the learning rate of optimizer 'optimizer'",
        certain=False,
        said=True,
    ),
    Mistake(
        forgotten_plateau,
        "unregistered-scheduler",
        "an unregistered ReduceLROnPlateau sets the learning rate of optimizer 'optimizer'",
        certain=False,
        said=True,
    ),
    Mistake(forgotten_scaler, "unregistered-scaler", "an unregistered GradScaler", certain=False, said=True),
    Mistake(forgotten_average, "unregistered-average", "an unregistered AveragedModel", certain=False, said=True),
    Mistake(twice, "two-names", "model and net are one object", certain=False),
]


def train(session: Session, step: Step) -> None:
    with session:
        for _ in session.epochs(1):
            for inputs, _ in session.loader(samples(), 8):
                step(inputs)
                session.step()


@pytest.mark.parametrize("script", RIGHT, ids=lambda one: one.__name__)
def test_nothing_is_found_in_a_script_that_is_right(
    join: Join, script: Callable[[Session], Step], capfd: pytest.CaptureFixture[str]
) -> None:
    session = join()
    step = script(session)
    assert perdure.describe(session).findings == ()
    train(session, step)
    assert perdure.describe(session).findings == ()
    assert WORDS not in capfd.readouterr().err


@pytest.mark.parametrize("mistake", WRONG, ids=lambda one: one.script.__name__)
def test_a_mistake_is_found_before_the_first_batch_and_said_once_by_the_training_that_proves_it(
    join: Join, mistake: Mistake, capfd: pytest.CaptureFixture[str]
) -> None:
    session = join()
    step = mistake.script(session)
    (finding,) = perdure.describe(session).findings
    assert (finding.name, finding.certain) == (mistake.name, mistake.certain)
    assert mistake.words in finding.text
    assert f"{'wrong' if mistake.certain else 'doubtful'}  {finding.text}" in str(perdure.describe(session))
    train(session, step)
    told = capfd.readouterr().err
    assert told.count(mistake.words) == told.count(WORDS) == int(mistake.said)


@pytest.mark.parametrize("script", CHANGED, ids=lambda one: one.__name__)
def test_unregistered_state_that_steps_change_is_reported_once(
    join: Join, script: Callable[[Session], Step], capfd: pytest.CaptureFixture[str]
) -> None:
    session = join()
    step = script(session)
    assert perdure.describe(session).findings == ()
    train(session, step)
    told = capfd.readouterr().err
    assert told.count(CHANGED[script]) == told.count(WORDS) == 1


@dataclass(slots=True)
class Noise:
    dice: random.Random


class Shaky(nn.Linear):
    """A layer with noise, as stochastic depth has."""

    def __init__(self, dice: torch.Generator) -> None:
        super().__init__(4, 1)
        self.dice = dice


class Sampler:
    """It saves where its generator stands."""

    def __init__(self, dice: random.Random) -> None:
        self.parts = [dice]

    def state_dict(self) -> dict[str, Any]:
        return {"dice": self.parts[0].getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts[0].setstate(state["dice"])


def draw_from(dice: Any) -> float:
    return float(torch.rand(1, generator=dice)) if isinstance(dice, torch.Generator) else float(dice.random())


def closing_over(dice: Any) -> Callable[[], float]:
    return lambda: draw_from(dice)


def drawing_one_by_one(dice: Any) -> Iterator[float]:
    while True:
        yield draw_from(dice)


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "holder['augment'][0], an unregistered Random": lambda dice: {"augment": [dice]},
    "holder[0].dice, an unregistered Random": lambda dice: (Noise(dice),),
    "holder.dice, an unregistered Random": closing_over,
    "holder, an unregistered Random": drawing_one_by_one,
    "holder[1][0], an unregistered Random": lambda dice: [1, deque([dice])],
    "holder.keywords['dice'], an unregistered Random": lambda dice: partial(draw_from, dice=dice),
}
"""Where a script may keep a generator, by the message about it."""


def train_with_noise(session: Session, hold: Callable[[Any], Any]) -> Any:
    """Asserts nothing, because pytest's asserts ask for all variables."""
    dice = random.Random(1)  # noqa: S311 - nothing is secret here
    plain, holder, drawn = stepping(plainly_registered(session)), hold(dice), weakref.ref(dice)
    del dice
    train(session, lambda inputs: plain(inputs + draw_from(drawn())))
    return holder


@pytest.mark.parametrize("told", HOLDERS)
def test_a_generator_that_steps_draw_from_is_reported_wherever_the_script_keeps_it(
    join: Join, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    train_with_noise(join(), HOLDERS[told])
    assert capfd.readouterr().err.count(f"steps change {told}") == 1


def test_a_generator_in_a_registered_module_is_reported_and_one_that_is_saved_with_its_object_is_not(
    join: Join, capfd: pytest.CaptureFixture[str]
) -> None:
    session, shaky, sampler = join(), Shaky(torch.Generator()), Sampler(random.Random(1))  # noqa: S311
    model = nn.Sequential(nn.Linear(4, 4), shaky)
    optimizer = adam(model)
    session.register(model=model, optimizer=optimizer, sampler=sampler)
    plain = stepping((model, optimizer))

    def step(inputs: torch.Tensor) -> None:
        plain(inputs + draw_from(shaky.dice) + draw_from(sampler.parts[0]))

    train(session, step)
    told = [line for line in capfd.readouterr().err.splitlines() if WORDS in line]
    assert len(told) == 1
    assert "shaky.dice, an unregistered Generator" in told[0] or "model[1].dice, an unregistered" in told[0]


def test_what_was_said_is_not_said_again_where_it_is_looked_for_later(
    join: Join, capfd: pytest.CaptureFixture[str]
) -> None:
    session = join()
    step = features(session)
    with session:
        for _ in session.epochs(2):
            for inputs, _ in session.loader(samples(), 8):
                step(inputs)
                session.step()
    assert session.steps_done >= STEPS * FURTHER
    assert capfd.readouterr().err.count(CHANGED[features]) == 1


def test_the_looks_keep_nothing_alive_that_a_step_has_made(join: Join) -> None:
    """A loop that is left by `break`, or by a shorter one beside it, has to end there and then."""
    made: list[weakref.ref[torch.Tensor]] = []
    session = join()
    step = frozen(session)
    gc.disable()
    try:
        with session:
            loader, shorter = session.loader(samples(), 8), session.loader(samples(16), 8, name="shorter")
            for _ in session.epochs(3):
                for (inputs, _), _ in zip(loader, shorter, strict=False):
                    step(inputs)
                    made.append(weakref.ref(inputs))
                    session.step()
                    del inputs
    finally:
        gc.enable()
    assert session.steps_done == 6
    assert [one() for one in made[:-1]] == [None] * 5


def test_a_scaler_that_has_scaled_nothing_in_two_steps_is_not_said_to_be_forgotten(
    join: Join, capfd: pytest.CaptureFixture[str]
) -> None:
    session = join()
    idle, step = torch.amp.GradScaler("cpu"), frozen(session)
    (finding,) = perdure.describe(session).findings
    assert (finding.name, finding.certain) == ("unregistered-scaler", False), "it may be used yet"
    train(session, step)
    assert idle.is_enabled()
    assert WORDS not in capfd.readouterr().err


def test_an_optimizer_without_its_module_is_found_before_training_refuses_it(join: Join) -> None:
    session = join()
    model = network()
    session.register(optimizer=adam(model))
    (finding,) = perdure.describe(session).findings
    assert (finding.name, finding.certain) == ("optimizer-without-module", True)
    assert "optimizer 'optimizer' owns 6 parameters (25 numbers) in no registered module" in finding.text
    with pytest.raises(perdure.UserError, match="register the module too"):
        perdure.restore(session)


def test_one_that_has_stepped_in_a_single_step_is_not_said_to_train(
    join: Join, capfd: pytest.CaptureFixture[str]
) -> None:
    """As an inner loop's: here they are kept, so that it is not by their end that they are left out."""
    session = join()
    plain = frozen(session)
    inner: list[torch.optim.Optimizer] = []

    def step(inputs: torch.Tensor) -> None:
        plain(inputs)
        twin = network()
        inner.append(adam(twin))
        stepping((twin, inner[-1]))(inputs)

    train(session, step)
    assert len(inner) == 5
    assert WORDS not in capfd.readouterr().err


def test_unregistered_optimizers_are_looked_for_during_two_steps(join: Join) -> None:
    hooks = vars(sys.modules["torch.optim.optimizer"])["_global_optimizer_post_hooks"]
    before = len(hooks)
    session = join()
    told: list[int] = []

    def step(inputs: torch.Tensor) -> None:
        plain(inputs)
        told.append(len(hooks) - before)

    plain = frozen(session)
    train(session, step)
    assert told == [2, 2, 1, 1, 1], "one that uses a closure is watched as long as the session is open"
    session.close()
    join().close()
    assert len(hooks) == before, "a session that is closed before that looks no longer, either"


def previewed(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch, found: dict[str, Any]) -> list[dict[str, Any]]:
    """The findings in a script that runs up to its first batch in this process."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PERDURE_PREVIEW", str(folder))
    with contextlib.suppress(Exit):
        exec(code, found)  # noqa: S102 - our own scripts
    findings: list[dict[str, Any]] = json.loads((folder / PREVIEW_JSON).read_text())["findings"]
    return findings


MISTAKES = {
    "no-end": ("for epoch in session.epochs(): pass", "nothing would ever end this loop"),
    "no-epochs": ("perdure.restore(session)", "nothing is trained"),
    "not-saved": ("session.register(odd=Odd())\nfor epoch in session.epochs(1): next(iter(train))", "object"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_training_would_refuse_is_a_finding(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    join().close()
    code, words = MISTAKES[name]
    script = f"""
import torch, perdure
class Odd:
    def state_dict(self): return {{"odd": object()}}
    def load_state_dict(self, state): pass
with perdure.Session.from_env() as session:
    model = torch.nn.Linear(1, 1)
    session.register(model=model)
    train = session.loader(torch.utils.data.TensorDataset(torch.ones(4, 1)), batch_size=2)
    {code.replace(chr(10), chr(10) + "    ")}
"""
    (finding,) = previewed(script, tmp_path / "preview", monkeypatch, {})
    assert (finding["name"], finding["certain"]) == (name, True)
    assert words in finding["text"]


def test_a_checkpoint_of_another_model_is_found_not_to_fit(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = join()
    train(session, gan(session))
    script = """
import torch, perdure
session = perdure.Session.from_env("..")
session.register(generator=torch.nn.Linear(9, 9))
for epoch in session.epochs(5): pass
"""
    session.close()
    (finding,) = previewed(script, tmp_path / "preview", monkeypatch, {})
    assert finding["name"] == "does-not-fit"
    assert "the checkpoint holds ['critic', 'generator', 'of_critic', 'of_generator'" in finding["text"]


@pytest.mark.parametrize("name", test_docs.TRAININGS)
def test_nothing_is_found_in_an_example_of_the_page(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Before its first batch; test_docs trains on and looks at what is said then."""
    join().close()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(perdure, "Session", test_docs.Interrupted)
    example = test_docs.EXAMPLES[name]
    if '"pretrained"' in example:
        test_docs.run(test_docs.FIRST, tmp_path / "pretrained")
    monkeypatch.setenv("PERDURE_PREVIEW", str(tmp_path))
    with contextlib.suppress(Exit):
        test_docs.run(example, tmp_path / "anew")
    assert json.loads((tmp_path / PREVIEW_JSON).read_text())["findings"] == []


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_found_in_a_script_drawn_at_random(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    join().close()
    monkeypatch.setenv("PROPERTY_DIARY", str(tmp_path / "diary"))
    assert previewed(script(drawn(seed)), tmp_path / "preview", monkeypatch, {"__name__": "script"}) == []


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_that_keeps_state_in_a_single_group_is_said_to_lose_it(momentum: float) -> None:
    net = network()
    groups: list[dict[str, Any]] = [
        {"params": net[0].parameters(), "momentum": momentum},
        {"params": net[2].parameters()},
    ]
    found = findings({"net": net}, [], [torch.optim.SGD(groups)])
    assert [finding.name for finding in found] == ["unregistered-optimizer"] * bool(momentum)
