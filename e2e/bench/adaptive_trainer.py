"""One training of examples/digits or examples/tinygpt, with a fixed batch or with one that adapts, for
e2e.bench.adaptive.

`python adaptive_trainer.py digits|tinygpt SEED EPOCHS RATE fixed|adapts`, with the example's train.py on PYTHONPATH.
After each epoch it prints a line of JSON: the seconds of training, without evaluations, and how it stands on the test
set. A batch that adapts trains until its progress is that of EPOCHS with the fixed one, for twice as many epochs at
most.
"""

import json
import sys
import time
from typing import Any

import torch
import train as example  # type: ignore[import-not-found]
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import perdure

INITIAL, MOST = 16, 256


def digits() -> tuple[nn.Module, Dataset[Any], list[torch.Tensor]]:
    train, test = example.digits()
    return example.network(), train, list(test.tensors)


def tinygpt() -> tuple[nn.Module, Dataset[Any], list[torch.Tensor]]:
    train, test = example.Text(example.TRAINING_FILES), example.Text(example.TEST_FILES)
    pieces = [torch.stack(part) for part in zip(*(test[number] for number in range(len(test))), strict=True)]
    return example.TinyGPT(dropout=0.1), train, pieces


def error(net: nn.Module, inputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return cross_entropy(net(inputs).flatten(0, wanted.dim() - 1), wanted.flatten())


@torch.no_grad()
def standing(net: nn.Module, inputs: torch.Tensor, wanted: torch.Tensor) -> dict[str, float]:
    net.eval()
    found = net(inputs)
    net.train()
    loss = cross_entropy(found.flatten(0, wanted.dim() - 1), wanted.flatten())
    return {"loss": loss.item(), "accuracy": (found.argmax(-1) == wanted).double().mean().item()}


def main() -> None:
    what, seed, epochs, rate, way = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(int(seed))
    net, train, test = {"digits": digits, "tinygpt": tinygpt}[what]()
    adapt = perdure.Adapt(up_to=MOST, rule="adamscale") if way == "adapts" else None
    with perdure.Session.from_env(seed=int(seed)) as session:
        model = session.wrap(net)
        optimizer = torch.optim.Adam(model.parameters(), lr=float(rate))
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(train, INITIAL, adapt=adapt)
        most, enough = (2 * int(epochs), int(epochs) * batches.end) if adapt else (int(epochs), None)
        seconds = cpu = 0.0
        for _ in session.epochs(most, max_progress=enough):
            begun, cpu_begun = time.perf_counter(), time.process_time()
            for inputs, wanted in batches:
                with session.micro() as last:
                    session.weighted(error(model, inputs, wanted)).backward()
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
                    session.step()
            seconds, cpu = seconds + time.perf_counter() - begun, cpu + time.process_time() - cpu_begun
            chosen = batches.decisions[-1] if adapt else {"batch": INITIAL, "noise": None}
            told = {"seconds": seconds, "cpu": cpu, "batch": chosen["batch"], "noise": chosen["noise"]}
            print(json.dumps(told | standing(net, *test)), flush=True)


if __name__ == "__main__":
    main()
