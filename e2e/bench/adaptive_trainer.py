"""One training of examples/digits or examples/tinygpt, with its own batch or with one that adapts, for
e2e.bench.adaptive.

`python adaptive_trainer.py digits|tinygpt SEED EPOCHS fixed|adapts`, with the example's train.py on PYTHONPATH. After
each epoch it prints a line of JSON: the seconds of training without evaluations, and the loss on the test set.
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


def digits() -> tuple[nn.Module, Dataset[Any], list[torch.Tensor], float]:
    train, test = example.digits()
    return example.network(), train, list(test.tensors), 5e-4


def tinygpt() -> tuple[nn.Module, Dataset[Any], list[torch.Tensor], float]:
    train, test = example.Text(example.TRAINING_FILES), example.Text(example.TEST_FILES)
    pieces = [torch.stack(part) for part in zip(*(test[number] for number in range(len(test))), strict=True)]
    return example.TinyGPT(dropout=0.1), train, pieces, 1e-3


def error(net: nn.Module, inputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return cross_entropy(net(inputs).flatten(0, wanted.dim() - 1), wanted.flatten())


def main() -> None:
    what, seed, epochs, way = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(int(seed))
    net, train, test, rate = {"digits": digits, "tinygpt": tinygpt}[what]()
    adapt = perdure.Adapt(up_to=MOST, rule="adamscale") if way == "adapts" else None
    with perdure.Session.from_env(seed=int(seed)) as session:
        model = session.wrap(net)
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(train, INITIAL, adapt=adapt)
        seconds = 0.0
        for _ in session.epochs(int(epochs)):
            begun = time.perf_counter()
            for inputs, wanted in batches:
                with session.micro() as last:
                    session.weighted(error(model, inputs, wanted)).backward()
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
                    session.step()
            seconds += time.perf_counter() - begun
            net.eval()
            with torch.no_grad():
                loss = error(net, *test).item()
            net.train()
            made = batches.decisions if adapt else []
            print(json.dumps({"seconds": seconds, "loss": loss, "batch": made[-1]["batch"] if made else INITIAL}))


if __name__ == "__main__":
    main()
