"""Optimizers around another one, as people write them: interrupted and resumed they train on as if nothing had been."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

import perdure
from perdure import Session, UserError
from perdure.loop.leaving import Exit
from tests.unit.runtime.session.training import Join, samples


class SAM(Optimizer):
    """The common one: its state_dict says nothing of the optimizer that it steps by."""

    def __init__(self, params: Any, base: Any, rho: float = 0.05, **options: Any) -> None:
        super().__init__(params, {"rho": rho, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = [one for group in self.param_groups for one in group["params"] if one.grad is not None]
        norm = torch.stack([one.grad.norm() for one in parameters]).norm()
        for one in parameters:
            self.state[one]["old_p"] = one.clone()
            one.add_(one.grad * (self.param_groups[0]["rho"] / (norm + 1e-12)))
        with torch.enable_grad():
            self.zero_grad()
            closure()
        for one in parameters:
            one.copy_(self.state[one]["old_p"])
        self.base_optimizer.step()

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self.base_optimizer.param_groups = self.param_groups


class OldSAM(SAM):
    """The earlier version: loading it loses what the two share."""

    def load_state_dict(self, state_dict: Any) -> None:
        Optimizer.load_state_dict(self, state_dict)


class Lookahead(Optimizer):
    """As in timm: all that it has is in the other one, and its state_dict is the other's."""

    def __init__(self, base: Optimizer) -> None:
        self._base_optimizer = base
        self.param_groups = base.param_groups
        self.defaults = base.defaults
        self.state = defaultdict(dict)
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.enable_grad():
            self._base_optimizer.step(closure)
        for group in self.param_groups:
            for one in group["params"]:
                state = self._base_optimizer.state[one]
                slow = state.setdefault("slow", one.clone())
                slow.lerp_(one, 0.5)
                one.copy_(slow)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._base_optimizer.zero_grad(set_to_none)

    def state_dict(self) -> Any:
        return self._base_optimizer.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self._base_optimizer.load_state_dict(state_dict)
        self.param_groups = self._base_optimizer.param_groups


class OfOneState(Optimizer):
    """It shares groups and state with the one that it holds, and leaves both to torch."""

    def __init__(self, inner: Optimizer) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self.inners = [inner]
        self.state = inner.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inners[0].step(closure)


MAKERS: dict[str, Callable[[Any], Optimizer]] = {
    "SAM": lambda p: SAM(p, SGD, lr=0.05, momentum=0.9),
    "old SAM": lambda p: OldSAM(p, torch.optim.AdamW, lr=0.05),
    "Lookahead": lambda p: Lookahead(torch.optim.Adam(p, lr=0.05)),
    "of one state": lambda p: OfOneState(torch.optim.Adam(p, lr=0.05)),
    "SAM around Lookahead": lambda p: SAM(
        p, lambda groups, **_: Lookahead(SGD(groups, lr=0.05, momentum=0.9)), lr=0.05
    ),
    "Lookahead around SAM": lambda p: Lookahead(SAM(p, SGD, lr=0.05, momentum=0.9)),
}


class Training:
    def __init__(self, session: Session, make: Callable[[Any], Optimizer]) -> None:
        torch.manual_seed(0)
        self.session = session
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
        self.optimizer = make(self.net.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)

    def run(self, stop: int | None = None) -> list[float]:
        with self.session as session:
            for _ in session.epochs(2):
                for inputs, _ in session.loader(samples(), 8):

                    def closure(inputs: Any = inputs) -> torch.Tensor:
                        self.optimizer.zero_grad()
                        loss: torch.Tensor = self.net(inputs).square().mean()
                        loss.backward()
                        return loss

                    closure()
                    self.optimizer.step(closure)  # type: ignore[arg-type]
                    self.scheduler.step()
                    if stop == session.steps_done + 1:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
        return [value.item() for parameter in self.net.parameters() for value in parameter.flatten()]

    def registered(self, **more: Any) -> Training:
        self.session.register(net=self.net, optimizer=self.optimizer, scheduler=self.scheduler, **more)
        return self


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_an_optimizer_around_another_one_goes_on_as_if_nothing_had_been(
    join: Join, tmp_path_factory: pytest.TempPathFactory, make: Callable[[Any], Optimizer], capfd: Any
) -> None:
    with pytest.raises(Exit):
        Training(join(), make).registered().run(stop=4)
    session = join()
    found = Training(session, make).registered()
    assert perdure.describe(session).findings == ()
    assert found.run() == Training(Session.from_env(tmp_path_factory.mktemp("straight")), make).registered().run()
    assert "unregistered" not in capfd.readouterr().err


