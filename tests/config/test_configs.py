"""The experiments that ship."""

import pytest
from conftest import ROOT

from offrl import Trainer, config_factory
from offrl.config.files import read_config_file
from offrl.online import Trainer as OnlineTrainer

CONFIGS = sorted({*(ROOT / "configs").glob("*.json")} - {ROOT / "configs/finetune.json"})
ONLINE = sorted((ROOT / "configs/online").glob("*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_trains_on_the_data_that_it_names(path):
    content = read_config_file(path)
    config = config_factory(content["algo_name"], content)
    assert config.experiment.name == path.stem
    if not (ROOT / config.train.data[0].path).exists():
        pytest.skip("its images are rendered first (datasets/README.md)")
    config.experiment.epoch_every_n_steps, config.train.num_epochs = 2, 2
    config.experiment.validation_epoch_every_n_steps = 1
    config.train.batch_size = 16
    kinds = [record["type"] for record in Trainer(config)()]
    assert kinds == ["train", "valid", "epoch"] * 2


@pytest.mark.parametrize("path", ONLINE, ids=lambda path: path.stem)
def test_every_online_config_learns_in_its_environment(path):
    content = read_config_file(path)
    config = config_factory(content["algo_name"], content)
    assert config.experiment.name == path.stem
    train, online = config.train, config.train.online
    if "ALE" in config.experiment.env:
        pytest.importorskip("ale_py")
    if train.data:
        pytest.skip("its data takes minutes to make")
    train.batch_size, online.random_steps, online.num_envs = 8, 0, 1
    online.collect_steps, online.num_updates = min(online.collect_steps, 8), 1
    records = [*OnlineTrainer(config).round()]
    assert {record["type"] for record in records} == {"collect", "train"}
