"""Assembles the parts of a training from recorded data."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from offrl import parallel
from offrl.algos import Algo, algo_factory
from offrl.algos.shared.denoising import DenoisingPolicy
from offrl.algos.shared.engine import chosen_engine
from offrl.algos.shared.memory import check_training_fits
from offrl.assembly.start import start_file
from offrl.checkpoint import describe_policy, read_checkpoint, while_loading
from offrl.config import Config, without_pretrained
from offrl.config.build import for_algo
from offrl.data.datasets import open_data
from offrl.data.formats.files import find_data
from offrl.data.sequence import SequenceDataset
from offrl.data.steps import Source
from offrl.envs import env_args_named
from offrl.envs.rendering import renders_observations
from offrl.modules import allow_names
from offrl.outputs import slug
from offrl.registry import MODALITIES, shown
from offrl.seeding import seed_everything
from offrl.specs import ImageModality, modalities, processed_shapes
from offrl.tree import differences, merge, short_key

log = logging.getLogger(__name__)


class Experiment:
    """The data, instructions, environments and algorithm that a config describes.

    Raises ``ValueError`` or ``FileNotFoundError`` if the config cannot be trained.

    checkpoint: A checkpoint of the same training, which is resumed.
    """

    def __init__(self, config: Config, checkpoint: Mapping[str, Any] | None = None):
        self.config = config = _checked_copy(config, resumes=checkpoint is not None)
        allow_names(config.to_dict())
        seed_everything(config.train.seed)
        use_cuda = config.train.cuda and torch.cuda.is_available()
        self.device = parallel.gpu() if use_cuda else torch.device("cpu")
        config.train.engine = chosen_engine(config, self.device, resumes=checkpoint is not None)
        known = (checkpoint or {}).get("instructions", {})
        data = open_data(config, known, self.device)
        self.loader, self.valid_loader, self.instructions, langs = data
        self.dataset: SequenceDataset = self.loader.dataset
        if config.experiment.epoch_every_n_steps is None:  # schedules need the number of steps
            config.experiment.epoch_every_n_steps = self.loader.batches_per_pass
        with self._naming_the_data():
            self._obs_shapes = processed_shapes(config.observation, self.dataset.obs_shapes)
        self.environments = self._evaluation_environments(langs)
        self.env_args = next(iter(self.environments.values()), None)  # the first environment's
        self.algo = self._make_algo(checkpoint)
        _check_actions(config, self.dataset)  # after errors of the algorithm
        kwargs = (self.env_args or {}).get("env_kwargs") or {}
        control_freq = config.experiment.rollout.control_freq or kwargs.get("control_freq")
        if isinstance(self.algo, DenoisingPolicy) and control_freq and checkpoint is None:
            self.algo.warn_if_slow(control_freq)

    def state(self) -> dict[str, Any]:
        """Return a checkpoint's part on the policy, its environment and its statistics."""
        several = {"environments": self.environments} if len(self.environments) > 1 else {}
        data = self._obs_shapes, self.dataset.ac_dim, self.dataset.reward_stats or {}
        policy = self.algo, self.config, self.env_args
        return several | describe_policy(*policy, *data, self.instructions)

    def _evaluation_environments(self, langs: Sequence[str | None]) -> dict[str, dict[str, Any]]:
        """Find the ``env_args`` of each dataset, whose instruction is in ``langs``, and of the
        ``additional_envs``, by their names in the logs, changed as the config says."""
        config, experiment = self.config, self.config.experiment
        _check_controllers(self.dataset.sources)
        found: list[tuple[str, dict[str, Any]]] = []
        groups = modalities(config.observation).values()
        kinds = {modality for group in groups for modality in group.values()}
        sees_images = any(issubclass(MODALITIES[kind], ImageModality) for kind in kinds)
        data = zip(config.train.data or [], self.dataset.sources, langs, strict=True)
        for entry, source, lang in data:
            recorded_in = source.env_args or (experiment.env and env_args_named(experiment.env))
            if not recorded_in or not entry.eval:
                continue
            env_args = merge(recorded_in, experiment.env_meta_update_dict)
            if renders_observations(env_args) and not sees_images:
                env_args = merge(env_args, {"env_kwargs": {"use_camera_obs": False}})
            if experiment.env:
                env_args["env_name"] = experiment.env
            env_args.pop("lang", None)  # that of the recording
            if lang in self.instructions:
                env_args["lang"] = lang
            named = entry.key or env_args.get("env_name", ""), env_args
            if named not in found:
                found.append(named)
        environments: dict[str, dict[str, Any]] = {}
        for name, env_args in found:
            # Equal names get the differences as a suffix, as in ``Pendulum-v1-g_9.81``.
            unlike = (differences(env_args, other) for n, other in found if n == name)
            values = {k: was for changes in unlike for k, (was, _) in changes.items()}
            words = [f"{short_key(k, values)}_{value}" for k, value in sorted(values.items())]
            environments[f"{name}-{slug('-'.join(words))}" if words else name] = env_args
        for name in experiment.additional_envs or []:
            first = next(iter(environments.values()), {})
            environments.setdefault(name, {**first, "env_name": name})
        return environments

    def _make_algo(self, checkpoint: Mapping[str, Any] | None) -> Algo:
        config, dataset = self.config, self.dataset
        # A resumed training no longer needs the weights that it started from.
        path = config.experiment.ckpt_path if checkpoint is None else None
        has_weights = checkpoint is not None or path is not None
        own = for_algo(without_pretrained(config) if has_weights else config, checkpoint)
        shapes = self._obs_shapes, dataset.ac_dim
        algo = algo_factory(config.algo_name, own, *shapes, device=self.device)
        if config.train.goal_rewards and "rewards" not in algo.NEEDS:
            raise ValueError(
                f"train.goal_rewards: {config.algo_name} learns from no rewards; set it to "
                "false, or use an algorithm that does, such as iql or hiql"
            )
        # Errors of the networks' inputs appear now, not in the first step.
        batch = dataset.get_batch(torch.zeros(1, dtype=torch.long, device=dataset.device))
        with self._naming_the_data():
            algo.obs_spec.process(batch["obs"], "obs")
            if algo.NEEDS_DEMOS:
                raise ValueError(
                    f"train.num_steps: {config.algo_name} compares demonstrations with steps of "
                    "its own; set it to the number of these, or clone the demonstrations with bc"
                )
            algo.inspect_lengths(dataset.lengths.tolist())
            algo.inspect_data(dataset.values)
        algo.process_batch_for_training(batch)
        obs_stats = dataset.get_obs_normalization_stats()
        algo.set_statistics(obs_stats, dataset.get_action_normalization_stats())
        if path is not None:
            content = read_checkpoint(path)
            with while_loading(content, f"experiment.ckpt_path: {path}"):
                algo.start_from(content)
        parallel.take_over(algo.nets.state_dict().values())
        check_training_fits(config.algo_name, algo.optimizers.values(), self.device)
        return algo

    @contextmanager
    def _naming_the_data(self) -> Iterator[None]:
        """Let an error name the data."""
        try:
            yield
        except ValueError as error:
            raise ValueError(f"{self.dataset.hdf5_path}: {error}") from None


