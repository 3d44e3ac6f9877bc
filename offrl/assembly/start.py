"""Configs of online trainings, and the checkpoint that a training starts from."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offrl.algos.shared.actor_critic import CLONING
from offrl.checkpoint import checkpoint_in, config_from_checkpoint, read_checkpoint, while_loading
from offrl.config import Config, config_from_content
from offrl.config.files import find_config, find_file, read_config_file
from offrl.config.pipeline import online_content
from offrl.data.formats.files import find_data
from offrl.modules import allow_names
from offrl.registry import ALGO_CONFIGS, ALGOS, shown
from offrl.specs import Shapes
from offrl.tree import merge

log = logging.getLogger(__name__)

Configs = Config | Mapping[str, Any] | str | Path

# Keys of train that are not taken over from a checkpoint.
OWN = (
    "data output_dir model_dest num_epochs num_steps online seed cuda dataset_keys seq_length "
    "hdf5_load_next_obs hdf5_validation_filter_key"
).split()
OF_EPISODES = ("n", "horizon", "terminate_on_success")  # keys of experiment.rollout


def complete(config: Configs | None, said: Mapping[str, Any] = {}) -> Config:
    """Make a complete config from any form of one, with the overrides ``said``."""
    config = read_content(config)
    if isinstance(config, Config):
        content: Mapping[str, Any] = merge(config.to_dict(), said)
    else:
        content = with_checkpoint(merge(config or {}, said))
    made = config_from_content(content)
    made.follow_online(content)
    return made


def name_of(config: Configs | None) -> str | None:
    """Return the ``algo_name`` in a config, or in the checkpoint that it starts from."""
    config = read_content(config) or {}
    if isinstance(config, Config):
        return config.algo_name
    name = config.get("algo_name") or with_checkpoint(config).get("algo_name")
    return name if isinstance(name, str) else None  # complete raises the error


def read_content(config: Configs | None) -> Config | Mapping[str, Any] | None:
    """Read a config that may be the path of a file, and convert one with ``alg_para``."""
    if isinstance(config, (str, Path)):
        config = read_config_file(find_config(config))
    if not isinstance(config, (Config, Mapping, type(None))):
        raise ValueError(f"config: {config!r}; give dicts, a path, or what config_factory makes")
    return online_content(config) if isinstance(config, Mapping) else config


def start_of(config: Config) -> dict[str, Any] | None:
    """Read the checkpoint that a config starts from, if it names one."""
    path = config.experiment.ckpt_path
    if path is None:
        return None
    content = read_checkpoint(start_file(path))
    check_statistics(path, config, content)
    return content


def check_statistics(path: str | Path, config: Config, content: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if a checkpoint's policy needs other statistics of observations."""
    goes_on = content.get("running_statistics", {}).get("obs")
    if config.train.online.normalize_obs and not goes_on:
        raise ValueError(
            f"train.online.normalize_obs: the policy of {path} goes on to see observations as it "
            "learned from them; set it to false"
        )


def with_checkpoint(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Lay an online training's config over the config of the checkpoint that it starts from: the
    algorithm and its settings, the observations, ``train`` (actions, rewards, batches, data) and
    the length of episodes. Return other configs unchanged. A cloned policy is trained by
    ``td3_bc``, or ``iql`` if Gaussian, unless the config names an algorithm."""
    path = (content.get("experiment") or {}).get("ckpt_path")
    said = content.get("train") or {}
    if path is None or said.get("num_steps") is None:
        return content
    if not isinstance(path, str):  # not validated yet
        raise ValueError(f"experiment.ckpt_path: a checkpoint's path is needed, not {shown(path)}")
    stored, checkpoint = config_from_checkpoint(ckpt_path=start_file(path))
    name = content.get("algo_name")
    if not name and stored.algo_name == CLONING:
        name = "iql" if stored.algo["gaussian"].enabled else "td3_bc"
        log.info(f"{path} is a cloned policy, from which {name} goes on (algo_name)")
    name = name or stored.algo_name
    algo_class = class_of(name)
    if "rewards" not in algo_class.NEEDS:
        raise ValueError(
            f"algo_name: {path} is a policy of {name}, which learns nothing from rewards; name the "
            "algorithm that goes on from it, for example iql or residual"
        )
    train = {key: value for key, value in stored.train.to_dict().items() if key not in OWN}
    if "data" not in said:
        train["data"] = _data_of(stored, path)
    with while_loading(checkpoint, f"experiment.ckpt_path: {path}"):
        settings = algo_class.settings_from(name, stored)
    rollout = {key: stored.experiment.rollout[key] for key in OF_EPISODES}
    # The policy is better than random actions.
    train["online"] = {"horizon": rollout["horizon"], "random_steps": 0}
    below = {
        "algo_name": name,
        "experiment": {"rollout": rollout},
        "train": train,
        "observation": stored.observation.to_dict(),
        **settings,
    }
    return merge(below, content)


def class_of(algo_name: str) -> Any:
    """Return the class of an algorithm that a config names, as its default settings choose it."""
    allow_names(algo_name)
    return ALGOS[algo_name](ALGO_CONFIGS[algo_name]())[0]


def check_spaces(
    where: str, content: Mapping[str, Any], env_name: str, shapes: Shapes, ac_dim: int
) -> None:
    """Raise ``ValueError`` if the policy of a checkpoint does not suit an environment.

    where: the key or file of the environment or checkpoint, for messages.
    shapes: those of the environment's observations, as networks see them.
    """
    described = content["shape_metadata"]
    for key, shape in described["all_shapes"].items():
        if key not in shapes or list(shapes[key]) != list(shape):
            shown = f"as {list(shapes[key])}" if key in shapes else f"not, but {', '.join(shapes)}"
            raise ValueError(
                f"{where}: its policy sees {key!r} of shape {list(shape)}, and {env_name} shows it "
                f"{shown}; use the environment that it was trained for (experiment.env)"
            )
    if described["ac_dim"] != ac_dim:
        raise ValueError(
            f"{where}: its actions have {described['ac_dim']} numbers, and those of "
            f"{env_name} {ac_dim}; use the environment that it was trained for (experiment.env)"
        )


def start_file(path: str) -> str:
    """Find the checkpoint of ``experiment.ckpt_path``, and return its absolute path."""
    try:
        there = Path(path).expanduser()
        return str(checkpoint_in(there.absolute()) if there.is_dir() else find_file(path))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"experiment.ckpt_path: {error}") from None


def _data_of(stored: Config, path: str) -> list[dict[str, Any]] | None:
    """List the data that a checkpoint was trained on, as far as it still exists."""
    entries = stored.train.data or []
    for entry in entries:
        try:
            find_data(entry.path)
        except FileNotFoundError:
            log.warning(
                f"{path} was trained on {entry.path}, which is not there any more: no "
                "demonstrations are in the mix (train.data)"
            )
            return None
    if entries:
        paths = ", ".join(entry.path for entry in entries)
        log.info(f"demonstrations in the mix: {paths}, as {path} says (train.data=null: none)")
    return [entry.to_dict() for entry in entries] or None
