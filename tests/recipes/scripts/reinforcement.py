"""Agents that learn from what they have seen: a replay buffer, and environments with a state of their own."""

import copy
import random
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import smooth_l1_loss

import perdure
from tests.recipes.held import Held

Seen = tuple[np.ndarray, int, float, np.ndarray, bool]


class Walk:
    """A cart on a line, pushed by the agent and by chance, with a generator of its own as gymnasium's have it."""

    def __init__(self, seed: int) -> None:
        self.np_random = np.random.default_rng(seed)
        self.at = self.np_random.normal(size=2).astype(np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:
        push = 0.3 * (2 * action - 1) + 0.1 * self.np_random.normal()
        self.at = np.array([self.at[0] + self.at[1], self.at[1] + push], np.float32)
        done = bool(abs(self.at[0]) > 3)
        reward = 1 - abs(float(self.at[0]))
        if done:
            self.at = self.np_random.normal(size=2).astype(np.float32)
        return self.at.copy(), reward, done

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "random": self.np_random.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.np_random.bit_generator.state = state["at"], state["random"]


class Replay:
    """The newest moves; which ones were drawn most often is unknown."""

    def __init__(self, size: int) -> None:
        self.kept: deque[Seen] = deque(maxlen=size)

    def sample(self, count: int) -> list[torch.Tensor]:
        columns = zip(*random.sample(self.kept, count), strict=True)
        return [torch.as_tensor(np.array(column)) for column in columns]

    def state_dict(self) -> dict[str, Any]:
        return {"kept": list(self.kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept.clear()
        self.kept.extend(state["kept"])


def dealt_out(states: list[dict[str, Any]], rank: int, world: int) -> dict[str, Any]:
    return {"kept": [one for state in states for one in state["kept"]][rank::world]}


def q_network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))


def learn_q(whole: bool) -> Held:
    torch.manual_seed(1)
    random.seed(1)
    world, replay = Walk(1), Replay(30)
    with perdure.Session.from_env() as session:
        policy = q_network()
        target = copy.deepcopy(policy).requires_grad_(False)
        model = session.wrap(policy)
        optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2, amsgrad=True)
        session.register(policy=model, optimizer=optimizer, world=world, replay=replay, merge={"replay": dealt_out})
        if whole:
            session.register(target=target)
        for _ in session.epochs(3):
            for _ in session.steps(12):
                for _ in range(4):
                    before = world.at.copy()
                    with torch.no_grad():
                        best = int(policy(torch.from_numpy(before)).argmax())
                    action = random.randrange(2) if random.random() < 0.9**session.steps_done else best
                    after, reward, done = world.step(action)
                    replay.kept.append((before, action, reward, after, done))
                seen, actions, rewards, after_all, ended = replay.sample(4)
                with torch.no_grad():
                    worth = rewards.float() + 0.9 * target(after_all).amax(1) * ~ended
                loss = smooth_l1_loss(model(seen).gather(1, actions[:, None]).squeeze(1), worth)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_value_(policy.parameters(), 1.0)
                optimizer.step()
                if (session.steps_done + 1) % 9 == 0:
                    target.load_state_dict(policy.state_dict())
                session.step()
        return {"policy": policy, "target": target, "optimizer": optimizer, "world": world, "replay": replay}


def dqn() -> Held:
    """DQN: replay buffer, target network, epsilon by the number of steps, an environment with a state."""
    return learn_q(whole=True)


def forgotten_target() -> Held:
    """The same, and the target network, which follows every nine steps, is registered nowhere."""
    return learn_q(whole=False)


class Worlds:
    """Several environments, the returns of episodes that are under way, and the running mean of observations."""

    def __init__(self, count: int) -> None:
        self.walks = [Walk(seed) for seed in range(count)]
        self.returns = np.zeros(count)
        self.mean, self.count = np.zeros(2), 1e-4

    def look(self) -> torch.Tensor:
        seen = np.stack([walk.at for walk in self.walks])
        self.count += len(seen)
        self.mean = self.mean + (seen.mean(0) - self.mean) * len(seen) / self.count
        return torch.from_numpy(seen - self.mean).float()

    def step(self, actions: list[int]) -> torch.Tensor:
        moves = [walk.step(action) for walk, action in zip(self.walks, actions, strict=True)]
        self.returns = np.array(
            [0.9 * past * (not done) + reward for past, (_, reward, done) in zip(self.returns, moves, strict=True)]
        )
        return torch.tensor([reward for _, reward, _ in moves]) / (1 + self.returns.std())

    def state_dict(self) -> dict[str, Any]:
        return {**vars(self), "walks": [walk.state_dict() for walk in self.walks]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        walks = state.pop("walks")
        vars(self).update(state)
        for walk, one in zip(self.walks, walks, strict=True):
            walk.load_state_dict(one)


def a2c() -> Held:
    """A2C: environments that go on over the updates, running statistics in NumPy, an entropy bonus that falls."""
    torch.manual_seed(2)
    worlds = Worlds(4)
    with perdure.Session.from_env() as session:
        net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3))
        optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-2, centered=True)
        session.register(model=net, optimizer=optimizer, worlds=worlds)
        session.state["entropy"] = 0.01
        for _ in session.epochs(2):
            for _ in session.steps(10):
                parts = []
                for _ in range(3):
                    found = net(worlds.look())
                    chances = torch.distributions.Categorical(logits=found[:, :2])
                    actions = chances.sample()
                    gain = worlds.step(actions.tolist()).float() - found[:, 2]
                    parts.append(
                        gain.square()
                        - chances.log_prob(actions) * gain.detach()
                        - session.state["entropy"] * chances.entropy()
                    )
                optimizer.zero_grad()
                torch.stack(parts).mean().backward()
                optimizer.step()
                session.state["entropy"] *= 0.97
                session.step()
        return {"model": net, "optimizer": optimizer, "worlds": worlds, "entropy": session.state["entropy"]}
