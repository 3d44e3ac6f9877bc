"""What the Decision Transformer remembers while acting, and what it asks for."""

import h5py
import numpy as np
import pytest
import torch

from offrl import RolloutPolicy, Trainer, algo_factory, config_factory
from offrl.checkpoint import write_checkpoint
from offrl.data.loader import BatchLoader
from offrl.data.sequence import SequenceDataset
from offrl.seeding import seed_everything

SMALL = {"embed_dim": 32, "num_layers": 2, "dropout": 0.0}
RATE = {"policy": {"learning_rate": {"initial": 3e-3, "warmup_steps": 1}}}


def make(keys, shapes, ac_dim, train=None, **algo):
    seed_everything(0)
    config = config_factory(
        "dt",
        {
            "algo": SMALL | {"optim_params": RATE} | algo,
            "train": train or {},
            "observation": {"modalities": {"obs": {"low_dim": keys}}},
        },
    )
    return algo_factory("dt", config, shapes, ac_dim, device="cpu")


def test_acting_sees_what_a_training_window_of_the_same_steps_shows():
    context = 3
    algo = make(["x"], {"x": (2,)}, 2, {"seq_length": context}, context_length=context)
    net = algo.nets["policy"]
    net.target_return.fill_(4.0)
    net.return_scale.fill_(2.0)
    rng = np.random.default_rng(0)
    obs, rewards = rng.standard_normal((6, 2)).astype(np.float32), rng.random(6)
    policy = RolloutPolicy(algo)
    policy.start_episode()
    actions = [policy({"x": obs[t]}, reward=rewards[t - 1] if t else None) for t in range(6)]
    for t in range(6):
        steps = slice(max(0, t - context + 1), t + 1)
        received = np.concatenate([[0.0], np.cumsum(rewards)])[:6]
        window = {
            "obs": {"x": torch.tensor(obs[None, steps])},
            "actions": torch.tensor(np.stack(actions)[None, steps]),
            "returns": torch.tensor(4.0 - received[None, steps]),
            "timesteps": torch.arange(6)[None, steps],
        }
        window["actions"][:, -1] = 9.0  # its own action is not seen
        batch = algo.process_batch_for_training(window)
        states = net.encoder(batch["obs"])
        with torch.no_grad():
            features = net(batch["returns"], states, batch["actions"], batch["timesteps"])
            expected = net.head(features).mode()[0, -1]
        np.testing.assert_allclose(actions[t], expected.numpy(), atol=1e-6)


def test_a_reward_that_is_not_told_is_missed():
    policy = RolloutPolicy(make(["x"], {"x": (2,)}, 2))
    policy.start_episode()
    policy({"x": np.zeros(2)})
    with pytest.raises(ValueError, match="reward="):
        policy({"x": np.zeros(2)})


@pytest.mark.slow
@pytest.mark.parametrize("is_discrete", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_return_is_had_for_the_asking(tmp_path, is_discrete):
    """The first step of an episode is rewarded if the action is above zero; the data's actions are
    a fair coin's."""
    heads_or_tails = [0, 1] if is_discrete else [-0.8, 0.8]
    path = tmp_path / "coin.hdf5"
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for i in range(200):
            actions = rng.choice(heads_or_tails, size=(2, 1))
            demo = file.create_group(f"data/demo_{i}")
            demo["obs/x"], demo["actions"] = np.ones((2, 1)), actions
            demo["rewards"], demo["dones"] = [actions[0, 0] > 0, 0], [0, 1]
    keys = config_factory("dt").train.dataset_keys
    actions = {"actions": {"format": "discrete" if is_discrete else None}}
    data = SequenceDataset(path, ["x"], ["actions"], keys, actions, seq_length=4, get_pad_mask=True)
    train = {"action_config": actions, "seq_length": 4}
    algo = make(["x"], data.obs_shapes, data.ac_dim, train, context_length=4)
    algo.inspect_data(data.values)
    assert algo.nets["policy"].target_return == 1 and algo.nets["policy"].return_scale == 1
    batches = iter(BatchLoader(data, batch_size=32, seed=0))
    for _ in range(200):
        algo.train_on_batch(algo.process_batch_for_training(next(batches)), epoch=1)
    for wanted in (1, 0):
        algo.nets["policy"].target_return.fill_(wanted)
        policy = RolloutPolicy(algo)
        policy.start_episode()
        action = policy({"x": np.ones(1)}).item()
        assert action == pytest.approx(heads_or_tails[wanted], abs=0.2)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train": {"seq_length": 30}}, "train.seq_length: 30.*algo.context_length"),
        ({"train": {"rewards": {"scale": 2.0}}}, "train.rewards.*algo.return_scale"),
        ({"algo": {"num_heads": 3}}, r"embed_dim \(128\) .*num_heads \(3\)"),
        ({"train": {"rewards": {"clip": [1.0, 0.0]}}}, "train.rewards.clip"),
        (
            {"train": {"dataset_keys": ["actions", "returns"]}},
            "train.dataset_keys: .*'rewards'",
        ),
    ],
)
def test_configs_that_cannot_work(small_config, overrides, message):
    with pytest.raises(ValueError, match=message):
        Trainer(small_config(overrides, "dt"))


def test_data_without_rewards_is_refused(small_config, demos):
    with h5py.File(demos, "a") as file:
        for demo in file["data"].values():
            del demo["rewards"]
    with pytest.raises(ValueError, match="rewards"):
        Trainer(small_config({}, "dt"))


def test_another_return_can_be_asked_for_than_in_the_training(small_config, tmp_path):
    trainer = Trainer(small_config({"algo": SMALL, "train": {"num_epochs": 1}}, "dt"))
    list(trainer())
    path = tmp_path / "model.pth"
    write_checkpoint(path, trainer.state())
    found = trainer.algo.nets["policy"].target_return
    for wanted, expected in ((None, float(found)), (7.0, 7.0)):
        overrides = {"algo": SMALL | {"target_return": wanted, "return_scale": 3.0}}
        overrides["experiment"] = {"ckpt_path": str(path)}
        net = Trainer(small_config(overrides, "dt")).algo.nets["policy"]
        assert float(net.target_return) == pytest.approx(expected)
        assert float(net.return_scale) == float(trainer.algo.nets["policy"].return_scale)


def test_a_policy_that_counts_rewards_does_not_act_without_them(small_config):
    algo = Trainer(small_config({"algo": SMALL}, "dt")).algo
    obs = {"position": torch.zeros(1, 3), "speed": torch.zeros(1, 2)}
    algo.get_action(obs)
    with pytest.raises(ValueError, match="dt .*RolloutPolicy"):
        algo.get_action(obs)
