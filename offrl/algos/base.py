"""What every algorithm is made of, and how one is made from a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from offrl.config import Config, OptimConfig, config_factory
from offrl.normalize import CONVERSIONS, Normalizer, Stats, rot_6d_to_matrix
from offrl.registry import ALGOS
from offrl.specs import ObsSpec
from offrl.tree import map_leaves


def register_algo_factory_func(name: str) -> Callable:
    """Decorator on a function ``algo_config -> (Algo subclass, keyword arguments)``."""
    return ALGOS.register(name)


def algo_factory(
    algo_name: str,
    config: Config,
    obs_key_shapes: Mapping[str, Sequence[int]],
    ac_dim: int,
    device: torch.device | str,
) -> Algo:
    """Build an algorithm for observations of the given shapes and ``ac_dim`` action dimensions."""
    if config.algo_name != algo_name:
        raise ValueError(
            f"algo_name: the config is for {config.algo_name!r}, but {algo_name!r} was asked for"
        )
    # Assignments since the config was made were checked one by one, not against each other.
    config = config_factory(algo_name, config.to_dict())
    algo_class, kwargs = ALGOS[algo_name](config.algo)
    spec = ObsSpec.from_config(config.observation, obs_key_shapes)
    return algo_class(config=config, obs_spec=spec, ac_dim=ac_dim, device=device, **kwargs)


class Algo:
    """Networks, their optimizers and one update rule, and the statistics of the data.

    A subclass fills ``self.nets`` in ``_create_networks`` and defines
    ``process_batch_for_training`` and ``train_on_batch``. A network that
    ``algo.optim_params`` names gets an optimizer of that name.
    """

    GROUPS: ClassVar[tuple[str, ...]] = ("obs", "goal")  # of observations that the algorithm uses
    ACTIONS: ClassVar[tuple[str, ...]] = ("real-valued",)  # or "discrete", or both

    def __init__(self, config: Config, obs_spec: ObsSpec, ac_dim: int, device: torch.device | str):
        from offrl.algos.shared.optim import make_optimizer, make_schedule

        self.global_config = config
        self.algo_config = config.algo
        self.obs_spec = obs_spec
        self.ac_dim = ac_dim
        self.device = torch.device(device)
        self._check_actions()
        for group in obs_spec.groups:
            if obs_spec.keys(group) and group not in self.GROUPS:
                raise ValueError(
                    f"observation.modalities.{group}: {config.algo_name} uses no {group}s; name no "
                    "observations there"
                )
        self.nets = torch.nn.ModuleDict()
        self._create_networks()
        self.nets.to(self.device)

        self.obs_normalizer = Normalizer()
        self.action_normalizer = Normalizer()
        self.optim_params = self._optim_params()
        unknown = [name for name in self.optim_params if name not in self.nets]
        if unknown:
            raise ValueError(
                f"algo.optim_params.{unknown[0]}: no such network; there are {', '.join(self.nets)}"
            )
        self.optimizers = {
            name: make_optimizer(self.nets[name].parameters(), optim)
            for name, optim in self.optim_params.items()
        }
        self.schedules = {
            name: make_schedule(self.optimizers[name], optim, config)
            for name, optim in self.optim_params.items()
        }

    @property
    def is_discrete(self) -> bool:
        """Whether an action is one of ``ac_dim``, a one-hot vector."""
        return self.global_config.train.acts_discretely

    def _check_actions(self) -> None:
        kind = "discrete" if self.is_discrete else "real-valued"
        if kind not in self.ACTIONS:
            remedy, other = ("null", "discrete_cql") if self.is_discrete else ('"discrete"', "iql")
            key, name = self.global_config.train.action_keys[0], self.global_config.algo_name
            raise ValueError(
                f"train.action_config.{key}.format: actions are {kind}, but {name} learns "
                f"{self.ACTIONS[0]} ones; set it to {remedy}, or use another algorithm, such as bc "
                f"or {other}"
            )

    def _create_networks(self) -> None:
        raise NotImplementedError(type(self).__name__)

    def _optim_params(self) -> dict[str, OptimConfig]:
        """The config of each network's optimizer."""
        return dict(self.algo_config.optim_params)

    def inspect_data(self, values: Callable[..., torch.Tensor]) -> None:
        """Look at the data before training: ``ValueError`` if nothing can be learned from it.
        ``values`` is the dataset's method."""

    # -- training ---------------------------------------------------------------------------------

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """What the algorithm needs of a batch, on its device, observations normalised."""
        raise NotImplementedError(type(self).__name__)

    def train_on_batch(
        self, batch: dict[str, Any], epoch: int, validate: bool = False
    ) -> dict[str, torch.Tensor]:
        """One update (none if ``validate``). Returns detached 0-dim tensors, ``"loss"`` among
        them: nothing in here waits for the device."""
        raise NotImplementedError(type(self).__name__)

    def log_info(self, info: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """What ``train_on_batch`` returned (or an average of it) as numbers with robomimic's
        names. The only place where tensors become floats."""
        logs = {
            f"Optimizer/{name}{i}_lr": float(group["lr"])
            for name, optimizer in self.optimizers.items()
            for i, group in enumerate(optimizer.param_groups)
        }
        return logs | {"Loss": float(info["loss"])}

    def on_epoch_end(self, epoch: int) -> None:
        for name, schedule in self.schedules.items():
            if schedule and not self._schedules_by_step(name):
                schedule.step()

    def set_train(self) -> None:
        self.nets.train()

    def set_eval(self) -> None:
        self.nets.eval()

    def reset(self) -> None:
        """Forget what a policy remembers of an episode."""

    def needed(self, batch: Mapping[str, Any], key: str) -> Any:
        """``batch[key]``; ``ValueError`` if the config does not ask the data for it."""
        if key not in batch:
            remedy = f"train.dataset_keys: lacks {key!r}; add it"
            if key == "next_obs":
                remedy = "train.hdf5_load_next_obs: set it to true"
            raise ValueError(f"{remedy}: {self.algo_config.ALGO_NAME} learns from {key}")
        return batch[key]

    def to_device(self, batch: Any) -> Any:
        return map_leaves(lambda x: x.to(self.device, torch.float32), batch)

    def prepare_obs(
        self, obs: Mapping[str, torch.Tensor] | None, group: str = "obs"
    ) -> dict[str, torch.Tensor] | None:
        """Raw observations ``{key: [B, T, ...]}`` as the networks see them, in training and
        acting: on the device, processed by their modality, normalised."""
        if obs is None:
            return None
        raw = {key: obs[key].to(self.device) for key in self.obs_spec.keys(group)}
        return self.obs_normalizer.normalize(self.obs_spec.process(raw, group))

    def optimize(
        self,
        name: str,
        loss: torch.Tensor,
        max_grad_norm: float | None = None,
        measures: bool = True,
    ) -> torch.Tensor | None:
        """One optimizer step of ``nets[name]``, whatever other networks the loss goes through; the
        squared norm of its gradient (of each critic's, ``[N]``), clipped at ``max_grad_norm`` or
        else ``train.max_grad_norm``. Without ``measures`` it is taken only if it is clipped."""
        optimizer = self.optimizers[name]
        limit = max_grad_norm or self.global_config.train.max_grad_norm
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        optimizer.zero_grad()
        loss.backward(inputs=[p for p in parameters if p.requires_grad])
        norm = None
        if measures or limit is not None:
            norm = clip_gradients(self.nets[name], parameters, limit).detach().square()
        optimizer.step()
        schedule = self.schedules[name]
        if schedule and self._schedules_by_step(name):
            schedule.step()
        return norm

    def _schedules_by_step(self, name: str) -> bool:
        return self.optim_params[name].learning_rate.step_every_batch

    # -- statistics and state ---------------------------------------------------------------------

    def set_statistics(self, obs: Stats, actions: Stats) -> None:
        """Take over a dataset's ``get_obs_normalization_stats()`` and its like for actions."""
        self.obs_normalizer = Normalizer(obs, self.device)
        self.action_normalizer = Normalizer(actions, self.device)

    def serialize(self) -> dict[str, Any]:
        """All state, as tensors, numbers, strings, lists and dicts."""
        return {
            "nets": dict(self.nets.state_dict()),
            "optimizers": {n: o.state_dict() for n, o in self.optimizers.items()},
            "lr_schedulers": {n: s.state_dict() for n, s in self.schedules.items() if s},
            "normalization": {
                "obs": self.obs_normalizer.stats,
                "actions": self.action_normalizer.stats,
            },
        }

    def deserialize(self, state: Mapping[str, Any]) -> None:
        """Take over what ``serialize`` returned; a bare ``state_dict`` of the networks will do."""
        nets = state.get("nets", state)
        self._check_weights(nets)
        self.nets.load_state_dict(nets)
        for name, optimizer in state.get("optimizers", {}).items():
            self.optimizers[name].load_state_dict(optimizer)
        for name, stored in state.get("lr_schedulers", {}).items():
            schedule = self.schedules[name]
            if schedule:
                schedule.load_state_dict(stored)
        if "normalization" in state:
            self.set_statistics(**state["normalization"])

    def _check_weights(self, weights: Mapping[str, Any]) -> None:
        own = self.nets.state_dict()
        problems = {
            "missing": [k for k in own if k not in weights],
            "unexpected": [k for k in weights if k not in own],
            "of another shape": [
                f"{k} {list(weights[k].shape)} instead of {list(own[k].shape)}"
                for k in own
                if k in weights and weights[k].shape != own[k].shape
            ],
        }
        found = [f"{what}: {', '.join(keys[:3])}" for what, keys in problems.items() if keys]
        if found:
            raise ValueError(
                f"the weights do not fit this {self.algo_config.ALGO_NAME} network "
                f"({'; '.join(found)}); use the config that they were trained with"
            )


def clip_gradients(
    net: torch.nn.Module, parameters: Sequence[torch.nn.Parameter], limit: float | None
) -> torch.Tensor:
    """The norm of the gradient, at most ``limit`` afterwards; an ensemble has one per member."""
    own = getattr(net, "clip_gradients", None)
    if callable(own):
        return own(limit)
    if limit is not None:
        return torch.nn.utils.clip_grad_norm_(parameters, limit).clamp(max=limit)
    return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


def check_rewards(rewards: torch.Tensor, algo_name: str) -> None:
    """``ValueError`` where there is nothing in the rewards to learn from."""
    if not rewards.any():
        raise ValueError(
            f"the rewards are all zero or missing, and {algo_name} learns from nothing else; label "
            'the data ("rewards"), or clone it with bc'
        )


class PolicyAlgo(Algo):
    """An algorithm with a policy.

    ``act`` is a pure function of observation, goal and state; ``get_action`` and ``reset`` are
    its stateful face for one environment.
    """

    COUNTS_REWARDS: ClassVar[bool] = False  # whether ``receive`` is to be called while acting

    _state: Any = None

    def act(
        self,
        obs: Mapping[str, torch.Tensor],
        goal: Mapping[str, torch.Tensor] | None = None,
        state: Any = None,
        generators: Sequence[torch.Generator | None] | None = None,
    ) -> tuple[torch.Tensor, Any]:
        """Action ``[B, A]`` (normalised, as the dataset's) and next state.

        ``obs`` is raw, ``{key: [B, T, ...]}`` with ``T = frame_stack``; ``generators`` holds a
        source of randomness per row.
        """
        raise NotImplementedError(type(self).__name__)

    def action_distribution(
        self,
        obs: Mapping[str, torch.Tensor],
        goal: Mapping[str, torch.Tensor] | None = None,
        state: Any = None,
    ) -> tuple[Any, Any]:
        """What ``act`` samples from before any lowering of noise: ``mean``, ``std``, ``logits``,
        ``log_prob(actions)`` over ``[B, T, A]``; and the next state."""
        raise NotImplementedError(type(self).__name__)

    def receive(self, state: Any, action: torch.Tensor, reward: torch.Tensor) -> Any:
        """The state of a policy that counts rewards, after the ``action`` ``[B, A]`` that was taken
        and its ``reward`` ``[B, 1]``."""
        return state

    def get_action(
        self,
        obs_dict: Mapping[str, torch.Tensor],
        goal_dict: Mapping[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """``{key: [B, ...]}`` (``[B, T, ...]`` if frames are stacked) to actions ``[B, A]``."""
        if self.COUNTS_REWARDS and self._state is not None:
            raise ValueError(
                f"{self.global_config.algo_name} counts rewards while acting: use RolloutPolicy "
                "and tell it each of them"
            )
        obs = self._with_time(obs_dict)
        with torch.no_grad():
            action, self._state = self.act(obs, goal_dict, self._state)
        return action

    def _with_time(self, obs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        stacked = self.global_config.train.frame_stack > 1
        return obs if stacked else map_leaves(lambda x: x[:, None], obs)

    def raw_action(self, action: torch.Tensor) -> torch.Tensor:
        """What ``act`` returned, ``[B, A]``, as the environment takes it: normalisation undone and
        rotations in the format of ``train.action_config``; discrete actions as integers ``[B]``."""
        if self.is_discrete:
            return action.argmax(-1)
        raw = self.action_normalizer.unnormalize_vector(action)
        config = self.global_config.train.action_config
        if not any(c.format == "rot_6d" for c in config.values()):
            return raw
        parts = []
        widths = [stats["scale"].shape[-1] for stats in self.action_normalizer.stats.values()]
        for key, part in zip(self.action_normalizer.stats, raw.split(widths, dim=-1), strict=True):
            if key in config and config[key].format == "rot_6d":
                part = CONVERSIONS[config[key].convert_at_runtime](rot_6d_to_matrix(part))
            parts.append(part)
        return torch.cat(parts, dim=-1)

    def reset(self) -> None:
        self._state = None


class ValueAlgo(Algo):
    """An algorithm that estimates values, ``[B, 1]``."""

    def get_state_value(
        self, obs_dict: Mapping[str, torch.Tensor], goal_dict: Any = None
    ) -> torch.Tensor:
        raise NotImplementedError(type(self).__name__)

    def get_state_action_value(
        self, obs_dict: Mapping[str, torch.Tensor], actions: torch.Tensor, goal_dict: Any = None
    ) -> torch.Tensor:
        raise NotImplementedError(type(self).__name__)


class PlannerAlgo(Algo):
    """An algorithm that proposes subgoals, ``{key: [B, ...]}``."""

    def get_subgoal_predictions(
        self, obs_dict: Mapping[str, torch.Tensor], goal_dict: Any = None
    ) -> dict[str, torch.Tensor]:
        raise NotImplementedError(type(self).__name__)

    def sample_subgoals(
        self, obs_dict: Mapping[str, torch.Tensor], goal_dict: Any = None, num_samples: int = 1
    ) -> dict[str, torch.Tensor]:
        raise NotImplementedError(type(self).__name__)


class HierarchicalAlgo(PolicyAlgo):
    """A planner and an actor that follows its subgoals."""

    @property
    def current_subgoal(self) -> dict[str, torch.Tensor] | None:
        raise NotImplementedError(type(self).__name__)
