"""Train a policy with robomimic."""

import argparse
import json

from robomimic.algo import algo_factory
from robomimic.config import config_factory
from robomimic.utils import (
    file_utils,
    obs_utils,
    torch_utils,
    train_utils,
)
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--config", required=True)
parser.add_argument("--dataset", required=True)
parser.add_argument("--output", required=True)
args = parser.parse_args()

with open(args.config) as file:
    content = json.load(file)
config = config_factory(content["algo_name"])
with config.values_unlocked():
    config.update(content)
    config.train.data = args.dataset

obs_utils.initialize_obs_utils_with_config(config)
env_meta = file_utils.get_env_metadata_from_dataset(
    args.dataset
)
shape_meta = file_utils.get_shape_metadata_from_dataset(
    args.dataset, all_obs_keys=config.all_obs_keys
)
model = algo_factory(
    algo_name=config.algo_name,
    config=config,
    obs_key_shapes=shape_meta["all_shapes"],
    ac_dim=shape_meta["ac_dim"],
    device=torch_utils.get_torch_device(
        config.train.cuda
    ),
)
dataset, _ = train_utils.load_data_for_training(
    config, obs_keys=shape_meta["all_obs_keys"]
)
loader = DataLoader(
    dataset,
    batch_size=config.train.batch_size,
    shuffle=True,
    drop_last=True,
)

print("algorithm:", type(model).__name__)
for epoch in range(1, config.train.num_epochs + 1):
    logs = train_utils.run_epoch(
        model=model,
        data_loader=loader,
        epoch=epoch,
        num_steps=config.experiment.epoch_every_n_steps,
    )
    model.on_epoch_end(epoch)
    print(f"epoch {epoch}: loss {logs['Loss']:.3f}")

train_utils.save_model(
    model=model,
    config=config,
    env_meta=env_meta,
    shape_meta=shape_meta,
    ckpt_path=args.output,
)
