"""Trains a small CNN on handwritten digits: an ordinary PyTorch script, and eight lines of Perdure.

python train.py --epochs 20            # here; Ctrl-C saves, the same command goes on
torchrun --nproc-per-node 2 train.py   # two processes
kubectl apply -f job.yaml              # two pods; drain their nodes as you like
"""

import argparse
import hashlib

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import perdure  # perdure

TRAINING_SAMPLES = 1536
GLOBAL_BATCH = 64


def digits() -> tuple[TensorDataset, TensorDataset]:
    """1,536 images of 8 x 8 pixels to train with, 261 to test."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    split = TRAINING_SAMPLES
    return TensorDataset(images[:split], labels[:split]), TensorDataset(images[split:], labels[split:])


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 4 * 4, 10),
    )


def accuracy(model: nn.Module, test: TensorDataset) -> float:
    images, labels = test.tensors
    model.eval()
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def weight_hash(model: nn.Module) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode() + tensor.numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=GLOBAL_BATCH, help="samples of one step, over all processes")
    parser.add_argument("--deterministic", action="store_true", help="bit-identical after a restart with 3 or more")
    args = parser.parse_args()

    torch.manual_seed(0)
    train, test = digits()
    net = network()

    with perdure.Session.from_env(deterministic=args.deterministic) as session:  # perdure
        model = session.wrap(net)  # perdure
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        session.register(model=model, optimizer=optimizer)  # perdure
        batches = session.loader(train, batch_size=args.batch)  # perdure

        for _ in session.epochs(args.epochs):  # perdure
            for images, labels in batches:
                loss = session.weighted(cross_entropy(model(images), labels))  # perdure
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                session.step()  # perdure

        print(f"accuracy {accuracy(net, test):.4f}")
        print(f"weights {weight_hash(net)}")


if __name__ == "__main__":
    main()
