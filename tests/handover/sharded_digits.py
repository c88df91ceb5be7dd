"""examples/digits with the model sharded over all ranks: the script of test_fsdp, with the same arguments. With
`--shards=2` there are so many shards, and the other ranks hold replicas of them. With `--tensor-parallel=2` so many
ranks get the same samples and split the last layer. With `--twice` a step has a second backward pass, and an optimizer
behind each.
"""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy

import perdure

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "train.py"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--shards", type=int)
    parser.add_argument("--tensor-parallel", type=int)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--twice", action="store_true")
    args = parser.parse_args()
    digits = runpy.run_path(str(DIGITS))

    torch.manual_seed(0)
    train, _ = digits["digits"]()
    net = digits["network"]()

    with perdure.Session.from_env(deterministic=args.deterministic) as session:
        if row := args.shards or args.tensor_parallel:
            names = ("replicate", "shard") if args.shards else ("data", "tensor")
            mesh = init_device_mesh("cpu", (session.world // row, row), mesh_dim_names=names)
        else:
            mesh = init_device_mesh("cpu", (session.world,))
        own = None
        if args.tensor_parallel:
            split = ColwiseParallel(output_layouts=Replicate())
            parallelize_module(net[-1], mesh["tensor"], split, src_data_rank=None)
            own = mesh = mesh["data"]
        for part in (*(part for part in net if list(part.parameters())), net):
            fully_shard(part, mesh=mesh)
        optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
        again = torch.optim.SGD(net.parameters(), lr=1e-3)
        session.register(model=net, optimizer=optimizer)
        if args.twice:
            session.register(again=again)
        batches = session.loader(train, batch_size=args.batch, mesh=own)
        for _ in session.epochs(args.epochs):
            for images, labels in batches:
                loss = session.weighted(cross_entropy(net(images), labels))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if args.twice:
                    again.zero_grad()
                    session.weighted(cross_entropy(net(images), labels)).backward()
                    again.step()
                session.step()


if __name__ == "__main__":
    main()
