"""What only shows where a GPU is, besides the checks of every algorithm (``offrl.testing``)."""

import pytest
import torch

from offrl import Trainer
from offrl.training import Checkpointer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def test_a_training_on_a_gpu_repeats(small_config):
    ends = []
    for _ in range(2):
        trainer = Trainer(small_config({"train": {"cuda": True}}))
        assert trainer.device.type == trainer.dataset.device.type == "cuda"
        records = list(Checkpointer(trainer)(trainer()))
        assert [r["type"] for r in records] == ["train", "epoch"] * 3
        ends.append(trainer.algo.nets.state_dict())
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


def test_numbers_on_another_device_are_named(small_config):
    trainer = Trainer(small_config({"train": {"cuda": True}}))
    update = trainer.algo.update
    trainer.algo.update = lambda batch: update(batch) | {"kl": torch.zeros(())}
    with pytest.raises(ValueError, match="bc, step 1 .epoch 1.: update returned 'kl' on cpu"):
        list(trainer())
