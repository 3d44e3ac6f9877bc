"""A training that goes on with another config: longer, or measured and written otherwise."""

import json
from collections.abc import Mapping
from typing import Any

from offrl.config.build import config_factory
from offrl.config.content import shown
from offrl.config.pipeline import PipelineConfig, config_of
from offrl.config.schema import Config
from offrl.config.train import TrainConfig
from offrl.tree import differences, leaves, merge

# The keys, or the sections, that nothing learned depends on.
MAY_CHANGE = (
    *("train.num_epochs", "train.num_steps", "train.online.solved_return", "max_steps"),
    *("experiment.save", "experiment.rollout", "experiment.proxies", "experiment.logging"),
    *("experiment.render_video", "experiment.keep_all_videos", "experiment.video_skip"),
)
OTHERWISE = "start a new run from its weights (experiment.ckpt_path)"


def may_change(key: str) -> bool:
    """Whether a training may go on with another value of a key, given by its dotted path."""
    return any(f"{key}.".startswith(f"{own}.") for own in MAY_CHANGE)


def longer(
    config: Config | PipelineConfig, overrides: Mapping[str, Any]
) -> Config | PipelineConfig:
    """The config of a run with nested ``overrides`` laid over it, to go on with. ``ValueError``
    names a key with which the steps so far would have been others."""
    new = config_of(merge(config.to_dict(), overrides))
    changed = differences(config.to_dict(), new.to_dict())
    for key, (was, now) in changed.items():
        if not may_change(key):
            raise ValueError(
                f"--set {key}: {shown(now)}, but the run was begun with {shown(was)}, and what it "
                f"has learned depends on it; {OTHERWISE}"
            )
    if isinstance(config, Config):
        _check_length(config, changed, {*leaves(overrides)})
    return new


def _check_length(config: Config, changed: Mapping[str, Any], said: set[str]) -> None:
    """``ValueError`` where the steps of a training that acts decided another key as well, unless
    that is ``said`` to be meant as it is."""
    train, every = config.train, config.experiment.epoch_every_n_steps
    if train.num_steps and "train.num_epochs" in changed:
        raise ValueError("--set train.num_epochs: this training acts; set train.num_steps")
    if "train.num_steps" not in changed:
        return
    was, now = changed["train.num_steps"]
    if not (was and now):
        raise ValueError(f"--set train.num_steps: {shown(now)}, but it was {was}; {OTHERWISE}")
    first, new = (config_factory(config.algo_name, {"train": {"num_steps": n}}) for n in (was, now))
    random, random_now = (c.train.online.random_steps for c in (first, new))
    decided = {
        "train.online.random_steps": train.online.random_steps == random != random_now,
        "experiment.epoch_every_n_steps": every == was != first.experiment.epoch_every_n_steps,
    }
    for key in [key for key, is_so in decided.items() if is_so and key not in said]:
        raise ValueError(
            f"--set train.num_steps: {now}, but {key} followed from the {was} steps that the run "
            f"was begun with; {OTHERWISE}, or say that {key} is meant as it is (--set {key}=...)"
        )
    if train.online.replay.prioritized:
        raise ValueError(
            f"--set train.num_steps: {now}, but train.online.replay.prioritized corrects by how "
            f"much of the training is over; {OTHERWISE}"
        )


class _Unread(TrainConfig):
    """The section of a training whose length must not be read."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name in ("num_epochs", "num_steps") and value is not None:
            raise ValueError(
                f"train.{name}: {value} is another length than the run was begun with, and what is "
                "learned goes by it (a cosine schedule, for example, or the share of epochs that "
                f"learn codes); put back what it was, or {OTHERWISE}"
            )
        return value


def without_length(config: Config, earlier: Mapping[str, Any] | None) -> Config:
    """The config for the algorithm of a training that goes on from the checkpoint ``earlier``: it
    may not read how long the training is, if that has changed since."""
    then = json.loads(earlier["config"])["train"] if earlier else {}
    if all(then.get(key, now) == now for key, now in _length(config).items()):
        return config
    return config.model_copy(update={"train": _Unread.model_construct(**dict(config.train))})


def _length(config: Config) -> dict[str, int | None]:
    return {key: config.train[key] for key in ("num_epochs", "num_steps")}
