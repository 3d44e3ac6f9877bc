"""The experiments that ship."""

import pytest
from conftest import ROOT

from offrl import Trainer, config_factory
from offrl.config.files import read_config_file

CONFIGS = sorted((ROOT / "configs").glob("*.json"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_trains_on_the_data_that_it_names(path):
    content = read_config_file(path)
    config = config_factory(content["algo_name"], content)
    assert config.experiment.name == path.stem
    if not (ROOT / config.train.data[0].path).exists():
        pytest.skip("its images are rendered first (datasets/README.md)")
    config.experiment.epoch_every_n_steps, config.train.num_epochs = 2, 1
    config.experiment.validation_epoch_every_n_steps = 1
    config.train.batch_size = 16
    kinds = [record["type"] for record in Trainer(config)()]
    assert kinds == ["train", "valid", "epoch"]
