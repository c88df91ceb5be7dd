"""Optimizers that people write or copy: with slow weights, Hessians, modes and scales, and averages of what they do."""

import random
from collections import defaultdict

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import TensorDataset

import perdure
from tests.recipes.held import Held, stepped_by_hand


def labelled(samples=64, width=8):
    inputs = torch.randn(samples, width, generator=torch.Generator().manual_seed(3))
    return TensorDataset(inputs, inputs[:, :4].argmax(1))


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 4))


def averaged() -> Held:
    """SWA by torch's documentation: from an epoch on another schedule, an average, and its batch norm at the end."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        average = AveragedModel(net)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
        swa = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
        session.register(model=model, optimizer=optimizer, average=average, falling=falling, swa=swa)
        batches = session.loader(labelled(), batch_size=8)
        for epoch in session.epochs(4):
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y)).backward()
                optimizer.step()
                session.step()
            if epoch >= 1:
                average.update_parameters(net)
                swa.step()
            else:
                falling.step()
        update_bn(torch.utils.data.DataLoader(labelled(), 8), average)
        return {"model": net, "optimizer": optimizer, "average": average, "rates": [falling, swa]}


class Lookahead(torch.optim.Optimizer):
    """The one that is copied most: an optimizer around another, slow weights in its own state, counts in groups."""

    def __init__(self, optimizer, k=5, alpha=0.5):
        self.optimizer, self.k, self.alpha = optimizer, k, alpha
        self.param_groups = self.optimizer.param_groups
        self.state = defaultdict(dict)
        self.fast_state = self.optimizer.state
        for group in self.param_groups:
            group["counter"] = 0

    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        for group in self.param_groups:
            if group["counter"] == 0:
                for fast in group["params"]:
                    state = self.state[fast]
                    if "slow" not in state:
                        state["slow"] = fast.detach().clone()
                    state["slow"] += (fast.detach() - state["slow"]) * self.alpha
                    fast.data.copy_(state["slow"])
            group["counter"] = (group["counter"] + 1) % self.k
        return loss

    def zero_grad(self):
        self.optimizer.zero_grad()

    def state_dict(self):
        fast = self.optimizer.state_dict()
        slow = dict(enumerate(self.state.values()))
        return {"state": fast["state"], "slow_state": slow, "param_groups": fast["param_groups"]}

    def load_state_dict(self, state):
        self.optimizer.load_state_dict({"state": state["state"], "param_groups": state["param_groups"]})
        self.param_groups, self.fast_state = self.optimizer.param_groups, self.optimizer.state
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for weight, (_, slow) in zip(weights, sorted(state["slow_state"].items()), strict=False):
            self.state[weight] = slow


def plain_training(session, net, optimizer):
    model = session.wrap(net)
    batches = session.loader(labelled(), batch_size=8)
    for _ in session.epochs(2):
        for x, y in batches:
            optimizer.zero_grad()
            session.weighted(cross_entropy(model(x), y)).backward()
            optimizer.step()
            session.step()


def lookahead() -> Held:
    """Lookahead around Adam."""
    net = network()
    with perdure.Session.from_env() as session:
        optimizer = Lookahead(torch.optim.Adam(net.parameters(), lr=1e-2))
        session.register(model=net, optimizer=optimizer)
        plain_training(session, net, optimizer)
        return {"model": net, "optimizer": optimizer}


class Remembering(torch.optim.SGD):
    """Slow weights and a counter in plain attributes, which no state_dict has."""

    def __init__(self, params, lr):
        super().__init__(params, lr=lr, momentum=0.9)
        self.counter, self.slow = 0, [p.detach().clone() for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        self.counter += 1
        if self.counter % 4 == 0:
            weights = [p for group in self.param_groups for p in group["params"]]
            for slow, fast in zip(self.slow, weights, strict=True):
                slow.lerp_(fast, 0.5)
                fast.copy_(slow)


def attributes() -> Held:
    """An optimizer whose slow weights are in plain attributes."""
    net = network()
    with perdure.Session.from_env() as session:
        optimizer = Remembering(net.parameters(), 0.05)
        session.register(model=net, optimizer=optimizer)
        plain_training(session, net, optimizer)
        return {"model": net, "optimizer": optimizer, "slow": optimizer.slow}


class Sophia(torch.optim.Optimizer):
    """Its Hessian is renewed every few steps, by a second backward pass on sampled labels."""

    def __init__(self, params, lr=1e-2, betas=(0.9, 0.95), rho=0.04):
        super().__init__(params, {"lr": lr, "betas": betas, "rho": rho})

    @torch.no_grad()
    def update_hessian(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                old = state.setdefault("hessian", torch.zeros_like(p))
                old.mul_(group["betas"][1]).addcmul_(p.grad, p.grad, value=1 - group["betas"][1])

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                mean = state.setdefault("exp_avg", torch.zeros_like(p))
                mean.mul_(group["betas"][0]).add_(p.grad, alpha=1 - group["betas"][0])
                state["step"] = state.get("step", 0) + 1
                by = (mean.abs() / (group["rho"] * state["hessian"] + 1e-15)).clamp(max=1)
                p.addcmul_(mean.sign(), by, value=-group["lr"])


def hessians() -> Held:
    """Sophia-G."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = Sophia(net.parameters())
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(labelled(), batch_size=8)
        for _ in session.epochs(2):
            for x, y in batches:
                if session.steps_done % 3 == 0:
                    logits = model(x)
                    sampled = torch.distributions.Categorical(logits=logits.detach()).sample()
                    session.weighted(cross_entropy(logits, sampled)).backward()
                    optimizer.update_hessian()
                    optimizer.zero_grad(set_to_none=True)
                session.weighted(cross_entropy(model(x), y)).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                session.step()
        return {"model": net, "optimizer": optimizer}


