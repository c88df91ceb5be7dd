"""Models that change while they train: pruned, quantized, compiled, left out by chance, loaded from the best."""

import copy
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, kl_div
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

import perdure
from tests.recipes.held import Held


def labelled():
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(4))
    return TensorDataset(inputs, inputs[:, :4].argmax(1))


def network():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def one_epoch(session, model, optimizer, batches, loss_of=cross_entropy):
    for x, y in batches:
        optimizer.zero_grad()
        session.weighted(loss_of(model(x), y)).backward()
        optimizer.step()
        session.step()


def pruned() -> Held:
    """Torch's pruning tutorial: a fifth of the weights goes after each epoch, and parameters change their names."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(labelled(), batch_size=8)
        for _ in session.epochs(3):
            one_epoch(session, model, optimizer, batches)
            for layer in (net[0], net[2]):
                prune.l1_unstructured(layer, "weight", 0.2)
        return {"model": net, "optimizer": optimizer}


def pruned_from_the_start() -> Held:
    """The same with masks that are there from the start, and cut by hand."""
    net = network()
    for layer in (net[0], net[2]):
        prune.identity(layer, "weight")
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(labelled(), batch_size=8)
        for _ in session.epochs(3):
            one_epoch(session, model, optimizer, batches)
            for layer in (net[0], net[2]):
                mask = layer.weight_mask
                limit = layer.weight_orig.detach().abs()[mask > 0].quantile(0.2)
                mask *= (layer.weight_orig.detach().abs() > limit).float()
        return {"model": net, "optimizer": optimizer}


def quantized() -> Held:
    """Quantization-aware training: observers rest from an epoch on, then batch norm is frozen."""
    from torch.ao.quantization import FakeQuantize, MovingAveragePerChannelMinMaxObserver, disable_observer

    torch.manual_seed(6)

    class Faked(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer
            self.weights = FakeQuantize(
                MovingAveragePerChannelMinMaxObserver, quant_min=-128, quant_max=127, dtype=torch.qint8, ch_axis=0
            )
            self.outputs = FakeQuantize()

        def forward(self, x):
            return self.outputs(nn.functional.linear(x, self.weights(self.layer.weight), self.layer.bias))

    net = nn.Sequential(Faked(nn.Linear(8, 12)), nn.BatchNorm1d(12), nn.ReLU(), Faked(nn.Linear(12, 4)))
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(labelled(), batch_size=8)
        for epoch in session.epochs(4):
            net.train()
            if epoch >= 2:
                net.apply(disable_observer)
            if epoch >= 3:
                net[1].eval()
            one_epoch(session, model, optimizer, batches)
        return {"model": net, "optimizer": optimizer}


def compiled() -> Held:
    """torch.compile of the model, with dropout, and of the optimizer's step."""
    net = nn.Sequential(network(), nn.Dropout(0.1))
    with perdure.Session.from_env() as session:
        model = torch.compile(session.wrap(net), backend="aot_eager")
        optimizer = torch.optim.AdamW(net.parameters(), lr=torch.tensor(1e-2))
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
        session.register(model=model, optimizer=optimizer, scheduler=scheduler)
        batches = session.loader(labelled(), batch_size=8)
        for _ in session.epochs(2):
            one_epoch(session, model, optimizer, batches)
            scheduler.step()
        return {"model": net, "optimizer": optimizer}


class StochasticDepth(nn.Module):
    def __init__(self, layer, p):
        super().__init__()
        self.layer, self.p = layer, p

    def forward(self, x):
        kept = torch.empty(len(x), 1).bernoulli_(1 - self.p) / (1 - self.p) if self.training else 1
        return x + kept * self.layer(x)


class ModelEma(nn.Module):
    """timm's ModelEmaV3: a deep copy, a warm-up of the decay by a count that the script gives."""

    def __init__(self, model):
        super().__init__()
        self.module = copy.deepcopy(model).requires_grad_(False).eval()

    @torch.no_grad()
    def update(self, model, step):
        decay = min(0.99, 1 - (1 + step) ** (-2 / 3))
        for slow, fast in zip(self.module.state_dict().values(), model.state_dict().values(), strict=True):
            slow.lerp_(fast, 1 - decay) if slow.is_floating_point() else slow.copy_(fast)


class CosineScheduler:
    """timm's: it is no torch scheduler, its state_dict is everything but the optimizer, and it is stepped by
    updates."""

    def __init__(self, optimizer, t_initial, warmup_t):
        self.optimizer, self.t_initial, self.warmup_t = optimizer, t_initial, warmup_t
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.base_values = [group["initial_lr"] for group in optimizer.param_groups]
        self.noise_seed, self.metric = 42, None
        self.step_update(0)

    def state_dict(self):
        return {key: value for key, value in vars(self).items() if key != "optimizer"}

    def load_state_dict(self, state):
        vars(self).update(state)

    def step_update(self, updates, metric=None):
        self.metric = metric
        part = min(1.0, updates / self.warmup_t) * (1 - updates / self.t_initial)
        noise = torch.randn(1, generator=torch.Generator().manual_seed(self.noise_seed + updates)).item()
        for group, value in zip(self.optimizer.param_groups, self.base_values, strict=True):
            group["lr"] = value * max(0.0, part) * (1 + 0.1 * noise) * group.get("lr_scale", 1.0)


