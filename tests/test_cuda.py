"""What only shows where a GPU is."""

import pytest
import torch

from offrl import RolloutPolicy, Trainer
from offrl.training import Checkpointer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.mark.parametrize(
    ("name", "algo"),
    [
        ("bc", {"gmm": {"enabled": True}}),
        ("bc", {"rnn": {"enabled": True, "hidden_dim": 16}}),
        ("bc", {"transformer": {"enabled": True, "embed_dim": 16, "num_heads": 2}}),
        ("bc", {"vae": {"enabled": True}}),
        ("iql", {}),
        ("cql", {}),
        ("bcq", {}),
        ("td3_bc", {}),
        ("dt", {"embed_dim": 16}),
    ],
)
def test_training_and_acting_on_a_gpu(small_config, name, algo):
    overrides = {"train": {"cuda": True, "hdf5_normalize_obs": True}, "algo": algo}
    trainer = Trainer(small_config(overrides, name))
    assert trainer.device.type == trainer.dataset.device.type == "cuda"
    records = list(Checkpointer(trainer)(trainer()))
    assert [r["type"] for r in records] == ["train", "epoch"] * 3
    policy = RolloutPolicy(trainer.algo, batch_size=4)
    for env in range(3):
        policy.start_episode(env, seed=env)
    obs = {key: [0.1] * shape[0] for key, shape in trainer.dataset.obs_shapes.items()}
    for _ in range(3):
        actions = policy.act(dict.fromkeys(range(3), obs), None, dict.fromkeys(range(3), 0.0))
        assert len(actions) == 3


def test_a_training_on_a_gpu_repeats(small_config):
    ends = []
    for _ in range(2):
        trainer = Trainer(small_config({"train": {"cuda": True}}))
        list(trainer())
        ends.append(trainer.algo.nets.state_dict())
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


def test_numbers_on_another_device_are_named(small_config):
    trainer = Trainer(small_config({"train": {"cuda": True}}))
    update = trainer.algo.update
    trainer.algo.update = lambda batch: update(batch) | {"kl": torch.zeros(())}
    with pytest.raises(ValueError, match="bc, step 1 .epoch 1.: update returned 'kl' on cpu"):
        list(trainer())
