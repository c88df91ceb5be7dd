"""What ranks do in test_sharded: they train a model that is sharded as torch's documentation says, and are watched.

The oracle is torch: each tensor is gathered by `full_tensor()` and hashed, and each rank's own part is hashed, too.
"""

from __future__ import annotations

import gc
import hashlib
import io
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy, gelu, one_hot
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import TensorDataset

import perdure
from perdure.live import liveness
from perdure.loop.leaving import Exit
from perdure.session.functions import restore
from perdure.session.session import Session

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "sharded.md"
WORDS = 37
BATCH = 12
SAMPLES = 72

OPTIMIZERS: Mapping[str, Callable[[Any], torch.optim.Optimizer]] = {
    "loop": lambda some: torch.optim.AdamW(some, lr=1e-2, foreach=False),
    "foreach": lambda some: torch.optim.AdamW(some, lr=1e-2, foreach=True),
    "fused": lambda some: torch.optim.AdamW(some, lr=1e-2, fused=True),
    "sgd": lambda some: torch.optim.SGD(some, lr=1e-1, momentum=0.9),
}


class Block(nn.Module):
    """`scale` has one element, so that all ranks but one hold nothing of it."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(14)
        self.a = nn.Linear(14, wide)
        self.b = nn.Linear(wide, 14, bias=False)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.b(gelu(self.a(self.norm(x)))) * self.scale
        return out


class Net(nn.Module):
    """Uneven on purpose, with tied weights, a frozen parameter and a buffer. Only `depth` blocks are used."""

    seen: Tensor

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 14)
        self.blocks = nn.ModuleList(Block(wide) for _ in range(2))
        self.head = nn.Linear(14, WORDS, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Parameter(torch.randn(5, 14), requires_grad=False)
        self.register_buffer("seen", torch.zeros(()))
        self.depth = 2

    def forward(self, words: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        x = self.embedding(words) + self.frozen[0]
        for block in list(self.blocks)[: self.depth]:
            x = block(x)
        out: Tensor = self.head(x)
        return out


def dataset() -> TensorDataset:
    return TensorDataset(torch.randint(0, WORDS, (SAMPLES, 6), generator=torch.Generator().manual_seed(3)))


class Small(nn.Module):
    """One block, for what does not depend on the model: torch's own work grows with the number of parameters."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(wide)])

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.blocks[0](one_hot(words % 14, 14).float())
        return out


def sharded(how: str, world: int, wide: int, kind: type[nn.Module] = Net) -> Any:
    """`how`: whole, fsdp, hsdp, or tp: FSDP2 over tensor parallelism."""
    torch.manual_seed(1)
    net: Any = kind(wide)
    if how == "whole":
        return net
    options: dict[str, Any] = {}
    match how:
        case "fsdp":
            options["mesh"] = init_device_mesh("cpu", (world,))
        case "hsdp":
            options["mesh"] = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
        case "tp":
            mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
            for block in net.blocks:
                parallelize_module(block, mesh["tp"], {"a": ColwiseParallel(), "b": RowwiseParallel()})
            options["mesh"] = mesh["dp"]
    for block in net.blocks:
        fully_shard(block, **options)
    fully_shard(net, **options)
    return net


def tensors(net: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Parameters, buffers and the optimizer's state by name."""
    for part in net.modules():
        if isinstance(part, FSDPModule):
            part.reshard()
    names: dict[Tensor, str] = {parameter: name for name, parameter in net.named_parameters()}
    yield from ((name, parameter.detach()) for name, parameter in net.named_parameters())
    yield from net.named_buffers()
    for parameter, state in optimizer.state.items():
        yield from ((f"{names[parameter]}/{key}", value) for key, value in state.items())


def by_mesh(parameters: Iterable[Tensor]) -> list[list[Tensor]]:
    """The parameters; torch clips those of one mesh at a time."""
    found: dict[int, list[Tensor]] = {}
    for parameter in parameters:
        found.setdefault(parameter.device_mesh.ndim if isinstance(parameter, DTensor) else 0, []).append(parameter)
    return list(found.values())


def value(norm: Tensor) -> float:
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().view(-1).numpy().tobytes()).hexdigest()[:16]


