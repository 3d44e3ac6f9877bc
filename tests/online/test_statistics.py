"""Running normalisation: its moments, and that evaluations and checkpoints have the same."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from offrl import config_factory
from offrl.checkpoint import policy_from_checkpoint
from offrl.online import Trainer
from offrl.online.statistics import Moments
from offrl.training import train
from offrl.training.acting import OnlineTraining

SMALL = {"policy_layer_dims": [8], "value_layer_dims": [8]}
NORMALIZED = {"collect_steps": 25, "normalize_obs": True, "normalize_rewards": True}


def make_config(folder, **online):
    return config_factory(
        "ppo",
        {
            "experiment": {
                "env": "Pendulum-v1",
                "epoch_every_n_steps": 100,
                "rollout": {"n": 2, "horizon": 20, "num_workers": 1},
                "logging": {"log_tb": False},
                "render_video": False,
            },
            "train": {
                "num_steps": 300,
                "cuda": False,
                "output_dir": str(folder),
                "online": NORMALIZED | online,
            },
            "algo": SMALL,
        },
    )


@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    offset=st.floats(-1e4, 1e4),
    scale=st.floats(1e-2, 1e3),
)
def test_moments_are_those_of_all_rows_however_they_come(seed, sizes, offset, scale):
    rows = np.random.default_rng(seed).normal(offset, scale, (sum(sizes), 3))
    moments = Moments()
    for part in np.split(rows, np.cumsum(sizes)[:-1]):
        moments.add(part)
    assert moments.count == len(rows)
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-9, atol=1e-9 * scale)
    variance = moments.deviation**2 - 1e-8
    np.testing.assert_allclose(variance, rows.var(axis=0), rtol=1e-6, atol=1e-8)
    again = Moments()
    again.restore(moments.state())
    again.add(rows)
    moments.add(rows)
    assert np.array_equal(again.mean, moments.mean)
    assert np.array_equal(again.squares, moments.squares)


def test_observations_are_normalised_by_all_that_was_seen(tmp_path, monkeypatch):
    trainer = Trainer(make_config(tmp_path, num_envs=2))
    seen, step = [], trainer.envs.step

    def noting(actions):
        seen.append(trainer.obs["flat"])
        return step(actions)

    monkeypatch.setattr(trainer.envs, "step", noting)
    for _ in range(3):
        list(trainer.round())
    rows = np.concatenate(seen).astype(np.float64)
    stats = trainer.alg.obs_normalizer.stats["flat"]
    np.testing.assert_allclose(stats["offset"].flatten(), rows.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(stats["scale"].flatten(), rows.std(axis=0), rtol=1e-4)


def test_rewards_are_divided_by_the_deviation_of_discounted_returns(tmp_path, monkeypatch):
    trainer = Trainer(make_config(tmp_path, num_envs=1))
    rewards, step = [], trainer.envs.step

    def noting(actions):
        stepped = step(actions)
        rewards.append((stepped.rewards[0], stepped.truncated[0]))
        return stepped

    monkeypatch.setattr(trainer.envs, "step", noting)
    for _ in range(9):  # past the end of an episode
        list(trainer.round())
    sums, total = [], 0.0
    for reward, is_over in rewards:
        total = 0.99 * total + reward
        sums.append(total)
        total = 0.0 if is_over else total
    given = trainer.statistics.rewards(torch.tensor([-1.0, 2.0]))
    np.testing.assert_allclose(given, np.array([-1, 2]) / np.std(sums), rtol=1e-5)
    assert float(trainer.statistics.rewards(torch.tensor(1e9))) == 10  # in deviations


def test_evaluation_changes_no_statistic(tmp_path):
    training = OnlineTraining(make_config(tmp_path))
    list(training())
    trainer, statistics = training.trainer, training.trainer.statistics
    before, counts = statistics.state(), [m.count for m in statistics._obs.values()]
    obs = {"flat": np.array([5.0, -5.0, 50.0], np.float32)}
    first = trainer.agent.predict(obs)
    for _ in range(20):
        assert np.array_equal(trainer.agent.predict(obs), first)
    assert counts == [300] and statistics.state()["obs"]["flat"]["count"] == 300
    after = statistics.state()["obs"]["flat"]
    assert all(torch.equal(before["obs"]["flat"][k], after[k]) for k in ("mean", "squares"))
    training.close()


@pytest.mark.slow
@pytest.mark.parametrize("normalize_obs", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_checkpoints_policy_acts_as_the_trainings(normalize_obs, tmp_path):
    training = OnlineTraining(make_config(tmp_path, normalize_obs=normalize_obs))
    list(training())
    result = train(make_config(tmp_path, normalize_obs=normalize_obs))
    policy, _ = policy_from_checkpoint(result.run.last_checkpoint, device="cpu")
    policy.start_episode()
    obs = np.random.default_rng(0).normal(0, 3, (10, 3)).astype(np.float32)
    for row in obs:
        expected = training.trainer.agent.predict({"flat": row})
        np.testing.assert_allclose(policy({"flat": row}), expected, rtol=1e-6, atol=1e-7)
    training.close()


@pytest.mark.parametrize("online", [{}, {"clip_rewards": True}])
def test_the_scale_of_rewards_is_of_those_that_are_learned_from(online, tmp_path):
    """Whatever their unit, normalised rewards are the same."""
    config, deviations = make_config(tmp_path, **online), []
    for scale in (1.0, 100.0):
        config.train.rewards.scale = scale
        trainer = Trainer(config)
        for _ in trainer.round():
            pass
        deviations.append(trainer.statistics.reward_stats["scale"] / scale ** (not online))
    torch.testing.assert_close(*deviations)


def test_parts_of_the_control_flow_normalise_by_themselves():
    online = NORMALIZED | {"random_steps": 0}
    trainer = Trainer({"train": {"online": online}}, env_id="CartPole-v1", algo_name="dqn")
    for _ in range(3):
        trainer._run_collect()
        trainer._run_train()
    assert trainer.statistics._obs["flat"].count == 50 and len(trainer.statistics._seen) == 25
    assert trainer.alg.obs_normalizer.stats["flat"]["scale"].max() != 1
    state = trainer.state()
    again = Trainer({"train": {"online": online}}, env_id="CartPole-v1", algo_name="dqn")
    again.restore(state)
    for one in (trainer, again):
        one._run_collect()
    first, second = (x.alg.obs_normalizer.stats["flat"] for x in (trainer, again))
    assert all(np.array_equal(first[key], second[key]) for key in first)
    trainer.close(), again.close()


class Paying(gymnasium.Env):
    """Ten steps, each of which pays 50 and its number."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(2, np.float32), 50.0 + self.time, self.time == 10, False, {}


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_rewards_are_scaled_alike_however_episodes_begin(mode):
    config = {"algo": {"discount": 0.9, **SMALL}, "train": {"online": NORMALIZED}}
    config["train"]["online"] = NORMALIZED | {"collect_steps": 55}
    envs = SyncVectorEnv([Paying] * 2, autoreset_mode=mode)
    trainer = Trainer(config, algo_name="a2c", envs=envs)
    trainer._run_collect()
    sums = [50.0 + 1]
    for number in range(2, 11):
        sums.append(0.9 * sums[-1] + 50 + number)
    num_steps = trainer.step // 2
    expected = np.std([sums[i % 10] for i in range(num_steps)])
    np.testing.assert_allclose(trainer.statistics._returns.deviation, expected, rtol=1e-6)
    # The first round is learned from in these units already.
    learned = trainer.statistics.rewards(torch.tensor([50.0]))
    np.testing.assert_allclose(learned.item(), 50 / expected, rtol=1e-5)
    trainer.close()
