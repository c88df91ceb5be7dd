"""Trains a small GPT, character by character, on the source text of Python's own standard library.

python train.py                                    # here; Ctrl-C saves, the same command goes on
torchrun --nproc-per-node 2 train.py               # two processes
torchrun --nproc-per-node 4 train.py --fsdp        # four, each with a quarter of the model
torchrun --nproc-per-node 4 train.py --hsdp        # two replicas, each in two halves
torchrun --nproc-per-node 4 train.py --tp          # halves, and pairs that compute parts of the same batch
kubectl apply -f job.yaml                          # two to four pods
"""

import argparse
import hashlib
import math
import string
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.utils.data import Dataset

import perdure  # perdure

TRAINING_FILES = ("ast", "calendar", "csv", "dataclasses", "enum", "fractions", "functools")
TEST_FILES = ("random",)
ALPHABET = string.printable
CONTEXT, WIDTH, HEADS, LAYERS = 64, 64, 4, 2
MICRO_BATCHES = 2
WARM_UP_STEPS = 20
EVALUATE_EVERY = 25
PATIENCE = 4


class Text(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of CONTEXT characters, each with the same piece one character later."""

    def __init__(self, modules: Iterable[str]) -> None:
        folder = Path(sysconfig.get_path("stdlib"))
        text = "".join((folder / f"{name}.py").read_text() for name in modules)
        numbers = {character: number for number, character in enumerate(ALPHABET)}
        self.characters = torch.tensor([numbers[character] for character in text if character in numbers])

    def __len__(self) -> int:
        return (len(self.characters) - 1) // CONTEXT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * CONTEXT
        return self.characters[start : start + CONTEXT], self.characters[start + 1 : start + CONTEXT + 1]


class Block(nn.Module):
    """Attention to what came before, then a layer for each character by itself."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries_keys_values, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layer = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.joined(self.attention(self.before(x))))
        return x + self.dropout(self.layer(self.after(x)))

    def attention(self, x: Tensor) -> Tensor:
        heads = self.queries_keys_values(x).unflatten(2, (3, HEADS, -1)).transpose(1, 3).unbind(2)
        return scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)


