"""The base of every algorithm: networks, optimizers, one update rule, statistics."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from numbers import Number
from typing import Any, ClassVar

from offrl import models
from offrl.algos.shared.actions import check_kinds, raw_action
from offrl.algos.shared.batch import CheckedBatch
from offrl.algos.shared.capture import graph_key, is_capturable
from offrl.algos.shared.masks import ACTION_MASK
from offrl.algos.shared.modes import Modes
from offrl.algos.shared.optim import Optimizers, keeps_numbers
from offrl.algos.shared.updates import OneBatch, train_on
from offrl.algos.shared.weights import Average, check_start, matching_weights, weights_of
from offrl.config import AlgoConfig, Config, OptimConfig
from offrl.config.networks import vaes_in
from offrl.lazy import Tensor, torch
from offrl.normalize import Normalizer, Stats
from offrl.robomimic.loops import on_gradient_step, postprocess_batch_for_training
from offrl.specs import ObsSpec, with_goal
from offrl.tree import map_leaves

Obs = Mapping[str, Tensor]  # {key: [B, T, ...]}
Generators = Sequence["torch.Generator | None"] | None  # a source of randomness per row


class Algo(Modes):
    """Networks, their optimizers and one update rule, and the statistics of the data.

    A subclass says what it reads (``NEEDS``, ``window``), fills ``self.nets`` in
    ``_create_networks`` and writes its rule in ``update``. A network that ``algo.optim_params``
    names gets an optimizer of that name. It is made of a whole ``config``, what it observes
    (``obs_spec``), how many numbers or discrete actions there are (``ac_dim``), and a ``device``.
    """

    NEEDS: ClassVar[tuple[str, ...]] = ("obs", "actions")  #: The parts of a batch that it reads.
    GROUPS: ClassVar[tuple[str, ...]] = ("obs", "goal")  #: The groups of observations that it uses.
    ACTIONS: ClassVar[tuple[str, ...]] = ("real-valued",)  #: ``"real-valued"``, ``"discrete"``.
    COUNTS_REWARDS: ClassVar[bool] = False  #: True if acting must call ``receive``.
    #: True if it learns only from steps that its present policy has taken (``offrl.online``).
    ON_POLICY: ClassVar[bool] = False
    #: True if it learns while acting what an expert (``algo.expert``) would do.
    ASKS_EXPERT: ClassVar[bool] = False
    #: True if it learns while acting from demonstrations (``train.data``), and cannot without.
    NEEDS_DEMOS: ClassVar[bool] = False
    #: False if norms of gradients are not logged, which takes a few percent of a small update.
    LOGS_GRADIENTS: ClassVar[bool] = True
    #: Attributes that are numbers, and part of the state as networks are; 0 in states without them.
    COUNTERS: ClassVar[tuple[str, ...]] = ()
    raw_action = raw_action
    graph_key, is_capturable = graph_key, is_capturable
    postprocess_batch_for_training = postprocess_batch_for_training
    on_gradient_step = on_gradient_step

    algo_config: AlgoConfig
    num_loads = 0  #: The number of times that tensors of its state were replaced by others.
    nets: Any  #: The networks by their names, a ``torch.nn.ModuleDict``.

    def __init__(
        self, config: Config, obs_spec: ObsSpec, ac_dim: int, device: "torch.device | str"
    ):
        self.epoch: int | None = None  # set by train_on_batch
        self.validates = False
        self.microbatches = OneBatch()  #: The parts of a batch that an update is computed from.
        self._only_acts = False  # true for a copy for another process (``state_to_act``)
        self._stored_learning: Mapping[str, Any] = {}  # of optimizers to be made
        self.global_config, self.algo_config = config, config.algo
        self.obs_spec, self.ac_dim = obs_spec, ac_dim
        self.device = torch.device(device)
        check_kinds(self)
        self.nets = torch.nn.ModuleDict()
        self._create_networks()
        self.nets.to(self.device)
        if config.train.channels_last:
            self.nets.to(memory_format=torch.channels_last)
        self.set_statistics(obs={}, actions={})
        self._has_statistics = False  # whether ``set_statistics`` was called with the data's
        self.take_stock()

    def take_stock(self) -> None:
        """Prepare optimizers and averages for the networks as they are now."""
        self.num_loads += 1
        self.optim_params = self._optim_params()
        for name in self.optim_params:
            if name not in self.nets:
                known = ", ".join(self.nets)
                raise ValueError(f"algo.optim_params.{name}: no such network; there are {known}")
        sections = {name: getattr(self.algo_config, name, None) for name in self.optim_params}
        self._max_norms = {k: getattr(x, "max_gradient_norm", None) for k, x in sections.items()}
        learning = torch.nn.ModuleDict({name: self.nets[name] for name in self.optim_params})
        train = self.global_config.train
        keeps = keeps_numbers(self.global_config, self.device)
        self._average = Average(dict(learning.named_parameters()), train.ema, keeps)
        vars(self).pop("_learning", None)
        drawn_by_python = (getattr(x, "DRAWN_BY_PYTHON", False) for x in self.nets.modules())
        self._is_drawn_by_python = any(drawn_by_python)
        self._vaes = [*vaes_in(self.algo_config)]
        self._layers = ()

    def __repr__(self) -> str:
        size = sum(x.numel() for x in self.nets.parameters())
        keys = [item for group in self.obs_spec.groups.values() for item in group.items()]
        sees = ", ".join(f"{key} {list(spec.shape)}" for key, spec in keys)
        acts = f"one of {self.ac_dim} actions" if self.is_discrete else f"actions [{self.ac_dim}]"
        return f"{type(self).__name__}({sees} -> {acts}, {size:,} parameters on {self.device})"

    @property
    def optimizers(self) -> "dict[str, torch.optim.Optimizer]":
        """The optimizer of each network."""
        return self._learning.optimizers

    @cached_property
    def _learning(self) -> Optimizers:
        """Made when it is first asked for, and so never for a policy that only acts."""
        self._refuse_a_copy()
        models.check_sight(self.nets)
        with self.trained_weights():
            parameters = {name: self._optimized(name) for name in self.optim_params}
            learning = Optimizers(parameters, self.optim_params, self.global_config)
        learning.deserialize(self._stored_learning)
        self._stored_learning = {}
        return learning

    def _refuse_a_copy(self) -> None:
        if self._only_acts:
            raise ValueError(
                f"this {self.global_config.algo_name} is a copy that only acts, without optimizers "
                'and with averaged weights alone; call deserialize(checkpoint["model"]) before it '
                "learns or is serialized"
            )

    @classmethod
    def window(cls, algo_config: Any) -> dict[str, int]:
        """Return the ``seq_length`` and ``frame_stack`` that it needs, where they are not 1."""
        return {}

    @classmethod
    def complete_observation(cls, observation: Any, stated: Mapping[str, Any]) -> None:
        """Fill in the keys of the section ``observation`` that follow from the others. ``stated``
        holds those that the config itself sets."""

    @property
    def is_discrete(self) -> bool:
        """True if an action is one of ``ac_dim``, a one-hot vector."""
        return self.global_config.train.acts_discretely

    @cached_property
    def num_frames(self) -> int:
        """The number of latest observations that the networks see, ``train.frame_stack``."""
        return self.global_config.train.frame_stack

    def _create_networks(self) -> None:
        raise ValueError(f"{type(self).__name__}: define _create_networks(), which fills nets")

    def _optimized(self, name: str) -> "Iterable[torch.nn.Parameter]":
        """Return the parameters that the optimizer of a network updates."""
        return self.nets[name].parameters()

    def _optim_params(self) -> dict[str, OptimConfig]:
        """Return the config of each network's optimizer."""
        return dict(self.algo_config.optim_params)

    def inspect_data(self, values: Callable[..., Tensor]) -> None:
        """Look at the data before training, and raise ``ValueError`` if nothing can be learned
        from it. ``values(key)`` gives all steps of a dataset key (``SequenceDataset.values``)."""

    def inspect_lengths(self, lengths: Sequence[int]) -> None:
        """Check the numbers of steps of the demonstrations; raise as ``inspect_data`` does."""

    # -- training ---------------------------------------------------------------------------------

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Select the parts of a batch that the algorithm needs, move them to the device and
        normalise the observations, which then include the goal. ``pad_mask`` is ``[B, T, 1]`` if
        some steps must not count, else ``None``."""
        mask = batch.get("pad_mask") if self.global_config.train.mask_padded_steps else None
        parts = {key: self.needed(batch, key) for key in self.NEEDS}
        seen = {key: parts.pop(key) for key in ("obs", "next_obs") if key in parts}
        goal = self.prepare_obs(batch.get("goal_obs"), "goal")
        ready = {key: with_goal(self.prepare_obs(obs), goal) for key, obs in seen.items()}
        return {**ready, **self.to_device({**parts, "pad_mask": mask}), "goal_obs": goal}

    def train_on_batch(
        self, batch: dict[str, Any], epoch: int, validate: bool = False
    ) -> dict[str, Tensor]:
        """Make one update; with ``validate`` only compute the losses. Returns detached scalar
        tensors, ``"loss"`` among them, so that nothing waits for the device."""
        if not validate:
            self._refuse_a_copy()
        begins = epoch != self.epoch and not validate
        self.epoch, self.validates = epoch, validate
        weights = self.at_rest() if validate else self.trained_weights()
        with weights, torch.set_grad_enabled(not validate):
            for name in self.optim_params if begins else ():
                if not self.trains(name):
                    self._average.settle(self._optimized(name))
            info = train_on(self, batch)
        self.validates = False
        if info is not None and not isinstance(info, Mapping):
            return info  # the trainer says what is wrong with it
        return {name: self._logged(x) for name, x in (info or {}).items() if x is not None}

    def _logged(self, value: Any) -> Any:
        if isinstance(value, Number):  # torch.full asks nothing of the device, torch.tensor does
            return torch.full((), value, device=self.device)  # type: ignore[call-overload]
        return value.detach() if isinstance(value, Tensor) else value

    def learn(self, data: Mapping[str, Any]) -> dict[str, Tensor]:
        """Make one update from a batch as the data gives it."""
        batch = self.process_batch_for_training(CheckedBatch(data))
        return self.train_on_batch(batch, self.epoch or 1)

    def update(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Apply the rule of the algorithm: compute losses, make an optimizer step for each
        (``optimize``), and return numbers for the log, ``"loss"`` among them. ``None`` stands for a
        number that was not measured. While validating, no gradients are kept."""
        raise ValueError(f"{type(self).__name__}: define update(batch), its rule")

    def log_info(self, info: Mapping[str, Tensor]) -> dict[str, float]:
        """Turn what ``update`` returned, or an average of it, into numbers for the log, and add the
        learning rates. Tensors of several numbers are left out. This is the only place where
        tensors become floats."""
        logs = {
            f"Optimizer/{name}{i}_lr": float(group["lr"])
            for name, optimizer in self.optimizers.items()
            for i, group in enumerate(optimizer.param_groups)
        }
        numbers = {key: x for key, x in info.items() if torch.as_tensor(x).numel() == 1}
        return logs | {"Loss" if key == "loss" else key: float(x) for key, x in numbers.items()}

    def on_epoch_end(self, epoch: int) -> None:
        """Update the learning rates whose schedules count epochs."""
        self._learning.on_epoch_end()

    def needed(self, batch: Mapping[str, Any], key: str) -> Any:
        """Return ``batch[key]``. Raises ``ValueError`` if the config does not load it."""
        if key not in batch:
            lacks = f"train.dataset_keys: lacks {key!r}; add it"
            remedy = "train.hdf5_load_next_obs: set it to true" if key == "next_obs" else lacks
            raise ValueError(f"{remedy}: {self.global_config.algo_name} learns from {key}")
        return batch[key]

    def to_device(self, batch: Any) -> Any:
        """Move tensors, also in nested dicts, to the device as float32."""
        return map_leaves(lambda x: x.to(self.device, torch.float32), batch)

    def prepare(self, obs: Obs, goal: Obs | None = None) -> dict[str, Any]:
        """Turn raw observations ``{key: [B, T, ...]}`` and goals ``{key: [B, ...]}`` into what the
        networks see, ``prepare_obs`` of both: one dict, with the goal at ``GOAL``."""
        return with_goal(self.prepare_obs(obs), self.prepare_obs(goal, "goal"))

    def prepare_states(self, obs_dict: Obs, goal_dict: Obs | None = None) -> dict[str, Any]:
        """Call ``prepare`` with ``{key: [B, ...]}``, or ``[B, T, ...]`` if frames are stacked."""
        return self.prepare(self._with_time(obs_dict), goal_dict)

    def prepare_obs(self, obs: Obs | None, group: str = "obs") -> dict[str, Tensor] | Any:
        """Turn raw observations ``{key: [B, T, ...]}`` into what the networks see, in training and
        in acting: on the device, processed by their modality, normalised."""
        if obs is None:
            return None
        raw = {key: obs[key].to(self.device) for key in self.obs_spec.keys(group)}
        prepared = self.obs_normalizer.normalize(self.obs_spec.process(raw, group))
        if ACTION_MASK in obs and self.is_discrete:
            prepared[ACTION_MASK] = obs[ACTION_MASK].to(self.device)
        return prepared

    def _with_time(self, obs: Obs) -> Obs:
        return obs if self.num_frames > 1 else map_leaves(lambda x: x[:, None], obs)

    def trains(self, name: str) -> bool:
        """Say whether ``nets[name]`` learns now: not while validating, or outside its epochs."""
        is_due = self.epoch is None or self.optim_params[name].is_due(self.epoch)
        return is_due and not self.validates

    def optimize(
        self, name: str, loss: Tensor, max_grad_norm: float | None = None, measures: bool = True
    ) -> Tensor | None:
        """Make one optimizer step of ``nets[name]`` alone, whatever else the loss depends on.

        The gradient is clipped at ``max_grad_norm``, or else at ``max_gradient_norm`` in the
        section of ``algo`` that has the network's name, or at ``train.max_grad_norm``. Returns its
        squared norm, ``[N]`` for N critics. If it is not clipped and not measured (``measures``,
        ``LOGS_GRADIENTS``), or the network is not training now (``trains``), returns ``None``.
        """
        if self.validates:  # maybe a policy that only acts, which has no optimizers
            return None
        if name not in self.optimizers:
            raise ValueError(
                f"optimize: {name!r} has no optimizer; there are {', '.join(self.optimizers)} "
                "(algo.optim_params)"
            )
        if not self.trains(name):
            return None
        limit = max_grad_norm or self._max_norms[name] or self.global_config.train.max_grad_norm
        measures = measures and self.LOGS_GRADIENTS
        self._learning.backward(name, loss, self.microbatches)
        return self.microbatches.once(lambda: self._step(name, limit, measures))

    def _step(self, name: str, limit: float | None, measures: bool) -> Tensor | None:
        norm = self._learning.step(name, self.nets[name], limit, measures)
        self._average.follow(name, self._learning.parameters[name])
        self.count_step(name)
        return norm

    def count_step(self, name: str) -> None:
        """Count a step of ``nets[name]``, by which learning rates and averages go."""
        self._learning.count_step(name)
        self._average.count_step(name)

    def tell_counts(self) -> None:
        """Tell the device what follows from the counts for the next update, if it keeps that."""
        if self.optim_params:
            self._learning.tell_rates()
            self._average.tell_decays(self.optim_params)

    def reset(self) -> None:
        """Forget what a policy remembers of an episode."""

    # -- statistics and state ---------------------------------------------------------------------

    def set_statistics(self, obs: Stats, actions: Stats) -> None:
        """Normalise by the statistics of a dataset: ``get_obs_normalization_stats()`` and
        ``get_action_normalization_stats()``."""
        self._has_statistics = True
        self.num_loads += 1
        self.obs_normalizer = Normalizer(obs, self.device)
        self.action_normalizer = Normalizer(actions, self.device)

    def serialize(self) -> dict[str, Any]:
        """Return all state, as tensors, numbers, strings, lists and dicts. Raises ``ValueError``
        for a copy in another process that only acts."""
        self._refuse_a_copy()
        with self.trained_weights():
            weights = {"nets": dict(self.nets.state_dict()), **self._average.serialize()}
        counters = {name: getattr(self, name) for name in self.COUNTERS}
        stats = {"obs": self.obs_normalizer.stats, "actions": self.action_normalizer.stats}
        return {**weights, **self._learning.serialize(), **counters, "normalization": stats}

    def deserialize(self, state: Mapping[str, Any], load_optimizers: bool = True) -> None:
        """Load what ``serialize`` returned, or a ``state_dict`` of the networks, also robomimic's.
        If ``to_act`` marked it, the parts that acting needs are loaded, and the rest on demand.

        load_optimizers: load the state of the optimizers and learning rates as well.
        """
        self.num_loads += 1
        for name in self.COUNTERS:
            setattr(self, name, state.get(name, 0))
        state = matching_weights(self.global_config.algo_name, self.nets.state_dict(), state)
        nets = state.get("nets", state)
        self._only_acts, to_act = False, state.get("to_act", False)
        if to_act:
            self._average.show(False)
            self.nets.load_state_dict({**nets, **state.get("ema", {}).get("weights", {})})
            self._average.deserialize(state, nets)
        else:
            with self.trained_weights():
                self.nets.load_state_dict(nets)
                self._average.deserialize(state)
        stored = {key: state[key] for key in ("optimizers", "lr_schedulers") if state.get(key)}
        if load_optimizers and stored:
            if to_act and "_learning" not in vars(self):
                self._stored_learning = stored
            else:
                self._learning.deserialize(stored)
        if "normalization" in state:
            self.set_statistics(**state["normalization"])

    def state_to_act(self) -> dict[str, Any]:
        """Return the attributes of a copy that only acts, in another process."""
        own: Any = self.__reduce_ex__(2)[2]  # as a subclass's __getstate__ says
        state = {**own, "_only_acts": True, "_stored_learning": {}}
        state.pop("_learning", None)
        if self._average.shown:  # the networks are all that acting takes
            state["_average"] = Average(self._average.weights, self.global_config.train.ema)
        return state

    @classmethod
    def settings_from(cls, algo_name: str, stored: Config) -> dict[str, Any]:
        """Return overrides for a config of ``algo_name`` that follow from the ``stored`` config of
        the checkpoint that a training starts from. ``ValueError`` if it cannot start from it."""
        check_start(algo_name, stored.algo_name)
        return {"algo": stored.algo.to_dict()}

    def start_from(self, content: Mapping[str, Any]) -> None:
        """Load the weights of a checkpoint, to train them further. Raises ``ValueError`` if they
        belong to another algorithm or do not fit."""
        check_start(self.global_config.algo_name, content["algo_name"])
        self.deserialize(weights_of(content["model"]))