def _checked_copy(config: Config, resumes: bool) -> Config:
    """Copy the config with absolute paths, and refuse impossible settings."""
    config = config.model_copy(deep=True)
    if not config.train.data:
        raise ValueError(
            "train.data: name a dataset, or give --dataset FILE.hdf5; to learn by acting, say in "
            "how many steps (train.num_steps)"
        )
    if config.observation.has_goals and config.train.goal_mode is None:
        places = (place for place, part in config.observation.parts() if part.has_goals)
        raise ValueError(
            f'{next(places)}.modalities.goal: the data has no goals; set train.goal_mode to "last" '
            '(observation of a demonstration), "future_uniform" (any later), ..., or name no goals'
        )
    if config.train.goal_mode is not None and not config.observation.has_goals:
        key = "goal_rewards" if config.train.goal_rewards else "goal_mode"
        sentence = (
            f"train.{key}: the policy sees no goals; name the observations that a goal is made of "
            "in observation.modalities.goal"
        )
        if config.train.goal_rewards:
            raise ValueError(sentence)
        log.warning(sentence)
    if config.experiment.render:
        raise ValueError("experiment.render: no windows; use experiment.render_video")
    for entry in config.train.data:
        entry.path = str(find_data(entry.path))
    if config.experiment.ckpt_path is not None and not resumes:
        config.experiment.ckpt_path = start_file(config.experiment.ckpt_path)
    return config


def _check_controllers(sources: Sequence[Source]) -> None:
    """Raise ``ValueError`` if one environment was recorded with different controllers."""
    firsts: dict[str, Source] = {}
    for source in sources:
        env_args = source.env_args or {}
        first = firsts.setdefault(f"{env_args.get('type')} {env_args.get('env_name')}", source)
        for key, (was, now) in differences(first.env_args or {}, env_args).items():
            if re.match(r"env_kwargs\.[^.]*(controller|control_mode)", key):
                raise ValueError(
                    f"train.data: {source.path}: actions mean something else than in {first.path}: "
                    f"{key} is {shown(now)}, not {shown(was)}; use data of one controller"
                )


def _check_actions(config: Config, dataset: SequenceDataset) -> None:
    for key, largest in dataset.largest_actions.items():
        if key not in config.train.action_config:
            raise ValueError(
                f"train.action_config: says nothing about the action key {key!r}; add "
                f'{{"{key}": {{"normalization": "min_max"}}}}, or null instead of "min_max"'
            )
        if largest > 1.001:
            log.warning(
                f"{dataset.hdf5_path}: {key} reach {largest:.3g}, but most policies act "
                f'within [-1, 1]; set train.action_config.{key}.normalization to "min_max"'
            )
