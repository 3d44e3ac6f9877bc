"""Users' algorithms that consist of four classes."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from offrl.algos.base import PolicyAlgo, Seen, register_algo
from offrl.algos.shared.model import Model
from offrl.config import AlgoConfig
from offrl.faces.algorithm import Algorithm
from offrl.online.agent import BaseAgent
from offrl.online.trainer import ActingTrainer
from offrl.tree import map_leaves


def register_roles(
    config: type[AlgoConfig],
    model: type[Model],
    algorithm: type[Algorithm],
    agent: type[BaseAgent] = BaseAgent,
    trainer: type[ActingTrainer] = ActingTrainer,
) -> None:
    """Register four roles as an algorithm, whose name is ``config.ALGO_NAME``.

    It is then trained, saved, resumed and evaluated like offrl's own. offrl makes
    ``model(obs_dim, ac_dim, config)``, where ``obs_dim`` is the size of all observations as one
    vector and ``ac_dim`` that of an action or the number of discrete ones,
    ``algorithm(model, config)`` and ``agent(algorithm)``; ``config`` is the section ``algo``.
    ``learn`` gets ``obs`` and ``next_obs`` ``[B, obs_dim]``, ``actions`` ``[B]`` (integers) or
    ``[B, A]``, ``rewards`` and ``dones`` ``[B]``, and returns a dict with the ``loss``. Actions are
    always the environment's; observations are normalised if the config says so, and images have
    channels first. Checkpoints hold the modules, optimizers and numbers among the algorithm's
    attributes.
    """
    roles = {"MODEL": model, "ALGORITHM": algorithm, "AGENT": agent, "TRAINER": trainer}
    name = f"{algorithm.__name__}OfRoles"
    made = type(name, (RolesAlgo,), {**roles, "__module__": algorithm.__module__})
    register_algo(config)(made)


class RolesAlgo(PolicyAlgo):
    """Adapts a user's ``Algorithm`` to offrl's ``Algo``."""

    NEEDS = ("obs", "next_obs", "actions", "rewards", "dones")
    ACTIONS = ("discrete", "real-valued")
    MODEL: ClassVar[type[Model]]
    ALGORITHM: ClassVar[type[Algorithm]]
    AGENT: ClassVar[type[BaseAgent]]
    TRAINER: ClassVar[type[ActingTrainer]]

    def _create_networks(self) -> None:
        train = self.global_config.train
        if train.frame_stack > 1 or train.seq_length > 1:
            raise ValueError(
                f"train.frame_stack, seq_length: {self.global_config.algo_name} is given one "
                "observation at a time; set both to 1"
            )
        shapes = self.obs_spec.shapes("obs").values()
        obs_dim = sum(torch.Size(shape).numel() for shape in shapes)
        model: Any = self.MODEL
        algorithm: Any = self.ALGORITHM
        self.written = algorithm(model(obs_dim, self.ac_dim, self.algo_config), self.algo_config)
        for name, value in vars(self.written).items():
            if isinstance(value, torch.nn.Module):
                self.nets[name] = value

    def _attributes(self, kind: type | tuple[type, ...]) -> dict[str, Any]:
        return {name: x for name, x in vars(self.written).items() if isinstance(x, kind)}

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        data = super().process_batch_for_training(batch)
        flat = {key: self._flat(data[key]) for key in ("obs", "next_obs")}
        flat["actions"] = self.raw_action(data["actions"][:, -1])
        return flat | {key: data[key].flatten() for key in ("rewards", "dones")}

    def _flat(self, obs: Any) -> Tensor:
        return torch.cat([obs[key].flatten(1) for key in self.obs_spec.keys("obs")], dim=1)

    def seen(self, obs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Flatten observations ``{key: [N, ...]}`` to vectors ``[N, obs_dim]``."""
        shown = {key: torch.as_tensor(x)[:, None] for key, x in obs.items()}
        return self._flat(self.prepare_obs(shown)).cpu().numpy()

    def update(self, batch: dict[str, Any]) -> dict[str, Any]:
        info = dict(self.written.learn(batch))
        return map_leaves(lambda x: torch.as_tensor(x, device=self.device), info)

    def act(self, seen: Seen) -> tuple[Tensor, Any]:
        action = self.written.predict(self._flat(self.prepare_obs(seen.obs)))
        return self.learned_action(action), seen.state

    def sync_target(self) -> None:
        self.written.sync_target()

    def serialize(self) -> dict[str, Any]:
        optimizers = self._attributes(torch.optim.Optimizer)
        own = {
            "optimizers": {name: optimizer.state_dict() for name, optimizer in optimizers.items()},
            "numbers": self._attributes((int, float)),
        }
        return super().serialize() | own

    def deserialize(self, state: Mapping[str, Any], load_optimizers: bool = True) -> None:
        super().deserialize({key: x for key, x in state.items() if key != "optimizers"})
        for name, optimizer in self._attributes(torch.optim.Optimizer).items():
            if load_optimizers and name in state.get("optimizers", {}):
                optimizer.load_state_dict(state["optimizers"][name])
        for name, number in state.get("numbers", {}).items():
            setattr(self.written, name, number)