class ScheduleFree(torch.optim.Optimizer):
    """As Meta's: the weights are at y in training and at x in evaluation; modes and sums are in the groups."""

    def __init__(self, params, lr=0.05, beta=0.9):
        groups = {"lr": lr, "beta": beta, "k": 0, "train_mode": False, "weight_sum": 0.0, "lr_max": -1.0}
        super().__init__(params, groups)

    @torch.no_grad()
    def _to(self, train):
        for group in self.param_groups:
            if group["train_mode"] != train:
                for p in group["params"]:
                    if "z" in self.state[p]:
                        p.lerp_(self.state[p]["z"], 1 - group["beta"] if train else 1 - 1 / group["beta"])
                group["train_mode"] = train

    def train(self):
        self._to(True)

    def eval(self):
        self._to(False)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            if not group["train_mode"]:
                raise RuntimeError("call optimizer.train() before the first step")
            lr = group["lr"] * min(1, (group["k"] + 1) / 5)
            group["lr_max"] = max(lr, group["lr_max"])
            group["weight_sum"] += group["lr_max"] ** 2
            part = group["lr_max"] ** 2 / group["weight_sum"]
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.clone())
                p.lerp_(z, part).add_(p.grad, alpha=lr * (group["beta"] * (1 - part) - 1))
                z.sub_(p.grad, alpha=lr)
            group["k"] += 1


def schedule_free() -> Held:
    """Schedule-free SGD, which the script switches to evaluation and back in the middle of an epoch and at its end."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = ScheduleFree(net.parameters())
        session.register(model=model, optimizer=optimizer)
        session.state["scores"] = []
        batches = session.loader(labelled(), batch_size=8)

        def evaluate():
            optimizer.eval()
            net.eval()
            x, y = labelled().tensors
            session.state["scores"].append(cross_entropy(net(x), y).item())
            optimizer.train()
            net.train()

        for _ in session.epochs(2):
            net.train()
            optimizer.train()
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y)).backward()
                optimizer.step()
                session.step()
                if session.steps_done % 3 == 0:
                    evaluate()
            evaluate()
        optimizer.eval()
        return {"model": net, "optimizer": optimizer, "scores": session.state["scores"]}


def scaled() -> Held:
    """A GradScaler on the CPU with float16, whose scale grows and falls, and steps that are left out."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.Adagrad(net.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)
        session.register(model=model, optimizer=optimizer, scaler=scaler)
        batches = session.loader(labelled(), batch_size=8)
        for _ in session.epochs(2):
            for x, y in batches:
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    loss = session.weighted(cross_entropy(model(x), y))
                if session.steps_done % 5 == 4:
                    loss = loss * torch.inf
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                session.step()
        return {"model": net, "optimizer": optimizer, "scaler": scaler}


