"""Rounds of an algorithm's own steps, for tests: it acts in environments that step together."""

import gymnasium
import numpy as np
import torch

from offrl import algo_factory, config_factory
from offrl.seeding import seed_everything

ALGORITHMS = ("reinforce", "a2c", "ppo", "impala")
RNN = {"memory": {"enabled": True, "hidden_dim": 16}}
DISCRETE = {"action_config": {"actions": {"format": "discrete"}}}


def make(name, space, algo=None, train=None, seed=0, rate=None):
    """An algorithm for the environments of a space of actions, which observe ``x``, ``[4]``.

    rate: of Adam's steps, in place of the algorithm's own optimizer.
    """
    seed_everything(seed)
    kind = DISCRETE if hasattr(space, "n") else {}
    algo = dict(algo or {})
    if rate is not None:
        steady = {"optimizer_type": "adam", "learning_rate": {"initial": rate}}
        algo["optim_params"] = {"policy": steady}
    config = config_factory(
        name,
        {
            "algo": algo,
            "train": {"cuda": False, **kind, **(train or {})},
            "observation": {"modalities": {"obs": {"low_dim": ["x"]}}},
        },
    )
    made = algo_factory(
        name, config, {"x": (4,)}, int(getattr(space, "n", 0) or space.shape[0]), "cpu"
    )
    made.set_train()
    return made


class Noise(gymnasium.Env):
    """Random observations and rewards; episodes of random length, of which half terminate."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,))

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action):
        ends, terminates = self.np_random.random(2)
        is_last = ends < 0.3
        reward = float(self.np_random.standard_normal())
        return self._look(), reward, is_last and terminates < 0.5, is_last and terminates >= 0.5, {}

    def _look(self):
        return self.np_random.standard_normal(4).astype(np.float32)


class Recall(gymnasium.Env):
    """The first observation says which action is worth 1 two steps later; others say nothing."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.step_index, self.wanted = 0, int(self.np_random.integers(2))
        obs = np.zeros(4, np.float32)
        obs[self.wanted] = 1
        return obs, {}

    def step(self, action):
        self.step_index += 1
        is_last = self.step_index == 3
        reward = float(is_last and action == self.wanted)
        return np.zeros(4, np.float32), reward, is_last, False, {}


class Aim(gymnasium.Env):
    """One step: the action should be the first two numbers of the observation."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Box(-1, 1, (2,))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.obs = self.np_random.uniform(-1, 1, 4).astype(np.float32)
        return self.obs, {}

    def step(self, action):
        return self.obs, -float(np.square(action - self.obs[:2]).sum()), True, False, {}


class Rounds:
    """The policy of ``algo`` in ``num_envs`` environments that ``make_env`` makes."""

    def __init__(self, algo, make_env, num_envs=4, seed=0):
        self.algo = algo
        self.envs = gymnasium.vector.SyncVectorEnv([make_env] * num_envs)
        self.obs, _ = self.envs.reset(seed=seed)
        self.is_over = np.zeros(num_envs, bool)  # the observation is an episode's last one
        self.state = None
        self.totals, self.scores = np.zeros(num_envs), []

    def collect(self, num_steps):
        """A round, with the ``log_probs`` and ``values`` that were computed while acting."""
        rows, first = [], self.state
        for _ in range(num_steps):
            rows.append(self._step())
        blank = {key: torch.zeros_like(x) for key, x in rows[0].items()}
        rows.append({**blank, "obs": self._seen()})
        batch = {key: torch.stack([row[key] for row in rows], dim=1) for key in rows[0]}
        return {**batch, "obs": {"x": batch["obs"][:, :, None]}, "state": first}

    def _seen(self):
        return torch.from_numpy(self.obs)

    @torch.no_grad()
    def _step(self):
        algo, seen, was_over = self.algo, self._seen(), torch.from_numpy(self.is_over)
        obs = {"x": seen[:, None]}
        action, state = algo.explore(obs, None, self.state)
        pi, values, _ = algo.nets["policy"](algo.prepare_obs(obs), self.state)
        raw = algo.raw_action(action).numpy()
        self.obs, reward, terminated, truncated, _ = self.envs.step(raw)
        row = {
            "obs": seen,
            "actions": action,
            "rewards": torch.from_numpy(reward).float(),
            "terminated": torch.from_numpy(terminated),
            "truncated": torch.from_numpy(truncated),
            "mask": ~was_over,
            "log_probs": pi.log_prob(action[:, None])[:, 0],
            "values": values,
        }
        self.totals += np.where(self.is_over, 0.0, reward)
        self.scores += self.totals[terminated | truncated].tolist()
        self.totals[terminated | truncated] = 0
        if state is not None:  # a row of zeros is a start
            self.state = {k: x * ~was_over.view(-1, *[1] * (x.ndim - 1)) for k, x in state.items()}
        self.is_over = terminated | truncated
        return row

    def learn(self, num_rounds, num_steps):
        """Act and learn in turn; the mean return of the last 50 episodes."""
        for _ in range(num_rounds):
            data = self.algo.process_batch_for_training(self.collect(num_steps))
            for batch in self.algo.minibatches(data):
                self.algo.train_on_batch(batch, epoch=1)
        return float(np.mean(self.scores[-50:]))
