"""PPO for CartPole in four parts of one's own, which run.yaml combines.

    cd examples/registers && offrl train --config run.yaml

Each class is entered under its own name; to change a name in run.yaml swaps that part.
"""

import gymnasium
import numpy as np
import torch
from torch import nn

from offrl.online import Agent, Algorithm, Environment, Registers


@Registers.env
class NewEnv(Environment):
    def init_env(self, env_info):
        self.env = gymnasium.make(env_info["name"])


@Registers.model
class NewPyTorchModel(nn.Module):
    """A policy and its value."""

    def __init__(self, model_info):
        super().__init__()
        (state_dim,), hidden_dim = model_info["state_dim"], model_info.get("hidden_dim", 64)
        self.policy, self.value = (
            nn.Sequential(nn.Linear(state_dim, hidden_dim), nn.Tanh(), nn.Linear(hidden_dim, num))
            for num in (model_info["action_dim"], 1)
        )

    def forward(self, states):
        return torch.distributions.Categorical(logits=self.policy(states)), self.value(states)[:, 0]

    @torch.no_grad()
    def predict(self, state):
        return self.policy(torch.as_tensor(state)).numpy()


@Registers.agent
class NewAgent(Agent):
    def infer_action(self, state, use_explore):
        logits = self.alg.predict(state)
        # The largest of what has Gumbel noise is a sample.
        action = int(np.argmax(logits + use_explore * np.random.gumbel(size=len(logits))))
        self.transition = {"state": state, "action": action}
        return action

    def handle_env_feedback(self, next_raw_state, reward, done, info, use_explore):
        terminated = done and not info["truncated"]
        came = {"reward": reward, "next_state": next_raw_state, "terminated": terminated}
        return self.transition | came


@Registers.algorithm
class NewAlgorithm(Algorithm):
    def __init__(self, model_info, alg_config):
        super().__init__(model_info, alg_config)
        self.optimizer = torch.optim.Adam(self.actor.parameters(), alg_config["learning_rate"])

    def prepare_data(self, train_data, **kwargs):
        data = {key: torch.as_tensor(x, dtype=torch.float32) for key, x in train_data.items()}
        with torch.no_grad():
            pi, values = self.actor(data["state"])
            _, last = self.actor(data["next_state"][-1:])
        data["log_prob"] = pi.log_prob(data["action"])
        # Returns from the last state backwards, which has its value unless the episode failed.
        later = last[0] * (1 - data["terminated"][-1])
        returns = torch.empty_like(values)
        for t in range(len(returns) - 1, -1, -1):
            returns[t] = later = data["reward"][t] + self.alg_config["discount"] * later
        self.trajectories.append(data | {"return": returns, "advantage": returns - values})

    def train_ready(self, total_count, **kwargs):
        return sum(len(x["reward"]) for x in self.trajectories) >= self.alg_config["steps"]

    def train(self):
        keys = ("state", "action", "log_prob", "return", "advantage")
        data = {key: torch.cat([x[key] for x in self.trajectories]) for key in keys}
        self.trajectories.clear()
        data["advantage"] /= data["advantage"].std() + 1e-8
        for _ in range(self.alg_config["epochs"]):
            for rows in torch.randperm(len(data["return"])).split(128):
                loss = self.loss({key: x[rows] for key, x in data.items()})
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.actor.parameters(), 0.5)
                self.optimizer.step()
        return loss.item()

    def loss(self, batch):
        pi, values = self.actor(batch["state"])
        ratio = (pi.log_prob(batch["action"]) - batch["log_prob"]).exp()
        gain = torch.minimum(ratio * batch["advantage"], ratio.clamp(0.8, 1.2) * batch["advantage"])
        error = nn.functional.smooth_l1_loss(values, batch["return"])
        return error - gain.mean() - 0.01 * pi.entropy().mean()
