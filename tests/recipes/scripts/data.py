"""What batches are made of: mixtures, hard samples, shards, buckets, curricula, and sizes that change."""

import random
from collections import Counter, defaultdict, deque

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, interpolate
from torch.utils.data import Dataset, TensorDataset, get_worker_info

import perdure
from tests.recipes.held import Held


def pictures(samples=48, size=6):
    images = torch.rand(samples, 1, size, size, generator=torch.Generator().manual_seed(6))
    return TensorDataset(images, (images.mean((1, 2, 3)) * 40).long() % 4)


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 4))


def trained(session, net, optimizer, loss, of):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    session.step()


def mixtures(registered):
    net, rng = network(), np.random.default_rng(5)
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        session.register(model=model, optimizer=optimizer)
        if registered:
            session.state["rng"] = rng.bit_generator.state
        batches = session.loader(pictures(), batch_size=6)
        for _ in session.epochs(2):
            for images, y in batches:
                x = images.clone()
                if registered:
                    rng.bit_generator.state = session.state["rng"]
                lam, other = rng.beta(0.4, 0.4), torch.from_numpy(rng.permutation(len(x)))
                if rng.random() < 0.5:
                    x = lam * images + (1 - lam) * images[other]
                else:
                    cut = int(6 * np.sqrt(1 - lam))
                    x[:, :, :cut, :cut] = images[other][:, :, :cut, :cut]
                found = model(x)
                optimizer.zero_grad()
                session.weighted(lam * cross_entropy(found, y) + (1 - lam) * cross_entropy(found, y[other])).backward()
                optimizer.step()
                if registered:
                    session.state["rng"] = rng.bit_generator.state
                session.step()
        return {"model": net, "optimizer": optimizer, "rng": rng}


def mixup() -> Held:
    """Mixup and CutMix whose NumPy generator is kept in session.state."""
    return mixtures(registered=True)


def forgotten_mixup() -> Held:
    """The same, and the generator is a variable."""
    return mixtures(registered=False)


def hard_samples() -> Held:
    """Samples drawn by weights that follow their losses; weights, draws and times are in session.state."""
    net, data = network(), pictures()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        session.register(model=model, optimizer=optimizer)
        session.state.update(weights=torch.ones(len(data)), drawn=Counter(), losses=np.zeros(len(data)))
        for _ in session.epochs(2):
            for _ in session.steps(8):
                chosen = torch.multinomial(session.state["weights"], 6)
                x, y = data[chosen]
                each = cross_entropy(model(x), y, reduction="none")
                optimizer.zero_grad()
                each.mean().backward()
                optimizer.step()
                session.state["weights"][chosen] = 0.5 * session.state["weights"][chosen] + each.detach()
                session.state["losses"][chosen.numpy()] += each.detach().numpy()
                session.state["drawn"].update(chosen.tolist())
                session.step()
        return {"model": net, "state": {name: session.state[name] for name in ("weights", "drawn", "losses")}}


def bad_samples() -> Held:
    """Samples that went wrong come again: their numbers wait in a deque, and a defaultdict counts them."""
    net, data = network(), pictures()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        session.register(model=model, optimizer=optimizer)
        session.state["counts"] = defaultdict(int)
        session.state["waiting"] = deque(maxlen=8)
        for _ in session.epochs(2):
            for i in session.steps(8):
                numbers = list(range(i * 4, i * 4 + 4)) + list(session.state["waiting"])
                x, y = data[numbers]
                found = model(x)
                optimizer.zero_grad()
                cross_entropy(found, y).backward()
                optimizer.step()
                for number in np.array(numbers)[(found.argmax(1) != y).numpy()].tolist():
                    session.state["counts"][number] += 1
                    session.state["waiting"].append(number)
                session.step()
        return {"model": net, "counts": session.state["counts"], "waiting": session.state["waiting"]}


class Shards:
    """As webdataset has it: shards in another order in each pass, a buffer that shuffles, its own generator."""

    def __init__(self, buffer=10):
        self.random, self.size = random.Random(8), buffer
        self.buffer, self.left, self.at = [], [], 0

    def __iter__(self):
        return self

    def read(self):
        if not self.left:
            self.left = self.random.sample(range(6), 6)
        sample = self.left[0] * 8 + self.at
        self.at = (self.at + 1) % 8
        if not self.at:
            self.left.pop(0)
        return sample

    def __next__(self):
        while len(self.buffer) < self.size:
            self.buffer.append(self.read())
        return self.buffer.pop(self.random.randrange(self.size))

    def state_dict(self):
        return {"random": self.random.getstate(), "buffer": self.buffer, "left": self.left, "at": self.at}

    def load_state_dict(self, state):
        self.random.setstate(state["random"])
        self.buffer, self.left, self.at = state["buffer"], state["left"], state["at"]


def shards() -> Held:
    """Batches from a stream of shards with a shuffle buffer, which is registered."""
    net, data, stream = network(), pictures(), Shards()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.ASGD(net.parameters(), lr=0.1)
        session.register(model=model, optimizer=optimizer, stream=stream)
        for _ in session.epochs(2):
            for _ in session.steps(8):
                x, y = data[[next(stream) for _ in range(6)]]
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
                session.step()
        return {"model": net, "optimizer": optimizer, "stream": stream}


