"""What people add to a training: mixed batches, a search for the rate, a teacher, adversaries, weights by group."""

import copy
import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset, default_collate

import perdure
from tests.recipes.held import Held


def labelled(samples=64, width=8, seed=3):
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, width, generator=made)
    return TensorDataset(x, (x.sum(1) > 0).long() + 2 * (x[:, 0] > 0).long())


def network():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))


def cut_or_mixed(batch):
    """As torchvision's v2.RandomChoice([CutMix, MixUp]) draws: from torch's global generator."""
    x, y = default_collate(batch)
    y = one_hot(y, 4).float()
    share = float(torch._sample_dirichlet(torch.tensor([1.0, 1.0]))[0])
    if torch.rand(1) < 0.5:
        return share * x + (1 - share) * x.roll(1, 0), share * y + (1 - share) * y.roll(1, 0)
    row, column = torch.randint(8, (2,)).tolist()
    half = round(4 * math.sqrt(1 - share))
    rows, columns = slice(max(0, row - half), row + half), slice(max(0, column - half), column + half)
    other = x.roll(1, 0)[..., rows, columns].clone()
    x[..., rows, columns] = other
    share = 1 - other.shape[-1] * other.shape[-2] / 64
    return x, share * y + (1 - share) * y.roll(1, 0)


def cutmix() -> Held:
    """Torchvision's page on CutMix and MixUp: either, in the collate function."""
    made = torch.Generator().manual_seed(1)
    pictures = TensorDataset(torch.rand(48, 3, 8, 8, generator=made), torch.arange(48) % 4)
    torch.manual_seed(5)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(pictures, batch_size=8, collate_fn=cut_or_mixed)
        for _ in session.epochs(3):
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y)).backward()
                optimizer.step()
                session.step()
        return {"model": net, "optimizer": optimizer}


class Tied(nn.Module):
    """A language model whose head is its embedding, with recomputed blocks."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 12)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(12, 2, 24, 0.2, batch_first=True) for _ in range(2))
        self.head = nn.Linear(12, 16, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        found = self.embedding(tokens)
        for block in self.blocks:
            found = checkpoint(block, found, use_reentrant=False)
        return self.head(found)


def recomputed() -> Held:
    """Weight tying, activation checkpointing with dropout, clipping, and a warm-up with a cosine behind it."""
    torch.manual_seed(5)
    net = Tied()
    text = torch.randint(0, 16, (48, 9), generator=torch.Generator().manual_seed(2))
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / 4, 0.5 * (1 + math.cos(math.pi * step / 18)))
        )
        session.register(model=model, optimizer=optimizer, scheduler=scheduler)
        batches = session.loader(TensorDataset(text), batch_size=8)
        for _ in session.epochs(3):
            for (x,) in batches:
                optimizer.zero_grad()
                loss = cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
                session.weighted(loss).backward()
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                session.step()
        return {"model": net, "optimizer": optimizer, "scheduler": scheduler}


def parametrized() -> Held:
    """Spectral norm with its power iteration's vectors, weight norm, and an orthogonal layer."""
    torch.manual_seed(5)
    net = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(8, 16)),
        nn.ReLU(),
        parametrizations.weight_norm(nn.Linear(16, 16)),
        nn.ReLU(),
        parametrizations.orthogonal(nn.Linear(16, 4)),
    )
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(labelled(), batch_size=8)
        for _ in session.epochs(3):
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y)).backward()
                optimizer.step()
                session.step()
        return {"model": net, "optimizer": optimizer}


def range_test() -> Held:
    """A range test finds the rate before training, on the same model, and puts everything back."""
    net, data = network(), labelled()
    before = copy.deepcopy(net.state_dict())
    losses, rate = [], 1e-3
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        loss = cross_entropy(net(x), y)
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for one, gradient in zip(net.parameters(), gradients, strict=True):
                one.sub_(rate * gradient)
        losses.append((loss.item(), rate))
        rate *= 3
    net.load_state_dict(before)
    with perdure.Session.from_env() as session:
        session.state["lr"] = min(losses)[1] / 10
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=session.state["lr"], momentum=0.9)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(data, batch_size=8)
        for _ in session.epochs(3):
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y)).backward()
                optimizer.step()
                session.step()
        return {"model": net, "optimizer": optimizer, "rate": session.state["lr"]}


