"""d3rlpy's algorithms as algorithms of offrl's, so that a study trains and measures them with the
same data, in the same batches and in the same episodes.

Networks, losses and optimizers are d3rlpy's. It is installed into a folder of its own by
``python benchmarks/studies/d3rlpy_peer.py``.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from offrl.algos import register_algo
from offrl.algos.base import Generators, Obs, PolicyAlgo
from offrl.algos.shared.td import TDLearner
from offrl.config.algo import TDConfig
from offrl.config.section import FreeMap, Map

sys.path.insert(0, str(Path(__file__).parents[1]))
from peers import D3RLPY  # noqa: E402


class D3rlpyConfig(TDConfig):
    ALGO_NAME = "d3rlpy"
    DEFAULTS = {"train": {"batch_size": 256}}

    algorithm: str = Field("IQL", description="Name of the algorithm, as of its config class.")
    options: FreeMap = Field(Map(), description="Arguments of its config class.")
    layer_dims: list[int] = Field([256, 256], description="Hidden layers of all networks.")


@register_algo(D3rlpyConfig)
class D3rlpy(TDLearner, PolicyAlgo):
    """``nets["peer"]`` are the networks of the peer."""

    algo_config: D3rlpyConfig

    def _create_networks(self) -> None:
        D3RLPY.make_importable()
        try:
            import d3rlpy
        except ImportError as error:
            raise ImportError(f"{error}; run: python benchmarks/studies/d3rlpy_peer.py") from None

        config, name = self.algo_config, self.algo_config.algorithm
        parts = ["actor", "critic", *(["value"] if name == "IQL" else [])]
        encoder = d3rlpy.models.VectorEncoderFactory(list(config.layer_dims))
        self.peer = getattr(d3rlpy.algos, f"{name}Config")(
            **{f"{part}_encoder_factory": encoder for part in parts},
            gamma=config.discount,
            tau=config.target_tau,
            **config.options,
        ).create(device=False)
        size = sum(shape[0] for shape in self.obs_spec.shapes("obs").values())
        self.peer.create_impl((size,), self.ac_dim)
        modules = self.peer.impl.modules.get_torch_modules()
        self.nets["peer"] = torch.nn.ModuleDict(
            {
                name: module
                for name, module in modules.items()
                if isinstance(module, torch.nn.Module)
            }
        )

    def update(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        from d3rlpy.torch_utility import TorchMiniBatch

        if self.validates:
            return {"loss": torch.zeros(())}
        terminals, actions = (batch["discounts"] == 0).float(), batch["actions"][:, 0]
        theirs = TorchMiniBatch(
            observations=_flat(batch["obs"]),
            actions=actions,
            rewards=batch["rewards"],
            next_observations=_flat(batch["next_obs"]),
            next_actions=actions,  # which none of them reads
            returns_to_go=torch.zeros_like(terminals),
            terminals=terminals,
            intervals=torch.ones_like(terminals),
            device="cpu",
        )
        with torch.enable_grad():
            info = self.peer.impl.update(theirs, self.num_updates)
        self.num_updates += 1
        numbers = {name: torch.tensor(float(value)) for name, value in info.items()}
        return numbers | {"loss": numbers["critic_loss"]}

    def act(
        self, obs: Obs, goal: Obs | None = None, state: Any = None, generators: Generators = None
    ) -> tuple[Tensor, Any]:
        return self.peer.impl.predict_best_action(_flat(self.prepare_obs(obs))), state

    def best_guess(self, obs: Any, goal: Any) -> Tensor:
        return self.peer.impl.predict_best_action(_flat(obs))[:, None]

    def set_train(self) -> None:
        self.nets.train()

    def serialize(self) -> dict[str, Any]:
        return super().serialize() | {"peer": {n: o.optim.state_dict() for n, o in self._optims()}}

    def deserialize(self, state: Mapping[str, Any]) -> None:
        super().deserialize(state)
        for name, optim in self._optims():
            if name in state.get("peer", {}):
                optim.optim.load_state_dict(state["peer"][name])

    def _optims(self) -> list[tuple[str, Any]]:
        parts = vars(self.peer.impl.modules).items()
        return [(name, part) for name, part in parts if hasattr(part, "optim")]


def _flat(obs: Mapping[str, Tensor]) -> Tensor:
    """Observations ``{key: [B, 1, D]}`` as one vector ``[B, D]``."""
    return torch.cat([obs[key][:, -1] for key in sorted(obs)], dim=-1)


if __name__ == "__main__":
    D3RLPY.install()
