"""The training loop, as a generator of log records."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from offrl.algos import Algo, algo_factory
from offrl.checkpoint import config_from_checkpoint
from offrl.config import Config, without_pretrained
from offrl.config.files import find_file
from offrl.data.files import find_data
from offrl.data.hdf5 import fingerprint
from offrl.data.loader import BatchLoader, sampling_weights
from offrl.data.sequence import SequenceDataset
from offrl.envs import UNNAMED
from offrl.kernels.allocator import FreedMemory
from offrl.registry import MODALITIES
from offrl.seeding import preserved_rng, rng_state, seed_everything, set_rng_state
from offrl.specs import LANGUAGE, Images, modalities, processed_shapes
from offrl.training.averages import Averages
from offrl.training.datasets import make_dataset, make_held_out_dataset, obs_keys, place
from offrl.training.instructions import embed_instructions
from offrl.training.run import RunFolder, provenance
from offrl.tree import merge

log = logging.getLogger(__name__)

Record = dict[str, Any]


class Trainer:
    """``for record in Trainer(config)(): ...`` trains, and that is all it does.

    A record is ``{"type", "epoch", "step", "time", "logs"}``: ``progress`` every 100 steps,
    ``train`` and ``valid`` with an epoch's averages, ``epoch`` at its end. Checkpoints, evaluation,
    logs and the progress bar are wrappers around the generator.
    """

    PROGRESS_EVERY = 100  # steps between two looks at the loss, each of which waits for the device

    def __init__(self, config: Config, run: RunFolder | None = None):
        config = config.model_copy(deep=True)
        _check_supported(config)
        for entry in config.train.data:
            entry.path = str(find_data(entry.path))
        self._resumes = run is not None and run.last_checkpoint.exists()
        if self._resumes:
            config.experiment.ckpt_path = None  # its weights have been overtaken
        if config.experiment.ckpt_path is not None:
            try:
                config.experiment.ckpt_path = str(find_file(config.experiment.ckpt_path))
            except FileNotFoundError as error:
                raise FileNotFoundError(f"experiment.ckpt_path: {error}") from None
        seed_everything(config.train.seed)
        self._freed_memory = FreedMemory()
        self.config = config
        self._langs = [entry.lang for entry in config.train.data]
        last = run.last_checkpoint if run is not None and self._resumes else None
        # {sentence: [E]}
        self.instructions = embed_instructions(self._langs, LANGUAGE in obs_keys(config), last)
        use_cuda = config.train.cuda and torch.cuda.is_available()
        self.device = torch.device("cuda" if use_cuda else "cpu")
        self.dataset = make_dataset(config, self.instructions)
        self._take_stored_instructions()
        self._check_actions()
        self.loader = self._make_loader(
            self.dataset, config.train.batch_size, sampling_weights(config.train, self.dataset)
        )
        self.valid_loader: BatchLoader | None = None
        if config.experiment.validate:
            self.valid_loader = self._make_valid_loader()
        if config.experiment.epoch_every_n_steps is None:  # schedules count steps, too
            config.experiment.epoch_every_n_steps = self.loader.batches_per_pass
        try:
            self._obs_shapes = processed_shapes(config.observation, self.dataset.obs_shapes)
        except ValueError as error:
            raise ValueError(f"{self.dataset.hdf5_path}: {error}") from None
        self.environments = self._evaluation_environments()
        data = fingerprint(source.path for source in self.dataset.sources)
        if run is not None and config.meta.provenance.get("dataset_fingerprint", data) != data:
            raise ValueError(
                f"{run.path}: {self.dataset.hdf5_path} is not the data that this run was trained "
                "on; put it back, or start a new run from the weights (experiment.ckpt_path)"
            )
        config.meta.provenance = provenance() | {
            "dataset_fingerprint": data,
            "seed": config.train.seed,
            "num_threads": torch.get_num_threads(),
        }
        self.algo = self._make_algo()
        self.epoch = 0
        self.step = 0
        self._run = run

    @property
    def run(self) -> RunFolder:
        """The run folder; made when something is first written."""
        if self._run is None:
            self._run = RunFolder.create(self.config)
        return self._run

    def __call__(self) -> Iterator[Record]:
        batches = iter(self.loader)
        while self.epoch < self.config.train.num_epochs:
            self.epoch += 1
            started = time.perf_counter()
            yield from self._train_epoch(batches)
            trained = time.perf_counter()
            if self.valid_loader is not None:
                yield self.record("valid", self._validate(self.valid_loader))
            self.algo.on_epoch_end(self.epoch)
            yield self.record(
                "epoch",
                {"Train_Time": trained - started, "Valid_Time": time.perf_counter() - trained},
            )

    def record(self, kind: str, logs: Mapping[str, float]) -> Record:
        return {
            "type": kind,
            "epoch": self.epoch,
            "step": self.step,
            "time": time.time(),
            "logs": dict(logs),
        }

    def _train_epoch(self, batches: Iterator[dict[str, Any]]) -> Iterator[Record]:
        self.algo.set_train()
        averages = Averages(self.PROGRESS_EVERY)
        steps = self.config.experiment.epoch_every_n_steps or 0
        for remaining in reversed(range(steps)):
            batch = self.algo.process_batch_for_training(next(batches))
            averages.add(self.algo.train_on_batch(batch, self.epoch))
            self.step += 1
            if remaining == 0 or self.step % self.PROGRESS_EVERY == 0:
                self._check_finite(averages.fold())
                self._freed_memory.limit()
            if remaining and self.step % self.PROGRESS_EVERY == 0:
                yield self.record("progress", self.algo.log_info(averages.mean()))
        self._check_weights()
        yield self.record("train", self.algo.log_info(averages.mean()))

    def _validate(self, loader: BatchLoader) -> dict[str, float]:
        """The same batches every epoch, so that losses compare."""
        steps = self.config.experiment.validation_epoch_every_n_steps or loader.batches_per_pass
        loader.position = 0
        averages = Averages(steps)
        self.algo.set_eval()
        with preserved_rng():
            for _, batch in zip(range(steps), loader, strict=False):
                batch = self.algo.process_batch_for_training(batch)
                averages.add(self.algo.train_on_batch(batch, self.epoch, validate=True))
            averages.fold()
        return self.algo.log_info(averages.mean())

    def _check_finite(self, losses: torch.Tensor) -> None:
        bad = (~torch.isfinite(losses)).nonzero()
        if len(bad):
            self._diverged(self.step - len(losses) + int(bad[0]) + 1)

    def _check_weights(self) -> None:
        # A finite loss can leave weights that are not; no checkpoint may hold those.
        norm = torch.nn.utils.get_total_norm(list(self.algo.nets.parameters()))
        if not torch.isfinite(norm):
            self._diverged(self.step)

    def _diverged(self, step: int) -> None:
        raise ValueError(
            f"the loss became NaN or infinite at step {step} (epoch {self.epoch}); lower the "
            "learning rate (algo.optim_params) or set train.max_grad_norm. Checkpoints, where "
            "there are any, hold earlier weights"
        )

    # -- parts ------------------------------------------------------------------------------------

    def _take_stored_instructions(self) -> None:
        """What files hold as an embedding, the same at all steps, serves for evaluation as well."""
        if LANGUAGE in obs_keys(self.config) and not self.instructions:
            for k, value in enumerate(self.dataset.constant_obs(LANGUAGE)):
                if value is not None:
                    name = f"{LANGUAGE} of {Path(self.dataset.sources[k].path).name}"
                    self.instructions[name], self._langs[k] = value, name

    def _make_loader(
        self, dataset: SequenceDataset, batch_size: int, weights: Sequence[float] | None = None
    ) -> BatchLoader:
        train = self.config.train
        place(dataset, self.device)
        return BatchLoader(dataset, batch_size, train.seed, train.num_data_workers, weights)

    def _make_valid_loader(self) -> BatchLoader:
        dataset = make_held_out_dataset(self.config, self.instructions, self.dataset)
        return self._make_loader(dataset, min(self.config.train.batch_size, len(dataset)))

    def _check_actions(self) -> None:
        config = self.config.train.action_config
        for key, largest in self.dataset.largest_actions.items():
            if key not in config:
                raise ValueError(
                    f"train.action_config: says nothing about the action key {key!r}; add "
                    f'{{"{key}": {{"normalization": "min_max"}}}}, or null instead of "min_max"'
                )
            if largest > 1.001:
                log.warning(
                    "%s: %s reach %.3g, but policies act within [-1, 1]; set "
                    'train.action_config.%s.normalization to "min_max"',
                    self.dataset.hdf5_path,
                    key,
                    largest,
                    key,
                )

    @property
    def env_args(self) -> dict[str, Any] | None:
        """The environment of the first dataset that is evaluated in."""
        return next(iter(self.environments.values()), None)

    def _evaluation_environments(self) -> dict[str, dict[str, Any]]:
        """``env_args`` by their names in the logs: of each dataset, and ``additional_envs``; with
        ``env`` and ``env_meta_update_dict`` laid over them."""
        experiment = self.config.experiment
        groups = modalities(self.config.observation).values()
        kinds = {modality for group in groups for modality in group.values()}
        sees_images = any(issubclass(MODALITIES[kind], Images) for kind in kinds)
        environments: dict[str, dict[str, Any]] = {}
        datasets = zip(self.config.train.data or [], self.dataset.sources, self._langs, strict=True)
        for entry, source, lang in datasets:
            recorded_in = source.env_args or (UNNAMED if experiment.env else None)
            if recorded_in is None or not entry.eval:
                continue
            env_args = merge(recorded_in, experiment.env_meta_update_dict)
            if env_args.get("env_kwargs", {}).get("use_camera_obs") and not sees_images:
                env_args = merge(env_args, {"env_kwargs": {"use_camera_obs": False}})
            if experiment.env:
                env_args["env_name"] = experiment.env
            env_args.pop("lang", None)  # of whoever recorded it
            if lang in self.instructions:
                env_args["lang"] = lang
            name = entry.key or env_args.get("env_name", "")
            clashes = environments.setdefault(name, env_args) != env_args
            if clashes and experiment.rollout.enabled:
                raise ValueError(
                    f"train.data: {source.path} was recorded in another environment {name!r}, or "
                    "with another instruction, than a dataset before it; give each entry a key of "
                    "its own"
                )
        for name in experiment.additional_envs or []:
            first = next(iter(environments.values()), {})
            environments.setdefault(name, {**first, "env_name": name})
        return environments

    def _make_algo(self) -> Algo:
        has_weights = self._resumes or self.config.experiment.ckpt_path is not None
        algo = algo_factory(
            self.config.algo_name,
            without_pretrained(self.config) if has_weights else self.config,
            obs_key_shapes=self._obs_shapes,
            ac_dim=self.dataset.ac_dim,
            device=self.device,
        )
        # What the networks cannot see shows now, not in the first step.
        first = torch.zeros(1, dtype=torch.long, device=self.dataset.device)
        batch = self.dataset.get_batch(first)
        try:
            algo.obs_spec.process(batch["obs"], "obs")
            algo.inspect_data(self.dataset.values)
        except ValueError as error:
            raise ValueError(f"{self.dataset.hdf5_path}: {error}") from None
        algo.process_batch_for_training(batch)
        algo.set_statistics(
            obs=self.dataset.get_obs_normalization_stats(),
            actions=self.dataset.get_action_normalization_stats(),
        )
        path = self.config.experiment.ckpt_path
        if path is not None:
            _, content = config_from_checkpoint(self.config.algo_name, ckpt_path=path)
            try:
                algo.deserialize({"nets": content["model"]["nets"]})
            except ValueError as error:
                raise ValueError(f"experiment.ckpt_path: {path}: {error}") from None
        return algo

    # -- state ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds; the checkpointer adds the best scores."""
        model = self.algo.serialize()
        return {
            "model": model,
            "config": self.config.dump(),
            "algo_name": self.config.algo_name,
            "env_metadata": self.env_args,
            "shape_metadata": {
                "all_shapes": {k: list(s) for k, s in self._obs_shapes.items()},
                "all_obs_keys": list(self.dataset.obs_keys),
                "ac_dim": self.dataset.ac_dim,
            },
            "obs_normalization_stats": model["normalization"]["obs"],
            "action_normalization_stats": model["normalization"]["actions"],
            "reward_normalization_stats": dict(self.dataset.reward_stats or {}),
            "variable_state": {"epoch": self.epoch, "step": self.step},
            "rng": rng_state(),
            "loader": {"position": self.loader.position},
            "instructions": {k: torch.from_numpy(v) for k, v in self.instructions.items()},
            "provenance": dict(self.config.meta.provenance),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state`` as if never interrupted; warns of what would make a difference."""
        if state["algo_name"] != self.config.algo_name:
            raise ValueError(
                f"{self.run.last_checkpoint}: a checkpoint of {state['algo_name']!r}; this run "
                f"trains {self.config.algo_name!r}"
            )
        self.algo.deserialize(state["model"])
        self.epoch = state["variable_state"]["epoch"]
        self.step = state["variable_state"]["step"]
        self.loader.position = state["loader"]["position"]
        set_rng_state(state["rng"])
        now = self.config.meta.provenance
        for key in ("git_commit", "num_threads", "packages"):
            if state["provenance"][key] != now[key]:
                log.warning(
                    "resumed with another %s (%s, was %s): the weights may differ from those of "
                    "an uninterrupted run",
                    key,
                    now[key],
                    state["provenance"][key],
                )


def _check_supported(config: Config) -> None:
    """What must be said, and keys of robomimic's that must not be ignored silently."""
    if not config.train.data:
        raise ValueError("train.data: name a dataset, or give --dataset FILE.hdf5")
    if any(config.observation.modalities.goal.values()) and config.train.goal_mode is None:
        raise ValueError(
            'observation.modalities.goal: the data has no goals; set train.goal_mode to "last" '
            "(the last observation of a demonstration), or name no goals"
        )
    if config.experiment.render:
        raise ValueError("experiment.render: no windows; use experiment.render_video")