def timm() -> Held:
    """timm's train.py: decay by layers, stochastic depth, EMA, a schedule by updates, and the best of EMA is kept."""
    torch.manual_seed(7)
    blocks = [StochasticDepth(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()), 0.2 * i) for i in range(3)]
    net = nn.Sequential(*blocks, nn.Linear(8, 4))
    with perdure.Session.from_env() as session:
        model, ema = session.wrap(net), ModelEma(net)
        groups = [{"params": list(part.parameters()), "lr_scale": 0.7 ** (3 - i)} for i, part in enumerate(net)]
        optimizer = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.05)
        scheduler = CosineScheduler(optimizer, 24, 4)
        session.register(model=model, ema=ema, optimizer=optimizer, scheduler=scheduler)
        session.state.update(best=float("inf"), best_epoch=None)
        batches = session.loader(labelled(), batch_size=8)
        for epoch in session.epochs(3):
            for x, y in batches:
                session.weighted(cross_entropy(model(x), y, label_smoothing=0.1)).backward()
                optimizer.step()
                ema.update(net, session.steps_done)
                optimizer.zero_grad()
                scheduler.step_update(session.steps_done + 1)
                session.step()
            x, y = labelled().tensors
            score = cross_entropy(ema.module(x), y).item()
            if score < session.state["best"]:
                session.state.update(best=score, best_epoch=epoch)
        return {"model": net, "ema": ema, "optimizer": optimizer, "scheduler": scheduler, "best": session.state["best"]}


class ExponentialMovingAverage(AveragedModel):
    """torchvision's."""

    def __init__(self, model, decay):
        super().__init__(model, avg_fn=lambda old, new, _: decay * old + (1 - decay) * new, use_buffers=True)


def torchvision() -> Held:
    """torchvision's references/classification: EMA every few batches, reset in the warm-up; a schedule in two parts."""
    torch.manual_seed(8)
    net = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 4))
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        norms = [p for layer in net if isinstance(layer, nn.BatchNorm1d) for p in layer.parameters()]
        others = [p for layer in net if isinstance(layer, nn.Linear) for p in layer.parameters()]
        groups = [{"params": norms, "weight_decay": 0.0}, {"params": others, "weight_decay": 2e-5}]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=1)
        main = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, main], milestones=[1])
        ema = ExponentialMovingAverage(net, 0.8)
        session.register(model=model, optimizer=optimizer, scheduler=scheduler, ema=ema)
        batches = session.loader(labelled(), batch_size=8)
        for epoch in session.epochs(4):
            for i, (x, y) in enumerate(batches, batches.batch_index):
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y, label_smoothing=0.1)).backward()
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                if i % 3 == 0:
                    ema.update_parameters(net)
                    if epoch < 1:
                        ema.n_averaged.fill_(0)
                session.step()
            scheduler.step()
        return {"model": net, "optimizer": optimizer, "scheduler": scheduler, "ema": ema}


def detection() -> Held:
    """torchvision's references/detection: the first epoch has a warm-up of its own, a scheduler made in that epoch."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])
        session.register(model=model, optimizer=optimizer, scheduler=scheduler)
        batches = session.loader(labelled(), batch_size=4)
        for epoch in session.epochs(3):
            warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.001, total_iters=12) if epoch == 0 else None
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y)).backward()
                optimizer.step()
                if warm_up:
                    warm_up.step()
                session.step()
            scheduler.step()
        return {"model": net, "optimizer": optimizer, "scheduler": scheduler}


def transfer() -> Held:
    """Torch's transfer learning tutorial: the best weights of all epochs wait in a temporary file, and are loaded."""
    net = network()
    with perdure.Session.from_env() as session, tempfile.TemporaryDirectory() as folder:
        best = Path(folder, "best_model_params.pt")
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
        session.register(model=model, optimizer=optimizer)
        session.state["best"] = 0.0
        batches = session.loader(labelled(), batch_size=8)
        for epoch in session.epochs(3):
            one_epoch(session, model, optimizer, batches)
            score = 1.0 if epoch == 0 else 0.5
            if score > session.state["best"]:
                session.state["best"] = score
                torch.save(net.state_dict(), best)
        net.load_state_dict(torch.load(best, weights_only=True))
        return {"model": net}


def kept_best() -> Held:
    """The same, and the best weights are in session.state: a dict of tensors that is there only at times."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
        session.register(model=model, optimizer=optimizer)
        session.state["best"] = (0.0, None)
        batches = session.loader(labelled(), batch_size=8)
        for epoch in session.epochs(3):
            one_epoch(session, model, optimizer, batches)
            score = 1.0 if epoch == 1 else 0.5 / (epoch + 1)
            if score > session.state["best"][0]:
                session.state["best"] = (score, copy.deepcopy(net.state_dict()))
        net.load_state_dict(session.state["best"][1])
        return {"model": net}


def distilled() -> Held:
    """A student by a teacher that dropout makes say something else each time; the teacher is another job's."""
    torch.manual_seed(9)
    teacher = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 4)).requires_grad_(False)
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        heat = nn.Parameter(torch.tensor(2.0))
        optimizer = torch.optim.LBFGS(
            net.parameters(), lr=0.5, max_iter=4, history_size=3, line_search_fn="strong_wolfe"
        )
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(labelled(), batch_size=16)
        for _ in session.epochs(4):
            for x, _ in batches:
                target = (teacher(x) / heat.detach()).softmax(1)

                def closure():
                    optimizer.zero_grad()
                    loss = session.weighted(kl_div((model(x) / 2).log_softmax(1), target, reduction="batchmean"))
                    loss.backward()
                    return loss

                optimizer.step(closure)
                session.step()
        return {"model": net, "optimizer": optimizer}
