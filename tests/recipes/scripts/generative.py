"""GANs with two optimizers, diffusion with averaged weights, autoencoders whose loss or codebook changes by itself."""

import copy
import math
import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, embedding, mse_loss, one_hot
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import TensorDataset

import perdure
from tests.recipes.held import Held


def pictures(samples: int) -> TensorDataset:
    dice = torch.Generator().manual_seed(9)
    return TensorDataset(torch.rand(samples, 1, 4, 4, generator=dice), torch.arange(samples) % 4)


def dcgan() -> Held:
    """The tutorial of torch: two networks with batch norm, two Adams, and labels that flip by chance."""
    torch.manual_seed(1)
    random.seed(1)
    with perdure.Session.from_env() as session:
        painter = nn.Sequential(
            nn.ConvTranspose2d(8, 8, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 1, 3), nn.Sigmoid()
        )
        judge = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 2), nn.Flatten(0)
        )
        net_g, net_d = session.wrap(painter), session.wrap(judge)
        for_g = torch.optim.Adam(net_g.parameters(), lr=2e-3, betas=(0.5, 0.999))
        for_d = torch.optim.Adam(net_d.parameters(), lr=2e-3, betas=(0.5, 0.999))
        session.register(painter=net_g, judge=net_d, for_g=for_g, for_d=for_d)
        fixed = torch.randn(4, 8, 1, 1)
        batches = session.loader(pictures(48), batch_size=8)
        session.state["shown"] = []
        for _ in session.epochs(2):
            for real, _ in batches:
                truth = torch.full((len(real),), 0.9 if random.random() < 0.8 else 0.1)
                for_d.zero_grad()
                fake = net_g(torch.randn(len(real), 8, 1, 1))
                binary_cross_entropy_with_logits(net_d(real), truth).backward()
                binary_cross_entropy_with_logits(net_d(fake.detach()), 1 - truth).backward()
                for_d.step()
                for_g.zero_grad()
                binary_cross_entropy_with_logits(net_d(fake), truth).backward()
                for_g.step()
                session.step()
            with torch.no_grad():
                session.state["shown"].append(painter(fixed).mean().item())
        return {"painter": painter, "judge": judge, "for_g": for_g, "for_d": for_d, "shown": session.state["shown"]}


def critics() -> Held:
    """WGAN-GP: five steps of a critic with spectral norm for each of the painter's, both rates falling."""
    torch.manual_seed(2)
    with perdure.Session.from_env() as session:
        painter = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16))
        critic = nn.Sequential(spectral_norm(nn.Linear(16, 16)), nn.SiLU(), spectral_norm(nn.Linear(16, 1)))
        for_painter = torch.optim.RMSprop(painter.parameters(), lr=1e-2)
        for_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-2)
        falling = [torch.optim.lr_scheduler.ExponentialLR(one, 0.9) for one in (for_painter, for_critic)]
        session.register(painter=painter, critic=critic, for_painter=for_painter, for_critic=for_critic)
        session.register(painter_rate=falling[0], critic_rate=falling[1])
        batches = session.loader(pictures(48), batch_size=4)
        for _ in session.epochs(2):
            for real, _ in batches:
                flat, fake = real.flatten(1), painter(torch.randn(len(real), 4))
                between = torch.lerp(flat, fake.detach(), torch.rand(len(real), 1)).requires_grad_()
                slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0].norm(dim=1)
                for_critic.zero_grad()
                (critic(fake.detach()).mean() - critic(flat).mean() + 10 * (slope - 1).square().mean()).backward()
                for_critic.step()
                if session.steps_done % 5 == 4:
                    for_painter.zero_grad()
                    (-critic(painter(torch.randn(len(real), 4))).mean()).backward()
                    for_painter.step()
                session.step()
            for scheduler in falling:
                scheduler.step()
        return {"painter": painter, "critic": critic, "optimizers": [for_painter, for_critic], "rates": falling}


