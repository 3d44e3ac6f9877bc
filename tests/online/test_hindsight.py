"""Goals in hindsight let a policy learn where the goals that were meant are never reached."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from offrl.online import Trainer

NUM_BITS = 8
BITS = spaces.Box(0, 1, (NUM_BITS,), np.float32)


class Blind(gymnasium.Env):
    """Bits that are to become those of a goal, one flip at a time (Andrychowicz et al., 2017,
    arXiv:1707.01495, section 3.1): -1 for each step in which they are not."""

    observation_space = spaces.Dict(
        {"observation": BITS, "achieved_goal": BITS} | {"desired_goal": BITS}
    )
    action_space = spaces.Discrete(NUM_BITS)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.bits, self.goal = self.np_random.integers(0, 2, (2, NUM_BITS)).astype(np.float32)
        return self.obs(), {}

    def obs(self):
        seen = {"observation": self.bits, "achieved_goal": self.bits, "desired_goal": self.goal}
        return {key: x.copy() for key, x in seen.items()}

    def step(self, action):
        self.bits[action] = 1 - self.bits[action]
        reward = float((self.bits == self.goal).all()) - 1
        return self.obs(), reward, reward == 0, False, {"is_success": reward == 0}


class BitFlip(Blind):
    def compute_reward(self, achieved_goal, desired_goal, info):
        return (achieved_goal == desired_goal).all(-1).astype(np.float32) - 1

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return bool((achieved_goal == desired_goal).all())


class Deaf(BitFlip):
    def compute_reward(self, achieved_goal, desired_goal, info):
        return float(np.array_equal(achieved_goal, desired_goal)) - 1


class Turn(BitFlip):
    action_space = spaces.Box(-1, 1, (1,))


for kind in (BitFlip, Blind, Deaf, Turn):
    gymnasium.register(
        f"{kind.__name__}-v0", f"test_hindsight:{kind.__name__}", max_episode_steps=NUM_BITS
    )


def config(share, seen=("desired_goal", "observation"), **train):
    return {
        "observation": {"modalities": {"obs": {"low_dim": [*seen]}}},
        "train": {
            "seed": 1,
            "online": {
                "collect_steps": 16,
                "num_updates": 8,
                "random_steps": 300,
                "replay": {"capacity": 20_000, "hindsight_share": share},
            },
            **train,
        },
        "algo": {
            "discount": 0.98,
            "target_every": 50,
            "exploration": {"steps": 1500, "final": 0.05},
            "optim_params": {"critic": {"learning_rate": {"initial": 1e-3}}},
            "critic": {"layer_dims": [64, 64]},
        },
    }


def success_rate(share, num_steps):
    trainer = Trainer(config(share), "test_hindsight:BitFlip-v0", "dqn", num_steps)
    rates = []
    for record in trainer():
        if record["logs"].get("Episodes"):
            rates.append((record["logs"]["Episodes"], record["logs"]["Success_Rate"]))
    counts, means = np.array(rates[-60:]).T
    return float((counts * means).sum() / counts.sum())


@pytest.mark.slow
def test_goals_that_are_never_reached_are_learned_in_hindsight():
    assert success_rate(0.8, 2400) > 0.8
    assert success_rate(0.0, 2400) < 0.3


@pytest.mark.parametrize(
    "env, options, message",
    [
        ("CartPole-v1", {"seen": ["flat"]}, "hindsight_share: CartPole-v1 .*achieved_goal"),
        ("test_hindsight:Blind-v0", {}, "hindsight_share: .*Blind-v0 .*compute_reward"),
        ("test_hindsight:BitFlip-v0", {"seen": ["observation"]}, "modalities.obs: .*desired_goal"),
    ],
)
def test_what_has_no_goals_is_refused(env, options, message):
    with pytest.raises(ValueError, match=message):
        Trainer(config(0.8, **options), env, "dqn", 1000)


def test_a_reward_of_all_goals_together_is_refused():
    trainer = Trainer(config(0.8), "test_hindsight:Deaf-v0", "dqn", 1000)
    with pytest.raises(ValueError, match="Deaf-v0: compute_reward"):
        for _ in trainer():
            pass


def test_goals_of_data_are_none_of_acting():
    goals = {"observation": {"modalities": {"goal": {"low_dim": ["achieved_goal"]}}}}
    with pytest.raises(ValueError, match="observation.modalities.goal"):
        Trainer(goals, "test_hindsight:BitFlip-v0", "dqn", 1000)


def test_returns_are_not_known_of_other_goals():
    with pytest.raises(ValueError, match="hindsight_share: cal_ql"):
        Trainer(config(0.8) | {"algo": {}}, "test_hindsight:Turn-v0", "cal_ql", 1000)
