"""Values that change by themselves in a training: rates, momenta, thaws, and numbers in modules that are not usually
state."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

import perdure
from tests.recipes.held import Held


def labelled():
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(4))
    return TensorDataset(inputs, inputs[:, :4].argmax(1))


def network():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 4))


def one_cycle() -> Held:
    """OneCycleLR with a rate for each group, and momentum that goes the other way."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        groups = [{"params": net[0].parameters()}, {"params": net[1:].parameters()}]
        optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.95, 0.99))
        batches = session.loader(labelled(), batch_size=8)
        scheduler = lr_scheduler.OneCycleLR(optimizer, [1e-2, 3e-2], epochs=3, steps_per_epoch=len(batches))
        session.register(model=model, optimizer=optimizer, scheduler=scheduler)
        for _ in session.epochs(3):
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y)).backward()
                optimizer.step()
                scheduler.step()
                session.step()
        return {"model": net, "optimizer": optimizer, "scheduler": scheduler}


def evaluating_for_ever() -> Held:
    """Statistics are frozen from the second step on, and modes set by the evaluation below each batch loop are never
    set back."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(labelled(), batch_size=8)
        valid = session.loader(labelled(), batch_size=32, name="valid", train=False)
        model.train()
        for _ in session.epochs(3):
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y)).backward()
                optimizer.step()
                session.step()
                if session.steps_done == 1:
                    net[1].eval()
            model.eval()
            with torch.no_grad():
                for x, _ in valid:
                    model(x)
        modes = [part.training for part in (model, *net.modules())]
        return {"model": net, "optimizer": optimizer, "modes": modes}


def plateau() -> Held:
    """Early stopping and a plateau's schedule, both on an average of the loss that goes on over the epochs."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, cooldown=1, threshold=0.2)
        session.register(model=model, optimizer=optimizer, scheduler=scheduler)
        session.state.update(average=None, best=float("inf"), since=0)
        batches = session.loader(labelled(), batch_size=8)
        for _ in session.epochs(6):
            for x, y in batches:
                optimizer.zero_grad()
                loss = session.weighted(cross_entropy(model(x), y))
                loss.backward()
                optimizer.step()
                average = session.state["average"]
                session.state["average"] = loss.item() if average is None else 0.9 * average + 0.1 * loss.item()
                session.step()
            scheduler.step(session.state["average"])
            better = session.state["average"] < session.state["best"] - 0.15
            session.state["since"] = 0 if better else session.state["since"] + 1
            session.state["best"] = min(session.state["best"], session.state["average"])
            if session.state["since"] >= 2:
                session.stop("no better")
        return {"model": net, "optimizer": optimizer, "scheduler": scheduler, "state": dict(session.state)}


def restarts() -> Held:
    """Cosine with warm restarts by fractions of an epoch, and a snapshot of the weights at each restart."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
        scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=1, T_mult=2)
        session.register(model=model, optimizer=optimizer, scheduler=scheduler)
        session.state["snapshots"] = []
        batches = session.loader(labelled(), batch_size=8)
        for epoch in session.epochs(3):
            for i, (x, y) in enumerate(batches, batches.batch_index):
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y)).backward()
                optimizer.step()
                scheduler.step(epoch + i / len(batches))
                session.step()
            if epoch in (0, 2):
                copied = {name: tensor.clone() for name, tensor in net.state_dict().items()}
                session.state["snapshots"] = [*session.state["snapshots"], copied]
        return {"model": net, "scheduler": scheduler, "snapshots": session.state["snapshots"]}


def chained() -> Held:
    """Warm-up, plateau and decay in a SequentialLR, beside a MultiplicativeLR that multiplies what it finds."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
        parts = [lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 4), lr_scheduler.ConstantLR(optimizer, 1.0, 4)]
        parts.append(lr_scheduler.PolynomialLR(optimizer, 8, power=2.0))
        scheduler = lr_scheduler.SequentialLR(optimizer, parts, milestones=[4, 8])
        shrinking = lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.9)
        session.register(model=model, optimizer=optimizer, scheduler=scheduler, shrinking=shrinking)
        batches = session.loader(labelled(), batch_size=8)
        for _ in session.epochs(3):
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y)).backward()
                optimizer.step()
                scheduler.step()
                session.step()
            shrinking.step()
        return {"model": net, "optimizer": optimizer, "scheduler": scheduler}


def thawing() -> Held:
    """ULMFiT: one layer more in each epoch, each in a group of its own with a smaller rate."""
    net = network()
    with perdure.Session.from_env() as session:
        net.requires_grad_(False)
        net[4].requires_grad_(True)
        optimizer = torch.optim.Adam(net[4].parameters(), lr=1e-2)
        session.register(model=net, optimizer=optimizer)
        batches = session.loader(labelled(), batch_size=8)
        for epoch in session.epochs(3):
            for number, layer in enumerate((net[1], net[0]), 1):
                if epoch >= number and len(optimizer.param_groups) == number:
                    layer.requires_grad_(True)
                    optimizer.add_param_group({"params": list(layer.parameters()), "lr": 1e-2 / 2.6**number})
            for x, y in batches:
                optimizer.zero_grad()
                cross_entropy(net(x), y).backward()
                optimizer.step()
                session.step()
        return {"model": net, "optimizer": optimizer}


def quiet_batch_norm() -> Held:
    """PointNet's schedule of batch norm: in each epoch its momentum is multiplied where it is."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(labelled(), batch_size=8)
        for _ in session.epochs(5):
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y)).backward()
                optimizer.step()
                session.step()
            net[1].momentum *= 0.5
        return {"model": net, "momentum": net[1].momentum}


def rising_dropout() -> Held:
    """Dropout and label smoothing that rise a little with each step, in the modules' own numbers."""
    net = network()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.0)
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(labelled(), batch_size=8)
        for _ in session.epochs(2):
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(criterion(model(x), y)).backward()
                optimizer.step()
                net[3].p += 0.02
                criterion.label_smoothing += 0.01
                session.step()
        return {"model": net, "numbers": [net[3].p, criterion.label_smoothing]}


def dropping_once() -> Held:
    """Dropout that rises in one epoch, and stays so: found in the next look."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(labelled(), batch_size=8)
        for epoch in session.epochs(4):
            if epoch == 2:
                net[3].p = 0.5
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y)).backward()
                optimizer.step()
                session.step()
        return {"model": net, "dropout": net[3].p}


def rising_smoothing() -> Held:
    """Label smoothing alone, in a criterion that has no tensor at all."""
    net = network()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.0)
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(labelled(), batch_size=8)
        for _ in session.epochs(2):
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(criterion(model(x), y)).backward()
                optimizer.step()
                criterion.label_smoothing += 0.01
                session.step()
        return {"model": net, "numbers": criterion.label_smoothing}


def thawed(from_then_on: bool) -> Held:
    net = network()
    with perdure.Session.from_env() as session:
        net[0].requires_grad_(False)
        model = session.wrap(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(labelled(), batch_size=8)
        for epoch in session.epochs(4):
            if epoch == 1 or (from_then_on and epoch > 1):
                net[0].requires_grad_(True)
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y)).backward()
                optimizer.step()
                session.step()
        return {"model": net, "optimizer": optimizer}


def thawed_from_then_on() -> Held:
    """A head first, then all: the body is thawed in each epoch from one on, and so in each resumed run."""
    return thawed(from_then_on=True)


def thawed_once() -> Held:
    """The same by `==`: what is thawed stays so in a resumed run."""
    return thawed(from_then_on=False)