def test_the_one_that_is_held_is_registered_with_a_name_of_its_own(join: Join, tmp_path: Path) -> None:
    with pytest.raises(Exit):
        Training(join(), MAKERS["SAM"]).registered().run(stop=4)
    saved = perdure.load(tmp_path)
    assert {"old_p"} == saved["optimizer"]["state"][0].keys()
    assert {"momentum_buffer"} == saved["optimizer_base_optimizer"]["state"][0].keys()
    with pytest.raises(UserError, match=r"'optimizer_base_optimizer'.* register the same names"):
        Training(join(), lambda p: SGD(p, lr=0.05)).registered().run()


@pytest.mark.parametrize("first", [True, False])
def test_a_script_that_registers_it_by_itself_has_its_own_name(join: Join, first: bool) -> None:
    session = join()
    training = Training(session, MAKERS["SAM"])
    assert isinstance(training.optimizer, SAM)
    base = {"base": training.optimizer.base_optimizer}
    if first:
        session.register(**base)
    training.registered(**{} if first else base)
    assert {one.name for one in perdure.describe(session).registered} == {"net", "optimizer", "scheduler", "base"}
    assert perdure.describe(session).findings == ()
    training.run()


def test_one_that_is_registered_late_brings_what_it_holds(join: Join, tmp_path: Path) -> None:
    found = {}
    for epochs in (1, 2):
        with join() as session:
            net = nn.Linear(4, 1)
            session.register(net=net)
            late: Any = None
            for _ in session.epochs(epochs):
                if late is None:
                    late = MAKERS["SAM"](net.parameters())
                    session.register(late=late)
                    found = late.base_optimizer.state_dict()["state"]
                for inputs, _ in session.loader(samples(), 8):

                    def closure(inputs: Any = inputs, net: nn.Module = net) -> None:
                        net(inputs).square().mean().backward()

                    closure()
                    late.step(closure)
                    session.step()
    assert found[0].keys() == {"momentum_buffer"}
    assert perdure.load(tmp_path, ["late_base_optimizer"])["late_base_optimizer"]["state"]


def test_state_that_is_shared_out_over_the_ranks_is_refused_where_it_is_registered(join: Join) -> None:
    session = join()
    net = nn.Linear(1, 1)
    zero = type("ZeroRedundancyOptimizer", (SGD,), {})
    for optimizer in (zero(net.parameters(), lr=0.1), SAM(net.parameters(), zero, lr=0.1)):
        with pytest.raises(UserError, match="a ZeroRedundancyOptimizer keeps a part of its state on each rank"):
            session.register(optimizer=optimizer)
    assert perdure.describe(session).registered == ()


@pytest.mark.parametrize("base", [nn.Module, SGD])
def test_what_deepspeed_has_made_is_refused_where_it_is_registered(join: Join, base: type[Any]) -> None:
    theirs = type("Engine", (base,), {"__module__": "deepspeed.runtime.engine"})
    own = type("Mine", (theirs,), {"__init__": lambda _: None})
    session = join()
    with pytest.raises(UserError, match=r"register\(it=...\): DeepSpeed's Mine keeps a part of the state on each rank"):
        session.register(it=own())
    assert perdure.describe(session).registered == ()


def test_a_state_dict_that_is_none_of_an_optimizer_is_refused_where_it_is_registered(join: Join) -> None:
    class Own(Lookahead):
        def state_dict(self) -> Any:
            return {"fast": super().state_dict(), "steps": self.steps}

    with pytest.raises(UserError, match="the state_dict of this Own has no param_groups and no state, as every"):
        join().register(optimizer=Own(SGD(nn.Linear(1, 1).parameters(), lr=0.1)))
