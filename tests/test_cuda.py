"""What only shows where a GPU is, besides the checks of every algorithm (``offrl.testing``)."""

import json

import pytest
import torch
import yaml

from offrl import Trainer
from offrl.__main__ import main
from offrl.checkpoint import read_checkpoint
from offrl.data.ring import Ring
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


def test_batches_that_are_sent_ahead_are_those_of_data_on_the_gpu(small_config):
    ends = []
    for cache_mode in ("all", None):
        trainer = Trainer(small_config({"train": {"cuda": True, "hdf5_cache_mode": cache_mode}}))
        assert trainer.dataset.device.type == ("cuda" if cache_mode else "cpu")
        list(trainer())
        ends.append(trainer.algo.nets.state_dict())
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


def test_no_copy_of_a_ring_is_overtaken():
    device = torch.device("cuda")
    square = torch.randn(4096, 4096, device=device)
    batches = ({"obs": {"x": torch.full((2**22,), float(number))}} for number in range(40))
    ranges = []
    for batch in Ring(device)(batches):
        square @ square  # the GPU is late
        ranges.append(torch.stack(batch["obs"]["x"].aminmax()))
    assert torch.stack(ranges).cpu().tolist() == [[number, number] for number in range(40)]


def test_numbers_on_another_device_are_named(small_config):
    trainer = Trainer(small_config({"train": {"cuda": True}}))
    update = trainer.algo.update
    trainer.algo.update = lambda batch: update(batch) | {"kl": torch.zeros(())}
    with pytest.raises(ValueError, match="bc, step 1 .epoch 1.: .*'kl' .*cpu"):
        list(trainer())


def test_cells_of_a_study_share_a_gpu(small_config, tmp_path):
    content = small_config({"train": {"cuda": True}}).to_dict()
    (tmp_path / "small.json").write_text(json.dumps(content))
    ends = []
    for jobs in ("1", "2"):
        output = tmp_path / jobs
        study = {"output": str(output), "configs": ["small.json"], "seeds": [1, 2]}
        (tmp_path / f"{jobs}.yaml").write_text(yaml.dump(study))
        assert main(["study", str(tmp_path / f"{jobs}.yaml"), "--jobs", jobs]) == 0
        models = [read_checkpoint(path)["model"] for path in sorted(output.glob("*/2*/last.pth"))]
        ends.append([model["nets"] for model in models])
    alone, beside = ends
    assert len(alone) == len(beside) == 2
    for one, other in zip(alone, beside, strict=True):
        assert one and all(torch.equal(one[key], other[key]) for key in one)
