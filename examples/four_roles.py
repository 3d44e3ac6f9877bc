"""DQN in four roles, as somebody would write it who needs full control.

    cd examples && offrl train --config four_roles.json

A ``Model`` is networks, an ``Algorithm`` learns from batches, an ``Agent`` acts, and a ``Trainer``
says when. The last line registers the four under the name ``four_roles.dqn``; from there on offrl
logs, saves, resumes and evaluates them as its own algorithms. As a script, this file trains too:

    python examples/four_roles.py
"""

import copy

import numpy as np
import torch
from pydantic import Field
from torch import nn

from offrl.config import AlgoConfig
from offrl.online import Agent, Algorithm, Model, Trainer, register_roles


class DQNConfig(AlgoConfig):
    """The section ``algo`` of a config."""

    ALGO_NAME = "dqn"

    learning_rate: float = Field(2.3e-3, description="Learning rate of Adam.")
    discount: float = Field(0.99, description="Factor on later rewards.")
    hidden_dim: int = Field(256, description="Size of the hidden layers.")
    random_share: float = Field(0.04, description="Share of random actions in the end.")
    explore_steps: int = Field(8000, description="Steps until it is reached.")


class QNetwork(Model):
    def __init__(self, obs_dim, num_actions, config):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(obs_dim, config.hidden_dim),
            nn.ReLU(),
            nn.Linear(config.hidden_dim, config.hidden_dim),
            nn.ReLU(),
            nn.Linear(config.hidden_dim, num_actions),
        )

    def value(self, x, a=None):
        q = self.layers(x)
        return q if a is None else q.gather(1, a[:, None])[:, 0]

    def action(self, x):
        return self.value(x).argmax(-1)


class DQN(Algorithm):
    def __init__(self, model, config):
        self.model, self.config = model, config
        self.target = copy.deepcopy(model).requires_grad_(False)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)

    def learn(self, data):
        with torch.no_grad():
            later = self.target.value(data["next_obs"]).amax(-1)
            target = data["rewards"] + self.config.discount * (1 - data["dones"]) * later
        loss = nn.functional.smooth_l1_loss(self.model.value(data["obs"], data["actions"]), target)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self.optimizer.step()
        return {"loss": loss.detach(), "target": target.mean()}

    def sync_target(self):
        self.target.load_state_dict(self.model.state_dict())


class DQNAgent(Agent):
    """Takes random actions, at first all the time."""

    def sample(self, obs):
        config = self.alg.config
        actions = self.predict(obs)
        share = max(config.random_share, 1 - self.num_steps / config.explore_steps)
        num_actions = self.alg.model.layers[-1].out_features
        is_random = np.random.random(actions.shape) < share
        self.num_steps += actions.size
        return np.where(is_random, np.random.randint(num_actions, size=actions.shape), actions)


class DQNTrainer(Trainer):
    """Collects ``collect_steps``, then makes ``num_updates`` updates towards the same targets."""

    def round(self):
        online = self.config.train.online
        yield self._run_collect()
        if self.step > online.random_steps:
            for _ in range(online.num_updates):
                yield self._run_train()
            self.agent.alg.sync_target()


register_roles(DQNConfig, QNetwork, DQN, DQNAgent, DQNTrainer)


if __name__ == "__main__":
    config = {
        "train": {
            "num_steps": 50_000,
            "batch_size": 64,
            "online": {"collect_steps": 256, "num_updates": 128, "random_steps": 1000},
        }
    }
    trainer = DQNTrainer(config, env_id="CartPole-v1", algo_name="four_roles.dqn")
    for record in trainer():
        if "Return" in record["logs"]:
            print(f"step {record['step']}: return {record['logs']['Return']:.0f}")