class Buckets(Dataset):
    """Whole batches of sentences that are about equally long; each item is one, cut and masked by chance."""

    def __init__(self):
        dice = torch.Generator().manual_seed(9)
        sentences = [
            torch.randint(1, 20, (int(length),), generator=dice)
            for length in torch.randint(3, 12, (60,), generator=dice)
        ]
        sentences.sort(key=len)
        self.batches = [sentences[start : start + 4] for start in range(0, 60, 4)]

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, number):
        padded = nn.utils.rnn.pad_sequence(self.batches[number], batch_first=True)
        masked = (torch.rand(padded.shape) < 0.3) & (padded > 0)
        return padded.masked_fill(masked, 21), padded.masked_fill(~masked, -100)


def buckets() -> Held:
    """Batches by length, read by two workers, masked by chance in the workers."""
    torch.manual_seed(4)
    net = nn.Sequential(nn.Embedding(22, 8, padding_idx=0), nn.Linear(8, 22))
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.Adafactor(net.parameters(), lr=1e-2)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(Buckets(), batch_size=1, collate_fn=lambda one: one[0], num_workers=2)
        for _ in session.epochs(2):
            for x, y in batches:
                tokens = (y != -100).sum()
                optimizer.zero_grad()
                loss = cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum")
                session.weighted(loss / tokens.clamp(min=1), tokens).backward()
                optimizer.step()
                session.step()
        return {"model": net, "optimizer": optimizer}


class Curriculum(Dataset):
    """Pictures with less and less blur; how much is a number that the training sets."""

    def __init__(self):
        self.pictures, self.sharpness = pictures(), 0.0

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, number):
        image, label = self.pictures[number]
        return torch.lerp(image.mean().expand_as(image), image, self.sharpness), label


def curriculum_with(workers):
    net, data = network(), Curriculum()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(data, batch_size=6, num_workers=workers)
        for _ in session.epochs(3):
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y)).backward()
                optimizer.step()
                session.step()
                data.sharpness = session.steps_done / 24
        return {"model": net, "optimizer": optimizer}


def curriculum() -> Held:
    """The samples change with each step."""
    return curriculum_with(workers=0)


def worker_curriculum() -> Held:
    """The same with workers, which have copies of the dataset, made when they start."""
    return curriculum_with(workers=2)


class Counting(Dataset):
    """Its workers count what they have read, and choose a view by it."""

    def __init__(self):
        self.pictures, self.read, self.rng = pictures(), 0, None

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, number):
        image, label = self.pictures[number]
        self.read += 1
        if self.rng is not None and self.rng.random() < 0.5:
            image = image.flip(-1)
        return (image.transpose(1, 2) if self.read % 3 == 0 else image), label


def seed_worker(worker):
    get_worker_info().dataset.rng = np.random.default_rng(torch.initial_seed() % 2**32 + worker)


def counting_workers() -> Held:
    """The dataset has a counter and a generator of its own, which worker_init_fn makes in each worker."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(Counting(), batch_size=6, num_workers=2, worker_init_fn=seed_worker)
        for _ in session.epochs(3):
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y)).backward()
                optimizer.step()
                session.step()
        return {"model": net, "optimizer": optimizer}


def progressive() -> Held:
    """Progressive resizing: two phases with datasets, batch sizes and rates of their own."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        session.register(model=model, optimizer=optimizer)
        for size, batch, epochs in ((4, 12, 2), (6, 6, 2)):
            for group in optimizer.param_groups:
                group["lr"] = 0.6 / batch
            batches = session.loader(pictures(size=size), batch_size=batch, name=f"size {size}")
            for _ in session.epochs(epochs):
                for x, y in batches:
                    optimizer.zero_grad()
                    session.weighted(cross_entropy(model(x), y)).backward()
                    optimizer.step()
                    session.step()
        return {"model": net, "optimizer": optimizer}


def multi_scale() -> Held:
    """YOLO: every third batch chooses the size of those that follow; a variable that the next run must not lack."""
    net = network()
    random.seed(4)
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        session.register(model=model, optimizer=optimizer)
        session.state["size"] = 6
        batches = session.loader(pictures(), batch_size=6)
        for _ in session.epochs(2):
            for x, y in batches:
                if session.steps_done % 3 == 0:
                    session.state["size"] = random.choice([4, 6, 8, 10])
                found = model(interpolate(x, session.state["size"], mode="bilinear"))
                optimizer.zero_grad()
                session.weighted(cross_entropy(found, y)).backward()
                optimizer.step()
                session.step()
        return {"model": net, "optimizer": optimizer, "size": session.state["size"]}


def split(key):
    """As jax.random.split: two new keys of an old one, and no state anywhere."""
    return np.random.Philox(key=key).random_raw(4).astype(np.uint64).reshape(2, 2)


def keys() -> Held:
    """Randomness by keys as in JAX; the key is an array in session.state."""
    net = network()
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        session.register(model=model, optimizer=optimizer)
        session.state["key"] = np.array([0, 42], np.uint64)
        batches = session.loader(pictures(), batch_size=6)
        for _ in session.epochs(2):
            for x, y in batches:
                session.state["key"], now = split(session.state["key"])
                noise = np.random.Generator(np.random.Philox(key=now)).normal(size=x.shape)
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x + 0.1 * torch.from_numpy(noise).float()), y)).backward()
                optimizer.step()
                session.step()
        return {"model": net, "key": session.state["key"]}
