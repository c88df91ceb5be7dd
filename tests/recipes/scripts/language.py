"""Language models: from scratch, with adapters, by preferences, by rewards, and with a state that is carried on."""

import copy
import math
import statistics
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, logsigmoid, scaled_dot_product_attention
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import TensorDataset

import perdure
from tests.recipes.held import Held

TOKENS, WIDTH, CONTEXT = 17, 16, 12


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.queries_keys_values, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        heads = self.queries_keys_values(self.norms[0](x)).unflatten(2, (3, 2, -1)).transpose(1, 3).unbind(2)
        x = x + self.out(scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + torch.as_tensor(self.feed(self.norms[1](x)))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(Block(), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.head(self.blocks(self.tokens(x) + self.places.weight[: x.shape[1]])))


def text(samples: int, length: int = CONTEXT + 1) -> Tensor:
    dice = torch.Generator().manual_seed(5)
    return (torch.randint(0, 5, (samples, length), generator=dice).cumsum(1)) % TOKENS


def next_token_loss(model: nn.Module, x: Tensor) -> Tensor:
    return cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def pretraining() -> Held:
    """Groups with and without decay, warm-up and cosine, bfloat16, accumulation; clipped at twice the median norm."""
    torch.manual_seed(1)
    with perdure.Session.from_env() as session:
        net = GPT()
        model = session.wrap(net)
        decayed = [weight for weight in net.parameters() if weight.dim() >= 2]
        others = [weight for weight in net.parameters() if weight.dim() < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
        rate = lambda step: min(1.0, (step + 1) / 4) * (0.55 + 0.45 * math.cos(math.pi * step / 16))  # noqa: E731
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        session.register(model=model, optimizer=optimizer, scheduler=scheduler)
        session.state["norms"] = []
        batches = session.loader(TensorDataset(text(64)), batch_size=4)
        for _ in session.epochs(2):
            for number, (x,) in enumerate(batches, batches.batch_index + 1):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = session.weighted(next_token_loss(model, x)) / 2
                loss.backward()
                if number % 2 and number < len(batches):
                    continue
                norms = session.state["norms"]
                norms.append(clip_grad_norm_(net.parameters(), 2 * statistics.median(norms) if norms else 1.0).item())
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                session.step()
        return {"model": net, "optimizer": optimizer, "scheduler": scheduler, "norms": session.state["norms"]}


class Adapted(nn.Module):
    """A frozen linear layer, kept as int8 and a scale for each row, and a trained low-rank part."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach()
        self.scale = weight.abs().amax(1, keepdim=True) / 127
        self.rounded = (weight / self.scale).round().to(torch.int8)
        self.bias = layer.bias.detach()
        self.a, self.b = (
            nn.Parameter(torch.randn(2, weight.shape[1]) / 4),
            nn.Parameter(torch.zeros(weight.shape[0], 2)),
        )
        self.dropout = nn.Dropout(0.05)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.rounded * self.scale, self.bias) + 2 * linear(linear(self.dropout(x), self.a), self.b)


def adapters() -> Held:
    """QLoRA with the rates of LoRA+: of the model only the adapters are registered, as only these are kept."""
    torch.manual_seed(2)
    with perdure.Session.from_env() as session:
        net = GPT().requires_grad_(False)
        block = net.blocks[0]
        block.queries_keys_values, block.out = Adapted(block.queries_keys_values), Adapted(block.out)
        trained = nn.ModuleList([block.queries_keys_values, block.out])
        model = session.wrap(net)
        groups = [
            {"params": [weight for name, weight in trained.named_parameters() if name.endswith(".a")]},
            {"params": [weight for name, weight in trained.named_parameters() if name.endswith(".b")], "lr": 1.6e-2},
        ]
        optimizer = torch.optim.AdamW(groups, lr=1e-3)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 16)
        session.register(adapters=trained, optimizer=optimizer, scheduler=scheduler)
        batches = session.loader(TensorDataset(text(64)), batch_size=8)
        for _ in session.epochs(2):
            for (x,) in batches:
                session.weighted(next_token_loss(model, x)).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                scheduler.step()
                session.step()
        return {"adapters": trained, "optimizer": optimizer, "scheduler": scheduler}


def merged_adapters() -> Held:
    """ReLoRA: at each epoch's end the low-rank part is added to the weights, which are registered nowhere."""
    torch.manual_seed(3)
    with perdure.Session.from_env() as session:
        base = nn.Linear(8, 4).requires_grad_(False)
        low = nn.Sequential(nn.Linear(8, 2, bias=False), nn.Linear(2, 4, bias=False))
        model = session.wrap(low)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        session.register(adapters=model, optimizer=optimizer)
        inputs = torch.randn(64, 8)
        batches = session.loader(TensorDataset(inputs, inputs.argmax(1) % 4), batch_size=8)
        for _ in session.epochs(5):
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(cross_entropy(base(x) + model(x), y)).backward()
                optimizer.step()
                session.step()
            with torch.no_grad():
                base.weight += low[1].weight @ low[0].weight
                low[1].weight.zero_()
        return {"base": base, "adapters": low, "optimizer": optimizer}


class Merging(nn.Linear):
    """LoRA as loralib writes it: `eval()` adds the low-rank part to the frozen weight, `train()` takes it out again."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__(inputs, outputs)
        self.lora_A = nn.Parameter(torch.randn(rank, inputs) / 4)
        self.lora_B = nn.Parameter(torch.zeros(outputs, rank))
        self.weight.requires_grad = False
        self.dropout, self.merged = nn.Dropout(0.1), False

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        if mode == self.merged:
            low = (self.lora_B @ self.lora_A) * 2
            self.weight.data += -low if mode else low
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        plain = linear(x, self.weight, self.bias)
        return plain if self.merged else plain + 2 * linear(linear(self.dropout(x), self.lora_A), self.lora_B)


def switched_adapters() -> Held:
    """LoRA that evaluations merge, within an epoch and at its end: each leaves its rounding in the frozen weights."""
    torch.manual_seed(7)
    with perdure.Session.from_env() as session:
        net = nn.Sequential(Merging(8, 12), nn.GELU(), Merging(12, 4))
        model = session.wrap(net)
        trained = [weight for name, weight in net.named_parameters() if "lora_" in name or "bias" in name]
        optimizer = torch.optim.AdamW(trained, lr=2e-2)
        session.register(model=model, optimizer=optimizer)
        session.state["scores"] = []
        inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(7))
        labels = inputs[:, :4].argmax(1)
        batches = session.loader(TensorDataset(inputs, labels), batch_size=8)

        def evaluate() -> None:
            net.eval()
            with torch.no_grad():
                session.state["scores"].append(cross_entropy(net(inputs), labels).item())
            net.train()

        for _ in session.epochs(2):
            net.train()
            for x, y in batches:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(x), y)).backward()
                optimizer.step()
                session.step()
                if session.steps_done % 3 == 0:
                    evaluate()
            evaluate()
        return {"model": net, "optimizer": optimizer, "scores": session.state["scores"]}


def distilled() -> Held:
    """torchtune's knowledge_distillation_single_device: a student with LoRA on its attention learns from a frozen
    teacher's chances, by forward KL over the tokens that count, and from the text; accumulated and clipped, with a
    cosine schedule after a warm-up."""
    torch.manual_seed(8)
    teacher = GPT().requires_grad_(False).eval()
    net, ratio, accumulated = GPT(), 0.5, 2
    block = net.requires_grad_(False).blocks[0]
    block.queries_keys_values, block.out = Adapted(block.queries_keys_values), Adapted(block.out)
    samples = text(64)
    counts = torch.arange(CONTEXT + 1) > torch.arange(64)[:, None] % 5  # the prompt is masked
    with perdure.Session.from_env() as session:
        model = session.wrap(net)
        trained = [weight for weight in net.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=3e-3, weight_decay=0.01)
        rate = lambda step: min(1.0, step / 2) * 0.5 * (1 + math.cos(math.pi * max(0, step - 2) / 6))  # noqa: E731
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        session.register(model=model, optimizer=optimizer, scheduler=scheduler)
        batches = session.loader(TensorDataset(samples, counts), batch_size=8)
        for _ in session.epochs(2):
            for number, (x, counted) in enumerate(batches, batches.batch_index + 1):
                said, labels = model(x[:, :-1]), x[:, 1:].masked_fill(~counted[:, 1:], -100)
                with torch.no_grad():
                    chances = teacher(x[:, :-1]).softmax(-1)
                apart = -(chances * said.log_softmax(-1)).sum(-1)[labels != -100].mean()
                loss = cross_entropy(said.flatten(0, 1), labels.flatten(), ignore_index=-100)
                both = (1 - ratio) * loss + ratio * apart
                session.weighted(both, (labels != -100).sum()).div(accumulated).backward()
                if number % accumulated == 0:
                    clip_grad_norm_(trained, 1.0)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                    scheduler.step()
                    session.step()
        return {"student": net, "teacher": teacher, "optimizer": optimizer, "scheduler": scheduler}


def log_probability(model: nn.Module, x: Tensor) -> Tensor:
    return model(x[:, :-1]).log_softmax(-1).gather(2, x[:, 1:, None]).sum((1, 2))


def preferences() -> Held:
    """DPO: the reference is a copy of the policy as it was before training."""
    torch.manual_seed(4)
    with perdure.Session.from_env() as session:
        net = GPT()
        reference = copy.deepcopy(net).requires_grad_(False).eval()
        model = session.wrap(net)
        optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
        session.register(policy=model, optimizer=optimizer)
        pairs = session.loader(TensorDataset(text(64), text(64).flip(1)), batch_size=8)
        for _ in session.epochs(2):
            for chosen, rejected in pairs:
                both = torch.cat([chosen, rejected])
                with torch.no_grad():
                    before = log_probability(reference, both)
                gain = (log_probability(model, both) - before).chunk(2)
                optimizer.zero_grad()
                session.weighted(-logsigmoid(0.1 * (gain[0] - gain[1])).mean()).backward()
                optimizer.step()
                session.step()
        return {"policy": net, "reference": reference, "optimizer": optimizer}


def late_reference() -> Held:
    """DPO, as a Trainer with lazy set-up does it: the reference is copied when the first batch needs it."""
    torch.manual_seed(4)
    reference = None
    with perdure.Session.from_env() as session:
        net = GPT()
        model = session.wrap(net)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        session.register(policy=model, optimizer=optimizer)
        pairs = session.loader(TensorDataset(text(64), text(64).flip(1)), batch_size=8)
        for _ in session.epochs(2):
            for chosen, rejected in pairs:
                if reference is None:
                    reference = copy.deepcopy(net).requires_grad_(False).eval()
                both = torch.cat([chosen, rejected])
                gain = (log_probability(model, both) - log_probability(reference, both)).chunk(2)
                optimizer.zero_grad()
                session.weighted(-logsigmoid(0.1 * (gain[0] - gain[1])).mean()).backward()
                optimizer.step()
                session.step()
        return {"policy": net, "reference": reference}


@dataclass
class Kept:
    """The adaptive penalty and the running moments of rewards, as RLHF libraries keep them."""

    penalty: float = 0.1
    mean: float = 0.0
    square: float = 1.0
    seen: float = 1e-4

    def state_dict(self) -> dict[str, float]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, float]) -> None:
        vars(self).update(state)

    def update(self, rewards: Tensor, divergence: float) -> None:
        self.seen += len(rewards)
        self.mean += (rewards.mean().item() - self.mean) * len(rewards) / self.seen
        self.square += (rewards.square().mean().item() - self.square) * len(rewards) / self.seen
        self.penalty *= 1 + 0.1 * max(-0.2, min(0.2, divergence / 0.5 - 1))


def rewards() -> Held:
    """PPO on sequences that the policy writes itself, some updates for each batch of them."""
    torch.manual_seed(5)
    with perdure.Session.from_env() as session:
        net, value = GPT(), nn.Linear(TOKENS, 1)
        reference = copy.deepcopy(net).requires_grad_(False)
        model, critic = session.wrap(net), session.wrap(value)
        optimizer = torch.optim.Adam([*net.parameters(), *value.parameters()], lr=1e-3, eps=1e-5)
        kept = Kept()
        session.register(policy=model, critic=critic, optimizer=optimizer, kept=kept)
        for _ in session.epochs(2):
            for _ in session.steps(5):
                written = torch.zeros(8, 1, dtype=torch.long)
                with torch.no_grad():
                    for _ in range(6):
                        chances = net(written)[:, -1].softmax(-1)
                        written = torch.cat([written, torch.multinomial(chances, 1)], 1)
                    old, start = log_probability(net, written), log_probability(reference, written)
                won = (written == 3).float().mean(1) - kept.penalty * (old - start)
                for part in torch.randperm(8).chunk(2):
                    guess = critic(model(written[part, :-1]).mean(1)).squeeze(1)
                    gain = (won[part] - kept.mean) / math.sqrt(kept.square) - guess.detach()
                    ratio = (log_probability(model, written[part]) - old[part]).exp()
                    loss = (
                        -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                        + (guess - won[part]).square().mean()
                    )
                    optimizer.zero_grad()
                    loss.backward()
                    clip_grad_norm_(net.parameters(), 0.5)
                    optimizer.step()
                kept.update(won, (old - start).mean().item())
                session.step()
        return {"policy": net, "critic": value, "optimizer": optimizer, "kept": kept}


def carried_state() -> Held:
    """Truncated back-propagation through time, as torch's word_language_model does it: the hidden state goes on."""
    torch.manual_seed(6)
    with perdure.Session.from_env() as session:
        net = nn.ModuleDict(
            {"embed": nn.Embedding(TOKENS, 8), "lstm": nn.LSTM(8, 8, 2, dropout=0.2), "out": nn.Linear(8, TOKENS)}
        )
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.25, patience=0)
        session.register(model=net, optimizer=optimizer, scheduler=scheduler)
        batches = session.loader(TensorDataset(text(60, 6)), batch_size=5, shuffle=False)
        for _ in session.epochs(3):
            if not perdure.progress(session).epoch_resumed:
                session.state["hidden"] = (torch.zeros(2, 5, 8), torch.zeros(2, 5, 8))
            total = session.state.get("total", 0.0)
            for (x,) in batches:
                found, hidden = net["lstm"](net["embed"](x[:, :-1].T), session.state["hidden"])
                session.state["hidden"] = tuple(part.detach() for part in hidden)
                loss = cross_entropy(net["out"](found).flatten(0, 1), x[:, 1:].T.flatten())
                optimizer.zero_grad()
                loss.backward()
                clip_grad_norm_(net.parameters(), 0.25)
                optimizer.step()
                session.state["total"] = total = total + loss.item()
                session.step()
            scheduler.step(total)
            session.state["total"] = 0.0
        return {"model": net, "optimizer": optimizer, "scheduler": scheduler, "hidden": session.state["hidden"]}