class TinyGPT(nn.Module):
    """For each character of a text, how likely each character is to come next."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block(dropout) for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.next = nn.Linear(WIDTH, len(ALPHABET), bias=False)
        for embedding in (self.characters, self.places):
            nn.init.normal_(embedding.weight, std=0.05)

    def forward(self, x: Tensor) -> Tensor:
        return self.next(self.blocks(self.characters(x) + self.places(torch.arange(x.shape[1]))))


def error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def evaluate(net: nn.Module, test: Text) -> float:
    net.eval()
    loss = error(net, *(torch.stack(part) for part in zip(*(test[n] for n in range(64)), strict=True)))
    net.train()
    return loss.item()


@torch.no_grad()
def continued(net: nn.Module, text: str, length: int) -> str:
    """`text`, and what the model thinks comes next."""
    net.eval()
    dice = torch.Generator().manual_seed(0)
    for _ in range(length):
        last = torch.tensor([[ALPHABET.index(character) for character in text[-CONTEXT:]]])
        text += ALPHABET[torch.multinomial(net(last)[0, -1].softmax(0), 1, generator=dice).item()]
    return text


def rate(step: int, steps: int) -> float:
    """Up in a line, then down in half a cosine to a tenth."""
    if step < WARM_UP_STEPS:
        return (step + 1) / WARM_UP_STEPS
    return 0.55 + 0.45 * math.cos(math.pi * min(1.0, (step - WARM_UP_STEPS) / max(1, steps - WARM_UP_STEPS)))


def train(session: perdure.Session, args: argparse.Namespace) -> None:  # perdure
    text, test = Text(TRAINING_FILES), Text(TEST_FILES)
    torch.manual_seed(0)
    net = TinyGPT(dropout=0.1)
    mesh = mesh_of(args, session.world)  # perdure
    model = sharded(net, mesh) if mesh else session.wrap(net)  # perdure
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, weight_decay=0.1)
    steps = args.epochs * math.ceil(len(text) / args.batch / MICRO_BATCHES)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
    session.register(model=model, optimizer=optimizer, scheduler=scheduler)  # perdure
    batches = session.loader(text, batch_size=args.batch, mesh=mesh["dp"] if mesh and args.tp else None)  # perdure

    def export(tensors: Iterable[tuple[str, Tensor]]) -> None:
        save_file(dict(tensors), args.export)
        print(f"exported {hashlib.sha256(args.export.read_bytes()).hexdigest()}")

    if not mesh:  # otherwise no rank has whole tensors: `perdure export` writes them from a checkpoint
        session.on("collect", export)  # perdure

    for _ in session.epochs(args.epochs):  # perdure
        loss = 0.0
        for number, (x, y) in enumerate(batches, start=batches.batch_index + 1):
            part = session.weighted(error(model, x, y)) / MICRO_BATCHES  # perdure
            part.backward()
            loss += part.item()
            if number % MICRO_BATCHES and number < len(batches):
                continue
            clip(model.parameters())
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            session.step()  # perdure
            say(session, f"step {session.steps_done} loss {loss}")  # perdure
            loss = 0.0
            if session.steps_done % EVALUATE_EVERY == 0 and stale(session, evaluate(net, test)):  # perdure
                session.stop("plateau")  # perdure
                break

    say(session, continued(net, "def ", 200))  # perdure


def mesh_of(args: argparse.Namespace, world: int) -> DeviceMesh | None:
    """Which ranks share the model, and how; None if each has all of it."""
    if args.fsdp:
        return init_device_mesh("cpu", (world,))
    if args.hsdp:
        return init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard"))
    if args.tp:
        return init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    return None


def sharded(net: TinyGPT, mesh: DeviceMesh) -> nn.Module:
    if mesh.mesh_dim_names == ("dp", "tp"):
        for block in net.blocks[:LAYERS]:
            split = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            parallelize_module(block.layer, mesh["tp"], split, src_data_rank=None)
        mesh = mesh["dp"]
    for part in (*net.blocks, net):
        fully_shard(part, mesh=mesh)
    return net


def clip(parameters: Iterable[nn.Parameter]) -> None:
    """Clips the gradients by the norm of all. torch computes it for those of one mesh."""
    by_mesh: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in parameters:
        by_mesh.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    norms = [get_total_norm([one.grad for one in some if one.grad is not None]) for some in by_mesh.values()]
    norm = torch.stack([one.full_tensor() if isinstance(one, DTensor) else one for one in norms]).norm()
    for some in by_mesh.values():
        clip_grads_with_norm_(some, 1.0, norm)


def stale(session: perdure.Session, loss: float) -> bool:  # perdure
    """Whether the last evaluations have not been better than the best one."""
    best, since = session.state.get("best", (math.inf, 0))  # perdure
    session.state["best"] = (loss, 0) if loss < best else (best, since + 1)  # perdure
    say(session, f"evaluation loss {loss}, best {min(loss, best)}")  # perdure
    return session.state["best"][1] >= PATIENCE  # perdure


def say(session: perdure.Session, text: str) -> None:  # perdure
    if session.rank == 0:  # perdure
        print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16, help="samples of one micro-batch, over all processes")
    parser.add_argument("--rate", type=float, default=6e-3)
    parser.add_argument("--export", type=Path, default=Path("tinygpt.safetensors"), help="gets the trained weights")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--fsdp", action="store_true", help="shard the model over the processes")
    how.add_argument("--hsdp", action="store_true", help="shard it over pairs of processes, each with a replica")
    how.add_argument("--tp", action="store_true", help="split layers over pairs, and shard it over the pairs")
    args = parser.parse_args()
    with perdure.Session.from_env(deterministic=True) as session:  # perdure
        train(session, args)  # perdure


if __name__ == "__main__":
    main()
