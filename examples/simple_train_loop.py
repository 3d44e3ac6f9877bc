"""Train in a plain loop: a dataset, PyTorch's DataLoader and an algorithm, without a Trainer.

    python examples/simple_train_loop.py --dataset datasets/lift/low_dim.hdf5

Copy it if you want to own the loop. ``offrl train`` also logs, evaluates and saves checkpoints.
"""

import argparse

import torch
from torch.utils.data import DataLoader

from offrl import RolloutPolicy, algo_factory, config_factory
from offrl.data.sequence import SequenceDataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="datasets/lift/low_dim.hdf5")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()

    config = config_factory("bc", {"train": {"data": args.dataset, "hdf5_normalize_obs": True}})
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(config.train.seed)

    dataset = SequenceDataset(
        hdf5_path=args.dataset,
        obs_keys=config.observation.modalities.obs.low_dim,
        action_keys=config.train.action_keys,
        dataset_keys=config.train.dataset_keys,
        hdf5_normalize_obs=config.train.hdf5_normalize_obs,
        load_next_obs=False,
    )
    loader = DataLoader(dataset, batch_size=config.train.batch_size, shuffle=True, drop_last=True)
    algo = algo_factory(
        config.algo_name,
        config,
        obs_key_shapes=dataset.obs_shapes,
        ac_dim=dataset.ac_dim,
        device=device,
    )
    algo.set_statistics(
        obs=dataset.get_obs_normalization_stats(),
        actions=dataset.get_action_normalization_stats(),
    )

    for epoch in range(1, args.epochs + 1):
        algo.set_train()
        for batch in loader:
            batch = algo.process_batch_for_training(batch)
            info = algo.train_on_batch(batch, epoch)
        algo.on_epoch_end(epoch)
        print(f"epoch {epoch}", algo.log_info(info))

    # All there is to save, and a policy that acts on numpy observations.
    state = algo.serialize()
    algo.deserialize(state)
    policy = RolloutPolicy(algo)
    policy.start_episode()
    item = dataset[0]
    print("demonstrated", item["actions"][0].round(2))
    print("policy      ", policy({k: v[0] for k, v in item["obs"].items()}).round(2))


if __name__ == "__main__":
    main()