def mean_teacher() -> Held:
    """Consistency with an averaged teacher on unlabelled samples, whose weight rises with the steps."""
    net = network()
    teacher = copy.deepcopy(net).requires_grad_(False)
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        session.register(model=model, optimizer=optimizer, teacher=teacher)
        some = session.loader(labelled(), batch_size=8)
        unlabelled = session.loader(labelled(128, seed=4), batch_size=16, name="unlabelled")
        for _ in session.epochs(3):
            for (x, y), (more, _) in zip(some, unlabelled, strict=True):
                share = min(1.0, session.steps_done / 12)
                noisy = more + 0.1 * torch.randn_like(more)
                optimizer.zero_grad()
                loss = cross_entropy(model(x), y) + share * mse_loss(model(noisy), teacher(more))
                session.weighted(loss).backward()
                optimizer.step()
                for mine, its in zip(teacher.parameters(), net.parameters(), strict=True):
                    mine.mul_(0.95).add_(its.detach(), alpha=0.05)
                session.step()
        return {"model": net, "teacher": teacher}


def attacked(net, x, y):
    """Three steps of projected gradients from a random start."""
    delta = torch.empty_like(x).uniform_(-0.3, 0.3).requires_grad_()
    for _ in range(3):
        (gradient,) = torch.autograd.grad(cross_entropy(net(x + delta), y), delta)
        delta = (delta + 0.1 * gradient.sign()).clamp(-0.3, 0.3).detach().requires_grad_()
    return x + delta.detach()


def adversaries() -> Held:
    """Adversarial training, as in most repositories: the attack is on the network in eval mode."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], 0.3)
        session.register(model=model, optimizer=optimizer, scheduler=scheduler)
        batches = session.loader(labelled(), batch_size=8)
        for _ in session.epochs(3):
            for x, y in batches:
                net.eval()
                worse = attacked(net, x, y)
                net.train()
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(worse), y)).backward()
                optimizer.step()
                session.step()
            scheduler.step()
        return {"model": net, "optimizer": optimizer, "scheduler": scheduler}


def wrapped_adversaries() -> Held:
    """The same with one network on all ranks: the wrapped one is attacked."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(labelled(), batch_size=8)
        for _ in session.epochs(3):
            for x, y in batches:
                model.eval()
                with model.no_sync():
                    worse = attacked(model, x, y)
                model.train()
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(worse), y)).backward()
                optimizer.step()
                session.step()
        return {"model": net, "optimizer": optimizer}


class Groups(nn.Module):
    """Group DRO: groups with a larger loss get a larger weight."""

    weights: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("weights", torch.ones(4) / 4)

    def forward(self, losses, group):
        of_groups = torch.stack([losses[group == one].sum() / (group == one).sum().clamp(1) for one in range(4)])
        with torch.no_grad():
            self.weights *= (0.1 * of_groups).exp()
            self.weights /= self.weights.sum()
        return (of_groups * self.weights).sum()


def group_weights() -> Held:
    net, groups = network(), Groups()
    with perdure.Session.from_env() as session:
        optimizer = torch.optim.Adagrad(net.parameters(), lr=0.05)
        session.register(model=net, optimizer=optimizer, groups=groups)
        batches = session.loader(labelled(), batch_size=16)
        for _ in session.epochs(4):
            for x, y in batches:
                optimizer.zero_grad()
                groups(cross_entropy(net(x), y, reduction="none"), y).backward()
                optimizer.step()
                session.step()
        return {"model": net, "groups": groups}


def averaged_in_a_dict() -> Held:
    """The EMA of many notebooks: a dict of clones, whose weights are swapped in at the end."""
    net = network()
    shadow = {name: one.detach().clone() for name, one in net.named_parameters()}
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(labelled(), batch_size=8)
        for _ in session.epochs(2):
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y)).backward()
                optimizer.step()
                with torch.no_grad():
                    for name, one in net.named_parameters():
                        shadow[name].mul_(0.99).add_(one, alpha=0.01)
                session.step()
        net.load_state_dict(shadow, strict=False)
        return {"model": net}