def muon() -> Held:
    """Muon for the matrices and AdamW for the rest, as speed runs do it, momentum warmed up by hand in the groups."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        matrices = [p for p in net.parameters() if p.dim() == 2]
        others = [p for p in net.parameters() if p.dim() != 2]
        optimizers = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=3e-3, fused=True)]
        session.register(model=model, muon=optimizers[0], adam=optimizers[1])
        batches = session.loader(labelled(), batch_size=8)
        for _ in session.epochs(2):
            for x, y in batches:
                optimizers[0].param_groups[0]["momentum"] = min(0.95, 0.85 + session.steps_done / 100)
                session.weighted(cross_entropy(model(x), y)).backward()
                for optimizer in optimizers:
                    optimizer.step()
                net.zero_grad()
                session.step()
        return {"model": net, "optimizers": optimizers}


class Velocities:
    """Momentum by hand, as something that can be registered."""

    def __init__(self, weights):
        self.kept = [torch.zeros_like(weight) for weight in weights]

    def state_dict(self):
        return {"kept": self.kept}

    def load_state_dict(self, state):
        for own, restored in zip(self.kept, state["kept"], strict=True):
            own.copy_(restored)


def by_hand(session, net, velocities):
    """SGD with momentum as the textbook Dive into Deep Learning writes it."""
    model = session.wrap(net)
    batches = session.loader(labelled(), batch_size=8)
    for _ in session.epochs(2):
        for x, y in batches:
            session.weighted(cross_entropy(model(x), y)).backward()
            with torch.no_grad():
                for p, v in zip(net.parameters(), velocities, strict=True):
                    v[:] = 0.9 * v + p.grad
                    p[:] -= 0.05 * v
                    p.grad.data.zero_()
            stepped_by_hand()
            session.step()


def momentum_by_hand() -> Held:
    """No optimizer, and its momentum in a list."""
    net = network()
    with perdure.Session.from_env() as session:
        velocities = [torch.zeros_like(weight) for weight in net.parameters()]
        session.register(model=net)
        by_hand(session, net, velocities)
        return {"model": net, "velocities": velocities}


def registered_momentum() -> Held:
    """The same, in an object that is registered."""
    net = network()
    with perdure.Session.from_env() as session:
        velocities = Velocities(net.parameters())
        session.register(model=net, velocities=velocities)
        by_hand(session, net, velocities.kept)
        return {"model": net, "velocities": velocities}


def noisy_gradients() -> Held:
    """Gradient noise that is annealed, from a torch.Generator of the script's own."""
    net = network()
    dice = torch.Generator().manual_seed(7)
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(labelled(), batch_size=8)
        for _ in session.epochs(2):
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y)).backward()
                for p in net.parameters():
                    p.grad += torch.randn(p.shape, generator=dice) * 0.1 / (1 + session.steps_done) ** 0.55
                optimizer.step()
                session.step()
        return {"model": net, "optimizer": optimizer, "dice": dice}


class Dice:
    """The same generator, as something that can be registered."""

    def __init__(self, seed):
        self.of_torch, self.of_python = torch.Generator().manual_seed(seed), random.Random(seed)

    def state_dict(self):
        return {"torch": self.of_torch.get_state(), "python": self.of_python.getstate()}

    def load_state_dict(self, state):
        self.of_torch.set_state(state["torch"])
        self.of_python.setstate(state["python"])


def registered_dice() -> Held:
    """Gradient noise and dropped steps from generators of the script's own, which are registered."""
    net, dice = network(), Dice(7)
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.Rprop(net.parameters(), lr=0.01)
        session.register(model=model, optimizer=optimizer, dice=dice)
        batches = session.loader(labelled(), batch_size=8)
        for _ in session.epochs(2):
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y)).backward()
                for p in net.parameters():
                    p.grad += torch.randn(p.shape, generator=dice.of_torch) * 0.01
                if dice.of_python.random() < 0.8:
                    optimizer.step()
                session.step()
        return {"model": net, "optimizer": optimizer, "dice": dice}