class EMAModel:
    """As in diffusers: the averages are in a list, the decay follows the number of updates."""

    def __init__(self, weights: list[nn.Parameter]) -> None:
        self.shadow_params = [weight.detach().clone() for weight in weights]
        self.optimization_step, self.cur_decay_value = 0, None

    def step(self, weights: list[nn.Parameter]) -> None:
        self.optimization_step += 1
        self.cur_decay_value = decay = min(0.9999, 1 - (1 + self.optimization_step) ** -0.75)
        for average, weight in zip(self.shadow_params, weights, strict=True):
            average.sub_((1 - decay) * (average - weight.detach()))

    def state_dict(self) -> dict[str, Any]:
        return vars(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = copy.deepcopy(state)
        self.optimization_step, self.cur_decay_value = state["optimization_step"], state["cur_decay_value"]
        self.shadow_params = state["shadow_params"]


def diffusion() -> Held:
    """The script of diffusers: noise at random times, min-SNR weights, conditions dropped by chance, an EMA."""
    torch.manual_seed(3)
    with perdure.Session.from_env() as session:
        net = nn.Sequential(nn.Linear(16 + 4 + 1, 32), nn.SiLU(), nn.Dropout(0.1), nn.Linear(32, 16))
        model = session.wrap(net)
        kept = torch.cumprod(1 - torch.linspace(1e-3, 0.2, 20), 0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 5))
        ema = EMAModel(list(net.parameters()))
        session.register(model=model, optimizer=optimizer, scheduler=scheduler, ema=ema)
        batches = session.loader(pictures(48), batch_size=6)
        for _ in session.epochs(2):
            for clean, labels in batches:
                noise, times = torch.randn_like(clean).flatten(1), torch.randint(0, 20, (len(clean),))
                level = kept[times, None]
                condition = one_hot(labels, 4) * (torch.rand(len(clean), 1) > 0.1)
                seen = level.sqrt() * clean.flatten(1) + (1 - level).sqrt() * noise
                guess = model(torch.cat([seen, condition, times[:, None] / 20], 1))
                ratio = (level / (1 - level)).clamp(max=5) / (level / (1 - level))
                loss = session.weighted((ratio * mse_loss(guess, noise, reduction="none")).mean())
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                ema.step(list(net.parameters()))
                session.step()
        return {"model": net, "optimizer": optimizer, "scheduler": scheduler, "ema": ema}


class Annealer:
    """The weight of the KL part, from 0 to 1, again and again, as in the commonly copied class."""

    def __init__(self, steps: int) -> None:
        self.steps, self.current = steps, 0

    def __call__(self) -> float:
        return 0.5 - 0.5 * math.cos(math.pi * self.current / self.steps)

    def step(self) -> None:
        self.current = (self.current + 1) % self.steps


class Remembered(Annealer):
    def state_dict(self) -> dict[str, int]:
        return {"current": self.current}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.current = state["current"]


def autoencoded(annealer: Annealer, registered: dict[str, Any]) -> Held:
    torch.manual_seed(4)
    with perdure.Session.from_env() as session:
        net = nn.ModuleDict({"encoder": nn.Linear(16, 8), "decoder": nn.Linear(4, 16)})
        optimizer = torch.optim.Adamax(net.parameters(), lr=5e-3)
        session.register(model=net, optimizer=optimizer, **registered)
        batches = session.loader(pictures(48), batch_size=6)
        for _ in session.epochs(2):
            for images, _ in batches:
                mean, spread = net["encoder"](images.flatten(1)).chunk(2, 1)
                guess = net["decoder"](mean + spread.exp() * torch.randn_like(spread))
                divergence = 0.5 * (mean.square() + (2 * spread).exp() - 2 * spread - 1).sum(1).mean()
                optimizer.zero_grad()
                (mse_loss(guess, images.flatten(1)) + annealer() * divergence).backward()
                optimizer.step()
                annealer.step()
                session.step()
        return {"model": net, "optimizer": optimizer, "annealer": annealer.current}


def annealing() -> Held:
    """A VAE whose annealing of the KL part is registered."""
    annealer = Remembered(11)
    return autoencoded(annealer, {"annealer": annealer})


def forgotten_annealing() -> Held:
    """The same, and the object that anneals has no state_dict."""
    return autoencoded(Annealer(11), {})


class Codebook(nn.Module):
    """Codes that follow the mean of their members (VQ-VAE with EMA); dead ones restart at a sample."""

    def __init__(self, codes: int, width: int) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(codes, width))
        self.register_buffer("sizes", torch.ones(codes))
        self.register_buffer("sums", torch.as_tensor(self.codes).clone())

    def forward(self, x: Tensor) -> Tensor:
        chosen = torch.cdist(x, self.codes).argmin(1)
        if self.training:
            with torch.no_grad():
                hits = one_hot(chosen, len(self.codes)).float()
                self.sizes = 0.9 * self.sizes + 0.1 * hits.sum(0)
                self.sums = 0.9 * self.sums + 0.1 * hits.T @ x
                dead = self.sizes < 0.3
                fresh = x[torch.randint(len(x), (len(self.codes),))]
                self.codes = torch.where(dead[:, None], fresh, self.sums / self.sizes[:, None])
        return x + (embedding(chosen, self.codes) - x).detach()


def codebook() -> Held:
    """VQ-VAE: the codebook's buffers are other tensors after each step; Gumbel noise falls by the steps done."""
    torch.manual_seed(5)
    with perdure.Session.from_env() as session:
        net = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), Codebook(6, 4), nn.Linear(4, 16))
        model = session.wrap(net)
        optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(pictures(48), batch_size=6)
        for _ in session.epochs(2):
            for images, _ in batches:
                noise = torch.distributions.Gumbel(0.0, 1.0).sample(images.shape) / (10 + session.steps_done)
                optimizer.zero_grad()
                session.weighted(mse_loss(model(images + noise), images.flatten(1))).backward()
                optimizer.step()
                session.step()
        return {"model": net, "optimizer": optimizer}
