"""The environments that policies of a config are evaluated in."""

from collections.abc import Mapping, Sequence
from typing import Any

from offrl.config import Config
from offrl.data.sources import Source
from offrl.envs import UNNAMED
from offrl.registry import MODALITIES
from offrl.specs import Images, modalities
from offrl.tree import merge


def evaluation_environments(
    config: Config,
    sources: Sequence[Source],
    langs: Sequence[str | None],
    instructions: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
    """``env_args`` by their names in the logs: of each dataset, whose instruction is in ``langs``,
    and ``additional_envs``; with ``env`` and ``env_meta_update_dict`` laid over them."""
    experiment = config.experiment
    environments: dict[str, dict[str, Any]] = {}
    for entry, source, lang in zip(config.train.data or [], sources, langs, strict=True):
        recorded_in = source.env_args or (UNNAMED if experiment.env else None)
        if recorded_in is None or not entry.eval:
            continue
        env_args = merge(recorded_in, experiment.env_meta_update_dict)
        if env_args.get("env_kwargs", {}).get("use_camera_obs") and not _sees_images(config):
            env_args = merge(env_args, {"env_kwargs": {"use_camera_obs": False}})
        if experiment.env:
            env_args["env_name"] = experiment.env
        env_args.pop("lang", None)  # of whoever recorded it
        if lang in instructions:
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


def _sees_images(config: Config) -> bool:
    groups = modalities(config.observation).values()
    kinds = {modality for group in groups for modality in group.values()}
    return any(issubclass(MODALITIES[kind], Images) for kind in kinds)
