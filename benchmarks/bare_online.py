"""Online RL in plain PyTorch, written down as directly as can be: what acting and learning cost.

Each class of ``CASES`` is one algorithm with Stable-Baselines3's defaults and the settings of
``SETTINGS``, most of them the zoo's. ``run`` goes on with the training by so many steps in the
environment, a whole number of rounds; ``returns`` are those of the last episodes. Where the
algorithm allows it, work is done for a whole round at once: the values, the log probabilities and
the advantages of a rollout after it; the batches and targets of DQN, whose target network waits for
the next round.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from bare_parts import Batch, Environments, Learner, PolicyAndValue, Replay, SlowCopy, TwinCritics
from bare_rl import TanhActor, mlp, tanh_sample
from torch import Tensor, nn
from torch.nn import functional as F

ON_POLICY = {"env_id": "CartPole-v1", "num_envs": 8, "vf_coef": 0.5, "max_norm": 0.5}
PPO_SETTINGS = {"collect_steps": 32, "batch_size": 256, "num_epochs": 20, "clip": 0.2}
PPO_SETTINGS |= {"discount": 0.98, "gae_lambda": 0.8, "lr": 1e-3}
A2C_SETTINGS = {"collect_steps": 5, "discount": 0.99, "gae_lambda": 1.0, "lr": 7e-4}
DQN_SETTINGS = {"env_id": "CartPole-v1", "collect_steps": 256, "num_updates": 128, "batch_size": 64}
DQN_SETTINGS |= {"discount": 0.99, "lr": 2.3e-3, "max_norm": 10.0, "capacity": 100_000}
DQN_SETTINGS |= {"random_steps": 1000, "explored_steps": 8000, "final_epsilon": 0.04}
CONTINUOUS = {"env_id": "Pendulum-v1", "collect_steps": 1, "num_updates": 1, "batch_size": 256}
CONTINUOUS |= {"discount": 0.99, "lr": 1e-3, "tau": 0.005, "capacity": 1_000_000}
CONTINUOUS |= {"random_steps": 1000}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": ON_POLICY | PPO_SETTINGS,
    "a2c": ON_POLICY | A2C_SETTINGS,
    "dqn": DQN_SETTINGS,
    "sac": CONTINUOUS,
    "td3": CONTINUOUS | {"exploration": 0.1, "policy_delay": 2},
}


# -- on-policy ------------------------------------------------------------------------------------


class ActorCritic:
    """Rollouts of several environments and their advantages; subclasses ``learn`` from them."""

    def __init__(self, settings: dict[str, Any], seed: int = 0, rms_prop: bool = False):
        self.settings, self.rng = settings, np.random.default_rng(seed)
        torch.manual_seed(seed)
        num_steps, num_envs = settings["collect_steps"], settings["num_envs"]
        self.round = num_steps * num_envs
        self.envs = Environments(settings["env_id"], num_envs, seed)
        self.returns = self.envs.returns
        self.num_actions = int(self.envs.envs[0].action_space.n)
        obs_dim = self.envs.obs.shape[1]
        self.net = PolicyAndValue(obs_dim, self.num_actions)
        self.learner = Learner(self.net.parameters(), settings["lr"], rms_prop)
        # A rollout; ``obs`` has the row after the last step as well.
        self.obs = torch.zeros(num_steps + 1, num_envs, obs_dim)
        self.actions = torch.zeros(num_steps, num_envs, dtype=torch.int64)
        self.rewards = np.zeros((num_steps, num_envs), dtype=np.float32)
        self.goes_on = np.zeros((num_steps, num_envs), dtype=np.float32)

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps // self.round):
            self.collect()
            self.learn()

    @torch.no_grad()
    def collect(self) -> None:
        obs, actions = self.obs.numpy(), self.actions.numpy()
        # The largest of logits and Gumbel noise is a sample of their softmax.
        noise = torch.from_numpy(self.rng.gumbel(size=(*actions.shape, self.num_actions))).float()
        obs[0] = self.envs.obs
        for t in range(len(actions)):
            logits, _ = self.net(self.obs[t])
            actions[t] = (logits + noise[t]).argmax(-1)
            outcome = self.envs.step(actions[t])
            obs[t + 1] = self.envs.obs
            self.rewards[t] = outcome.rewards
            self.goes_on[t] = ~(outcome.terminated | outcome.truncated)
            if outcome.truncated.any():  # what a time limit cuts off counts by its value
                only = outcome.truncated & ~outcome.terminated
                _, values = self.net(torch.from_numpy(outcome.next_obs[only]))
                self.rewards[t, only] += self.settings["discount"] * values.numpy()

    def advantages(self, values: np.ndarray) -> np.ndarray:
        """GAE, of values ``[T + 1, N]``."""
        discount = self.settings["discount"] * self.goes_on
        deltas = self.rewards + discount * values[1:] - values[:-1]
        decay = self.settings["gae_lambda"] * discount
        advantages = np.zeros_like(values)
        for t in reversed(range(len(deltas))):
            advantages[t] = deltas[t] + decay[t] * advantages[t + 1]
        return advantages[:-1]

    def learn(self) -> None:
        raise NotImplementedError


class PPO(ActorCritic):
    """The batch is the whole rollout, so that epochs need no shuffling."""

    def learn(self) -> None:
        settings = self.settings
        actions, obs = self.actions.flatten(), self.obs[:-1].flatten(0, 1)
        with torch.no_grad():
            logits, values = self.net(self.obs.flatten(0, 1))
            old = F.cross_entropy(logits[: self.round], actions, reduction="none")
        values = values.numpy().reshape(self.obs.shape[:2])
        advantages = self.advantages(values)
        targets = torch.from_numpy((advantages + values[:-1]).ravel())
        advantage = torch.from_numpy(advantages.ravel())
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        # The smaller of a clipped and an unclipped product has its bound on one side only.
        low = torch.where(advantage < 0, 1 - settings["clip"], 0.0)
        high = torch.where(advantage < 0, math.inf, 1 + settings["clip"])
        for _ in range(settings["num_epochs"]):
            logits, values = self.net(obs)
            ratio = (old - F.cross_entropy(logits, actions, reduction="none")).exp()
            policy_loss = -(advantage * ratio.clamp(low, high)).mean()
            loss = policy_loss + settings["vf_coef"] * F.mse_loss(values, targets)
            self.learner.descend(loss, settings["max_norm"])


class A2C(ActorCritic):
    """One update per rollout, with RMSprop; the values before and in it are the same."""

    def __init__(self, settings: dict[str, Any], seed: int = 0):
        super().__init__(settings, seed, rms_prop=True)

    def learn(self) -> None:
        logits, values = self.net(self.obs.flatten(0, 1))
        logits, now = logits[: self.round], values[: self.round]
        before = values.detach().numpy().reshape(self.obs.shape[:2])
        advantage = torch.from_numpy(self.advantages(before).ravel())
        targets = advantage + now.detach()
        surprise = F.cross_entropy(logits, self.actions.flatten(), reduction="none")
        loss = (advantage * surprise).mean() + self.settings["vf_coef"] * F.mse_loss(now, targets)
        self.learner.descend(loss, self.settings["max_norm"])


# -- off-policy -----------------------------------------------------------------------------------


class OffPolicy:
    """One environment and a replay; subclasses choose actions, and learn after each round."""

    def __init__(self, settings: dict[str, Any], seed: int = 0):
        self.settings, self.rng, self.step = settings, np.random.default_rng(seed), 0
        torch.manual_seed(seed)
        self.round = settings["collect_steps"]
        self.envs = Environments(settings["env_id"], 1, seed)
        self.returns = self.envs.returns
        self.obs_dim = self.envs.obs.shape[1]
        space = self.envs.envs[0].action_space
        self.ac_dim = space.shape[0] if space.shape else 1
        self.replay = Replay(settings["capacity"], self.obs_dim, self.ac_dim)

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps // self.round):
            for _ in range(self.round):
                self.interact()
            if self.step > self.settings["random_steps"]:
                self.learn()

    def interact(self) -> None:
        obs = self.envs.obs
        action = self.act(torch.from_numpy(obs))
        outcome = self.envs.step(self.for_environment(action))
        self.replay.add(obs, action, outcome.rewards, outcome.terminated, outcome.next_obs)
        self.step += 1

    def act(self, obs: Tensor) -> np.ndarray:
        raise NotImplementedError

    def for_environment(self, action: np.ndarray) -> np.ndarray:
        return action

    def learn(self) -> None:
        raise NotImplementedError


class DQN(OffPolicy):
    def __init__(self, settings: dict[str, Any], seed: int = 0):
        super().__init__(settings, seed)
        self.num_actions = int(self.envs.envs[0].action_space.n)
        self.net = mlp(self.obs_dim, self.num_actions)
        self.learner = Learner(self.net.parameters(), settings["lr"])

    @torch.no_grad()
    def act(self, obs: Tensor) -> np.ndarray:
        final, explored = self.settings["final_epsilon"], self.settings["explored_steps"]
        epsilon = max(final, 1 - (1 - final) * self.step / explored)
        if self.step < self.settings["random_steps"] or self.rng.random() < epsilon:
            return self.rng.integers(self.num_actions, size=1)
        return self.net(obs).argmax(-1).numpy()

    def learn(self) -> None:
        """The target network is the network before the round, which is when it is copied last: all
        batches and targets of a round are known before its updates."""
        settings = self.settings
        size = settings["batch_size"]
        b = self.replay.sample(settings["num_updates"] * size)
        with torch.no_grad():
            next_q = self.net(b.next_obs).amax(-1)
            targets = b.rewards + settings["discount"] * (1 - b.terminated) * next_q
        batches = (part.split(size) for part in (b.obs.contiguous(), b.actions.long(), targets))
        for obs, actions, target in zip(*batches, strict=True):
            q = self.net(obs).gather(1, actions).squeeze(1)
            self.learner.descend(F.smooth_l1_loss(q, target), settings["max_norm"])


class Continuous(OffPolicy):
    """Twin critics and their slow copy; actions are in [-1, 1]."""

    def __init__(self, settings: dict[str, Any], seed: int = 0):
        super().__init__(settings, seed)
        space = self.envs.envs[0].action_space
        self.middle, self.reach = (space.high + space.low) / 2, (space.high - space.low) / 2
        self.critic = TwinCritics(self.obs_dim, self.ac_dim)
        self.critic_learner = Learner(self.critic.parameters(), settings["lr"])
        self.target = SlowCopy(self.critic, self.critic_learner, settings["tau"])

    def for_environment(self, action: np.ndarray) -> np.ndarray:
        return self.middle + self.reach * action

    @torch.no_grad()
    def act(self, obs: Tensor) -> np.ndarray:
        if self.step < self.settings["random_steps"]:
            return self.rng.uniform(-1, 1, size=(1, self.ac_dim)).astype(np.float32)
        return self.explore(obs).numpy()

    def explore(self, obs: Tensor) -> Tensor:
        raise NotImplementedError

    def update_critic(self, b: Batch, next_value: Tensor) -> None:
        targets = b.rewards + self.settings["discount"] * (1 - b.terminated) * next_value
        losses = (self.critic(b.obs, b.actions) - targets).square().mean(1)
        self.critic_learner.descend(losses.sum())


class SAC(Continuous):
    """Actor and temperature have one rate, so that one Adam serves both."""

    def __init__(self, settings: dict[str, Any], seed: int = 0):
        super().__init__(settings, seed)
        self.actor = TanhActor(self.obs_dim, self.ac_dim)
        self.log_alpha = nn.Parameter(torch.zeros(1))
        self.learner = Learner([*self.actor.parameters(), self.log_alpha], settings["lr"])

    def explore(self, obs: Tensor) -> Tensor:
        mean, std = self.actor(obs)
        return torch.tanh(mean + std * torch.randn_like(mean))

    def learn(self) -> None:
        b = self.replay.sample(self.settings["batch_size"])
        with torch.no_grad():
            alpha = self.log_alpha.exp()
            next_actions, log_prob = tanh_sample(*self.actor(b.next_obs))
            next_value = self.target.net(b.next_obs, next_actions).amin(0) - alpha * log_prob
        self.update_critic(b, next_value)
        actions, log_prob = tanh_sample(*self.actor(b.obs))
        actor_loss = (alpha * log_prob - self.critic(b.obs, actions).amin(0)).mean()
        alpha_loss = -self.log_alpha[0] * (log_prob.detach().mean() - self.ac_dim)
        self.learner.descend(actor_loss + alpha_loss)
        self.target.follow()


class TD3(Continuous):
    def __init__(self, settings: dict[str, Any], seed: int = 0):
        super().__init__(settings, seed)
        self.actor = mlp(self.obs_dim, self.ac_dim).append(nn.Tanh())
        self.learner = Learner(self.actor.parameters(), settings["lr"])
        self.actor_target = SlowCopy(self.actor, self.learner, settings["tau"])
        self.num_updates = 0

    def explore(self, obs: Tensor) -> Tensor:
        action = self.actor(obs)
        noise = self.settings["exploration"] * torch.randn_like(action)
        return (action + noise).clamp(-1, 1)

    def learn(self) -> None:
        b = self.replay.sample(self.settings["batch_size"])
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(b.actions)).clamp(-0.5, 0.5)
            next_actions = (self.actor_target.net(b.next_obs) + noise).clamp(-1, 1)
            next_value = self.target.net(b.next_obs, next_actions).amin(0)
        self.update_critic(b, next_value)
        self.num_updates += 1
        if self.num_updates % self.settings["policy_delay"] == 0:
            self.learner.descend(-self.critic(b.obs, self.actor(b.obs), only_first=True).mean())
            self.target.follow()
            self.actor_target.follow()


CASES: dict[str, type[ActorCritic] | type[OffPolicy]] = {
    "ppo": PPO,
    "a2c": A2C,
    "dqn": DQN,
    "sac": SAC,
    "td3": TD3,
}
