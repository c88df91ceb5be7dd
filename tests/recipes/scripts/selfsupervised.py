"""Contrast and self-distillation: queues, momentum encoders, centres, and schedules of all of them."""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import TensorDataset

import perdure
from tests.recipes.held import Held


def samples() -> TensorDataset:
    return TensorDataset(torch.randn(60, 8, generator=torch.Generator().manual_seed(8)))


class MoCo(nn.Module):
    """Two encoders, and a queue of keys with a pointer, all in buffers and parameters of one module."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder_q, self.encoder_k = nn.Linear(8, 4), nn.Linear(8, 4).requires_grad_(False)
        self.encoder_k.load_state_dict(self.encoder_q.state_dict())
        self.register_buffer("queue", normalize(torch.randn(4, 20), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        query = normalize(self.encoder_q(one), dim=1)
        with torch.no_grad():
            for slow, fast in zip(self.encoder_k.parameters(), self.encoder_q.parameters(), strict=True):
                slow.copy_(slow * 0.9 + fast * 0.1)
            key = normalize(self.encoder_k(other), dim=1)
        logits = torch.cat([(query * key).sum(1, keepdim=True), query @ torch.as_tensor(self.queue).clone()], 1) / 0.07
        start = int(self.pointer)
        self.queue[:, start : start + len(key)] = key.T
        self.pointer[0] = (start + len(key)) % 20
        return cross_entropy(logits, torch.zeros(len(key), dtype=torch.long))


def queue() -> Held:
    """MoCo, with a cosine whose rate is set by hand in each epoch, as its script does it."""
    torch.manual_seed(1)
    with perdure.Session.from_env() as session:
        net = MoCo()
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.encoder_q.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(samples(), batch_size=5)
        for epoch in session.epochs(2):
            for group in optimizer.param_groups:
                group["lr"] = 0.03 * 0.5 * (1 + math.cos(math.pi * epoch / 2))
            for (x,) in batches:
                loss = session.weighted(model(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                session.step()
        return {"model": net, "optimizer": optimizer}


class Contrast(nn.Module):
    """MoCo for several ranks: all put all ranks' keys into their queues, which so stay the same."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder_q = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
        self.encoder_k = copy.deepcopy(self.encoder_q).requires_grad_(False)
        self.register_buffer("queue", normalize(torch.randn(4, 20), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def momentum_update_key_encoder(self) -> None:
        for slow, fast in zip(self.encoder_k.parameters(), self.encoder_q.parameters(), strict=True):
            slow.data = slow.data * 0.9 + fast.data * 0.1

    @torch.no_grad()
    def dequeue_and_enqueue(self, keys: Tensor) -> None:
        start = int(self.queue_ptr)
        self.queue[:, start : start + len(keys)] = keys.T
        self.queue_ptr[0] = (start + len(keys)) % 20

    def forward(self, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        query = normalize(self.encoder_q(one), dim=1)
        with torch.no_grad():
            key = normalize(self.encoder_k(other), dim=1)
        logits = torch.cat([(query * key).sum(1, keepdim=True), query @ self.queue.clone().detach()], 1) / 0.07
        return cross_entropy(logits, torch.zeros(len(key), dtype=torch.long)), key


def queue_of_all_ranks() -> Held:
    """MoCo on any number of ranks, whose keys are gathered before they are queued."""
    torch.manual_seed(4)
    with perdure.Session.from_env() as session:
        net = Contrast()
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.encoder_q.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(samples(), batch_size=4)
        for _ in session.epochs(2):
            for (x,) in batches:
                net.momentum_update_key_encoder()
                loss, key = model(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x))
                optimizer.zero_grad()
                session.weighted(loss).backward()
                optimizer.step()
                net.dequeue_and_enqueue(torch.cat([torch.tensor(one) for one in perdure.gather(session, key.tolist())]))
                session.step()
        return {"model": net, "optimizer": optimizer}


class DINOLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(1, 6))

    def forward(self, student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        target = ((teacher - self.center) / temperature).softmax(-1).detach()
        self.center = self.center * 0.9 + teacher.mean(0, keepdim=True).detach() * 0.1
        return -(target * (student / 0.1).log_softmax(-1)).sum(-1).mean()


def self_distillation(whole: bool) -> Held:
    torch.manual_seed(2)
    with perdure.Session.from_env() as session:
        head = weight_norm(nn.Linear(6, 6, bias=False))
        head.parametrizations.weight.original0.data.fill_(1)
        head.parametrizations.weight.original0.requires_grad_(False)
        student = nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Dropout(0.2), head)
        teacher = copy.deepcopy(student).requires_grad_(False).eval()
        model, criterion = session.wrap(student), DINOLoss()
        optimizer = torch.optim.AdamW(student.parameters(), lr=5e-3)
        session.register(student=model, teacher=teacher, optimizer=optimizer)
        if whole:
            session.register(criterion=criterion)
        batches = session.loader(samples(), batch_size=6)
        for epoch in session.epochs(3):
            for (x,) in batches:
                for group in optimizer.param_groups:
                    group["weight_decay"] = 0.04 + 0.01 * session.steps_done
                views = x + 0.2 * torch.randn(2, *x.shape)
                loss = session.weighted(criterion(model(views[0]), teacher(views[1]), 0.04 + 0.01 * epoch))
                optimizer.zero_grad()
                loss.backward()
                if epoch < 1:
                    head.parametrizations.weight.original1.grad = None
                optimizer.step()
                momentum = 1 - 0.1 * (1 + math.cos(math.pi * session.steps_done / 30)) / 2
                with torch.no_grad():
                    for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                        slow.mul_(momentum).add_((1 - momentum) * fast)
                session.step()
        return {"student": student, "teacher": teacher, "criterion": criterion, "optimizer": optimizer}


def dino() -> Held:
    """DINO: a centre in the loss's buffer, a slow teacher, a last layer by weight norm that rests at first."""
    return self_distillation(whole=True)


def forgotten_centre() -> Held:
    """The same, with the loss not registered."""
    return self_distillation(whole=False)


def late_predictor() -> Held:
    """BYOL, whose target is synchronised every seven steps (a hard update), and registered nowhere."""
    torch.manual_seed(3)
    with perdure.Session.from_env() as session:
        online, predictor = nn.Linear(8, 4), nn.Linear(4, 4)
        target = copy.deepcopy(online).requires_grad_(False)
        optimizer = torch.optim.Adam([*online.parameters(), *predictor.parameters()], lr=1e-2)
        session.register(online=online, predictor=predictor, optimizer=optimizer)
        batches = session.loader(samples(), batch_size=6)
        for _ in session.epochs(4):
            for (x,) in batches:
                guess = normalize(predictor(online(x + 0.1 * torch.randn_like(x))), dim=1)
                loss = (guess - normalize(target(x), dim=1)).square().sum(1).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if session.steps_done % 7 == 6:
                    target.load_state_dict(online.state_dict())
                session.step()
        return {"online": online, "predictor": predictor, "target": target, "optimizer": optimizer}