def whole(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Hashes of the whole tensors, as torch gathers them."""
    return {
        name: digest(tensor.full_tensor() if isinstance(tensor, DTensor) else tensor)
        for name, tensor in tensors(net, optimizer)
    }


def own(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Hashes of what this rank holds."""
    return {
        name: digest(tensor.to_local() if isinstance(tensor, DTensor) else tensor)
        for name, tensor in tensors(net, optimizer)
    }


def train(
    root: str,
    *,
    how: str = "fsdp",
    optimizer: str = "foreach",
    wide: int = 23,
    epochs: int = 1,
    restores: bool = False,
    flips: bool = False,
    rests: bool = False,
    differs_at: int = 0,
) -> dict[str, Any]:
    """Trains to the end, or leaves when it is asked to.

    `restores`: only restores, and trains nothing. `flips`: the first block is trained from the third step on, the
    second one up to it. `rests`: gradients stay, and the second block is left out of every third step.
    """
    torch.set_num_threads(1)
    steps: dict[int, Any] = {}
    seen: list[list[list[int]]] = []
    deferred: set[int] = set()
    with Session.from_env(root) as session:
        net = sharded(how, session.world, wide)
        steps_by = OPTIMIZERS[optimizer]([one for one in net.parameters() if one.requires_grad])
        net.blocks[0].requires_grad_(not flips)
        session.register(model=net, optimizer=steps_by)
        restore(session)
        begun = whole(net, steps_by)
        deferral = session._core.run.background._effects.deferral
        with suppress(Exit):
            for _ in () if restores else session.epochs(epochs):
                mesh = net.blocks[0].a.weight.device_mesh["dp"] if how == "tp" else None
                for (words,) in session.loader(dataset(), BATCH, mesh=mesh):
                    deferred |= {session.steps_done} if deferral.copies else set()
                    net.depth = 1 if rests and session.steps_done % 3 == 1 else 2
                    loss = session.weighted(cross_entropy(net(words).flatten(0, 1), words.roll(1, 1).flatten()))
                    loss.backward()
                    norms = [clip_grad_norm_(some, 1.0) for some in by_mesh(net.parameters())]
                    steps_by.step()
                    steps_by.zero_grad(set_to_none=not rests)
                    step = session.steps_done + 1
                    if step == differs_at and session.rank == 1:
                        net.blocks[0].b.weight.data.to_local().add_(1)
                    if flips and step == 2:
                        net.blocks[0].requires_grad_(True)
                    if flips and step == 3:
                        net.blocks[1].requires_grad_(False)
                    seen.append(words.tolist())
                    steps[step] = [loss.item(), *map(value, norms)]
                    net.eval()
                    with torch.no_grad():
                        net(words)
                    net.train()
                    session.step()
        return {
            "begun": begun,
            "ended": whole(net, steps_by) if not restores else {},
            "steps": steps,
            "seen": seen,
            "own": own(net, steps_by) if not restores else {},
            "deferred": sorted(deferred),
            "told": [liveness._registered(session._core.run), no_image(session)],
        }


def no_image(session: Session) -> str:
    """Why this rank would leave none."""
    images = session._core.run.images
    return images.obstacle() or images._lone


def grows(root: str, *, how: str) -> dict[str, Any]:
    """From its second epoch on it trains more, by what is made then.

    `how`: a head that is sharded then, in a group of its own; a group for what was frozen; or an optimizer for that.
    """
    torch.set_num_threads(1)
    with Session.from_env(root) as session:
        net = sharded("fsdp", session.world, 23)
        every = [OPTIMIZERS["foreach"]([one for one in net.parameters() if one.requires_grad])]
        session.register(model=net, optimizer=every[0])
        grown = False
        begun: dict[str, str] = {}
        with suppress(Exit):
            for epoch in session.epochs(3):
                if epoch >= 1 and not grown:
                    grown = True
                    grow(session, net, every, how)
                for (words,) in session.loader(dataset(), BATCH):
                    begun = begun or wholes(net, every)
                    out = net(words).flatten(0, 1)
                    if hasattr(net, "late"):
                        out = out + net.late(net.embedding(words)).flatten(0, 1)
                    session.weighted(cross_entropy(out, words.roll(1, 1).flatten())).backward()
                    for one in every:
                        one.step()
                        one.zero_grad()
                    session.step()
        return {"begun": begun, "step": session.steps_done, "whole": wholes(net, every), "own": wholes(net, every, own)}


def grow(session: Session, net: Any, every: list[torch.optim.Optimizer], how: str) -> None:
    if how == "head":
        net.late = nn.Linear(14, WORDS)
        fully_shard(net.late, mesh=init_device_mesh("cpu", (session.world,)))
        every[0].add_param_group({"params": list(net.late.parameters()), "lr": 3e-2})
        return
    net.frozen.requires_grad_(requires_grad=True)
    if how == "group":
        every[0].add_param_group({"params": [net.frozen], "lr": 3e-2})
    else:
        every.append(OPTIMIZERS["fused"]([net.frozen]))
        session.register(late=every[1])


def wholes(
    net: nn.Module, every: list[torch.optim.Optimizer], found: Callable[..., dict[str, str]] = whole
) -> dict[str, str]:
    return {name: digest for optimizer in every for name, digest in found(net, optimizer).items()}


def accumulates(root: str, *, how: str) -> str:
    """The output if every second batch steps, and each is a step of the session.

    `how`: the first of two is reduced, is not reduced, is dropped, or is zeroed.
    """
    torch.set_num_threads(1)
    with redirect_stderr(io.StringIO()) as printed, Session.from_env(root) as session:
        net = sharded("fsdp", session.world, 23)
        optimizer = OPTIMIZERS["foreach"]([one for one in net.parameters() if one.requires_grad])
        session.register(model=net, optimizer=optimizer)
        for _ in session.epochs(1):
            for number, (words,) in enumerate(session.loader(dataset(), BATCH)):
                last = number % 2 == 1
                net.set_requires_gradient_sync(last or how != "not reduced")
                session.weighted(cross_entropy(net(words).flatten(0, 1), words.roll(1, 1).flatten())).backward()
                if last:
                    optimizer.step()
                if last or how in ("dropped", "zeroed"):
                    optimizer.zero_grad(set_to_none=how != "zeroed")
                session.step()
    return printed.getvalue()


MESHES: Mapping[str, tuple[str, str]] = {"mesh": ("dp", "tp"), "turned": ("tp", "dp")}
"""The names of the dimensions of a mesh of which only the loader knows."""


def draws(
    root: str,
    *,
    how: str,
    seeds: str = "share",
    own_samples: bool = False,
    begins: Mapping[str, Any] | None = None,
    saves_at: int | None = None,
    older: bool = False,
) -> dict[int, list[float]]:
    """What each step draws from torch's, Python's and NumPy's generators.

    `how`: fsdp or tp, as above; or mesh: whole models in a mesh of which only the loader knows, two ranks a batch; or
    turned: such a mesh by columns.
    `seeds`: whether ranks with the same samples seed alike, "share", or each its own, "rank"; or "mixed": torch's alike
    alone. With `own_samples` the session counts steps. `begins` is the commit that it begins from.
    An `older` version does not say in a commit which ranks share a batch.
    """
    torch.set_num_threads(1)
    drawn: dict[int, list[float]] = {}
    with Session.from_env(root, resume_from=begins) as session:
        if older:
            vars(session._core.run)["_share"] = dict
        net: Any = sharded("whole" if how in MESHES else how, session.world, 22, Small)
        steps_by = OPTIMIZERS["sgd"](net.parameters())
        session.register(model=net, optimizer=steps_by)
        mesh = None
        if how == "tp":
            mesh = net.blocks[0].a.weight.device_mesh["dp"]
        if names := MESHES.get(how):
            mesh = init_device_mesh("cpu", (session.world // 2, 2), mesh_dim_names=names)["dp"]
            net = session.wrap(net)
        share = session.rank if mesh is None else mesh.get_local_rank()
        torch.manual_seed(session.rank if seeds == "rank" else share)
        random.seed(share if seeds == "share" else session.rank)
        np.random.seed(share if seeds == "share" else session.rank)
        with suppress(Exit):
            for _ in session.epochs(1):
                samples: Any = session.steps(6) if own_samples else session.loader(dataset(), BATCH, mesh=mesh)
                for batch in samples:
                    numbers = torch.rand(()).item(), random.random(), float(np.random.random())  # noqa: S311
                    drawn[session.steps_done] = list(numbers)
                    (words,) = dataset()[:4] if own_samples else batch
                    session.weighted(net(words).square().mean()).backward()
                    steps_by.step()
                    steps_by.zero_grad()
                    session.step()
                    if session.steps_done == saves_at:
                        session.save()
    return drawn


def collects(root: str) -> None:
    """Has a hook that should get whole tensors."""
    with Session.from_env(root) as session:
        net = sharded("fsdp", session.world, 23)
        session.register(model=net, optimizer=OPTIMIZERS["sgd"]([one for one in net.parameters() if one.requires_grad]))
        session.on("collect", list)
        restore(session)


def parallel(root: str) -> None:
    """Splits the work on each batch, and has a loader that gives each rank its own."""
    with Session.from_env(root) as session:
        mesh = init_device_mesh("cpu", (session.world,), mesh_dim_names=("tp",))
        net = Net(22)
        for block in net.blocks:
            parallelize_module(block, mesh["tp"], {"a": ColwiseParallel(), "b": RowwiseParallel()})
        session.register(model=net, optimizer=OPTIMIZERS["sgd"]([one for one in net.parameters() if one.requires_grad]))
        session.loader(dataset(), BATCH)
        restore(session)


class Wide(nn.Module):
    """Two weights of 64 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2048, 8192, bias=False)
        self.b = nn.Linear(8192, 2048, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.a(x))
        return out


def heavy(root: str, *, saves: bool) -> dict[str, Any]:
    """KiB of memory that a rank took in the restore and in the save, beyond what it held before and after; and the
    bytes that it read in the restore."""
    torch.set_num_threads(1)
    with Session.from_env(root) as session:
        net = Wide()
        mesh = init_device_mesh("cpu", (session.world,))
        for part in (net.a, net.b, net):
            fully_shard(part, mesh=mesh)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        session.register(model=net, optimizer=optimizer)
        before = bytes_read()
        taken = [peak_of(lambda: restore(session))]
        read = bytes_read() - before
        if saves:
            for _ in session.epochs(1):
                for (inputs,) in session.loader(TensorDataset(torch.randn(2, 2048)), 2):
                    session.weighted(net(inputs).square().mean()).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    session.step()
                session.save()
                gc.collect()
                reset_peak()
                held = memory("VmRSS")
            taken.append(memory("VmHWM") - held)
    return {"taken": taken, "read": read}


def bytes_read() -> int:
    """By this process so far, from files and sockets."""
    return int(Path("/proc/self/io").read_text().split()[1])


def peak_of(act: Callable[[], object]) -> int:
    before = memory("VmRSS")
    reset_peak()
    act()
    return memory("VmHWM") - max(before, memory("VmRSS"))


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def memory(kind: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind))
    return int(line.split()[1])


def page(root: str) -> dict[str, Any]:
    """Trains as the page about sharded models says. This rank's part of the weights."""
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    torch.manual_seed(2)
    found: dict[str, Any] = {
        "perdure": perdure,
        "Net": lambda: nn.Sequential(nn.Linear(4, 9), nn.GELU(), nn.Linear(9, 3)),
        "criterion": cross_entropy,
        "train_set": TensorDataset(torch.randn(40, 4), torch.randint(0, 3, (40,))),
    }
    with suppress(Exit):
        exec(example.replace("from_env()", f"from_env({root!r})"), found)  # noqa: S102 - our own page
    weights = [parameter.detach().to_local() for parameter in found["model"].parameters()]
    return {"weights": hashlib.sha256(b"".join(value.numpy().tobytes() for value in weights)).hexdigest()}
