"""robomimic's algorithms as algorithms of offrl's, so that a study trains and measures them with
the same data, in the same batches and in the same episodes.

Networks, losses and optimizers are robomimic's. Its config is that of its template with ``options``
laid over its ``algo`` section. It is installed into a folder of its own by
``python benchmarks/studies/robomimic_peer.py``.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from offrl.algos import register_algo
from offrl.algos.base import Obs, PolicyAlgo
from offrl.config import AlgoConfig
from offrl.config.section import FreeMap, Map

sys.path.insert(0, str(Path(__file__).parents[1]))
from peers import ROBOMIMIC  # noqa: E402


class RobomimicConfig(AlgoConfig):
    ALGO_NAME = "robomimic"

    algorithm: str = Field("bc", description="Name of the algorithm.")
    options: FreeMap = Field(Map(), description="What differs from the template's section algo.")


@register_algo(RobomimicConfig)
class Robomimic(PolicyAlgo):
    """``nets["peer"]`` are the networks of the peer."""

    NEEDS = ("obs", "next_obs", "actions", "rewards", "dones")

    algo_config: RobomimicConfig

    def _create_networks(self) -> None:
        ROBOMIMIC.make_importable()
        try:
            from robomimic.algo import algo_factory
            from robomimic.config import config_factory
            from robomimic.utils import obs_utils
        except ImportError as error:
            raise ImportError(
                f"{error}; run: python benchmarks/studies/robomimic_peer.py"
            ) from None

        config, train = config_factory(self.algo_config.algorithm), self.global_config.train
        with config.values_unlocked():
            config.observation.modalities.obs.low_dim = list(self.obs_spec.shapes("obs"))
            config.train.seq_length = train.seq_length
            config.train.frame_stack = train.frame_stack
            _lay_over(config.algo, self.algo_config.options)
        obs_utils.initialize_obs_utils_with_config(config)
        shapes = {key: list(shape) for key, shape in self.obs_spec.shapes("obs").items()}
        self.peer = algo_factory(config.algo_name, config, shapes, self.ac_dim, torch.device("cpu"))
        self.nets["peer"] = self.peer.nets

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        ready = {key: batch[key] for key in ("actions", "rewards", "dones")}
        ready |= {key: self.prepare_obs(batch[key]) for key in ("obs", "next_obs")}
        return self.peer.process_batch_for_training(ready | {"goal_obs": None})

    def train_on_batch(self, batch: Any, epoch: int, validate: bool = False) -> dict[str, Any]:
        info = self.peer.train_on_batch(batch, epoch, validate=validate)
        numbers = {key.lower(): value for key, value in self.peer.log_info(info).items()}
        return {"loss": torch.tensor(float(numbers.get("loss", numbers.get("actor/loss"))))}

    def get_action(self, obs_dict: Obs, goal_dict: Obs | None = None) -> Tensor:
        return self.peer.get_action(self.prepare_obs(obs_dict))

    def reset(self) -> None:
        self.peer.reset()

    def on_epoch_end(self, epoch: int) -> None:
        self.peer.on_epoch_end(epoch)

    def set_train(self) -> None:
        self.peer.set_train()

    def set_eval(self) -> None:
        self.peer.set_eval()

    def serialize(self) -> dict[str, Any]:
        return super().serialize() | {"peer": [o.state_dict() for o in self._optimizers()]}

    def deserialize(self, state: Mapping[str, Any]) -> None:
        super().deserialize(state)
        for optimizer, saved in zip(self._optimizers(), state.get("peer", []), strict=False):
            optimizer.load_state_dict(saved)

    def _optimizers(self) -> list[Any]:
        each = self.peer.optimizers.values()
        return [o for item in each for o in (item if isinstance(item, list) else [item])]


def _lay_over(section: Any, options: Mapping[str, Any]) -> None:
    for key, value in options.items():
        if isinstance(value, Mapping):
            _lay_over(section[key], value)
        else:
            section[key] = value


if __name__ == "__main__":
    ROBOMIMIC.install()
