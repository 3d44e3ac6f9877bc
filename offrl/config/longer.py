"""Configs of trainings that go on for longer, or are saved, measured and logged in another way."""

import json
from collections.abc import Mapping
from typing import Any

from offrl.config.build import config_factory
from offrl.config.content import shown
from offrl.config.pipeline import PipelineConfig, config_of
from offrl.config.schema import Config
from offrl.config.train import TrainConfig
from offrl.tree import differences, leaves, merge

# Besides the length these keys may change: nothing that is learned depends on them.
MAY_CHANGE = (
    *("experiment.save.", "experiment.rollout.", "experiment.proxies.", "experiment.logging."),
    *("experiment.render_video", "experiment.keep_all_videos", "experiment.video_skip"),
    "train.online.solved_return",
)
OTHERWISE = "for another training start a new run from its weights (experiment.ckpt_path)"


def longer(
    config: Config | PipelineConfig, overrides: Mapping[str, Any]
) -> Config | PipelineConfig:
    """Lay nested ``overrides`` over the config of a run that is to go on. Returns the new config.
    Raises ``ValueError`` for a key that would have changed the steps so far."""
    new = config_of(merge(config.to_dict(), overrides))
    length = "max_steps"
    if isinstance(config, Config):
        length = "train.num_steps" if config.train.num_steps else "train.num_epochs"
    changed = differences(config.to_dict(), new.to_dict())
    for key, (was, now) in changed.items():
        if not (now and now > was if key == length else key.startswith(MAY_CHANGE)):
            raise ValueError(
                f"--set {key}: {shown(now)}, but the run has {shown(was)}, on which depends what "
                f"it has learned; it can be made longer ({length}); {OTHERWISE}"
            )
    if not isinstance(config, Config) or "train.num_steps" not in changed:
        return new
    # The number of steps may have decided other keys as well, which a user may say are to stay.
    was, now = changed["train.num_steps"]
    values, defaults = (leaves(c.to_dict()) for c in (config, config_factory(config.algo_name)))
    followed = {"train.online.random_steps": was // 3, "experiment.epoch_every_n_steps": was}
    for key, value in followed.items():
        if values[key] == value != defaults[key] and key not in leaves(overrides):
            raise ValueError(
                f"--set train.num_steps: {now}, but {key} ({value}) followed from the {was} "
                f"steps that the run was begun with; if it is meant as it is, say so (--set "
                f"{key}={value}); {OTHERWISE}"
            )
    if config.train.online.replay.prioritized:
        raise ValueError(
            f"--set train.num_steps: {now}, but train.online.replay.prioritized corrects by how "
            f"much of the training is over; {OTHERWISE}"
        )
    return new


class OtherLength(TrainConfig):
    """The section ``train`` of a training that is longer now than when it was begun. Raises
    ``ValueError`` if the length is read, as what is learned would depend on it."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name in ("num_epochs", "num_steps") and value is not None:
            raise ValueError(
                f"train.{name}: {value} is another length than the run was begun with, and what is "
                "learned goes by it (a cosine schedule, for example, or the share of epochs that "
                f"learn codes); put back what it was; {OTHERWISE}"
            )
        return value


def for_algo(config: Config, earlier: Mapping[str, Any] | None) -> Config:
    """Make the config for the algorithm of a training that goes on from the checkpoint ``earlier``:
    if the length of the training has changed since, the algorithm may not read it."""
    then = json.loads(earlier["config"])["train"] if earlier else {}
    lengths = {key: config.train[key] for key in ("num_epochs", "num_steps")}
    is_same = all(then.get(key, now) == now for key, now in lengths.items())
    return config if is_same else with_train(config, OtherLength)


def with_train(config: Config, section: type[TrainConfig]) -> Config:
    """Copy the config with another class for its section ``train``."""
    return config.model_copy(update={"train": section.model_construct(**dict(config.train))})
