"""Checkpoints: dicts of tensors, numbers, strings, lists and dicts, read without running code.

Keys: ``model`` (``Algo.serialize()``), ``config`` (JSON), ``algo_name``, ``env_metadata``,
``shape_metadata`` (``all_shapes``, ``ac_dim``), ``variable_state`` (epoch, step, best so far),
the normalisation statistics, ``rng``, ``loader`` and ``provenance``.
"""

import logging
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from offrl import __version__
from offrl.acting.policy import RolloutPolicy
from offrl.algos import algo_factory
from offrl.algos.bc import LOG_NAMES
from offrl.algos.shared.weights import to_act
from offrl.config import Config, stored_config, without_pretrained
from offrl.envs import env_args_named, make_env
from offrl.language import embed
from offrl.memory import check_memory, free_memory
from offrl.modules import allow_names, import_all
from offrl.outputs import whole_file
from offrl.processes import interrupts_wait
from offrl.reports.run import best_kept, kept_checkpoints, newest_run
from offrl.robomimic.checkpoints import upgrade_checkpoint
from offrl.specs import LANGUAGE
from offrl.tree import leaves, map_leaves

log = logging.getLogger(__name__)
_warn_once = cache(log.warning)

REQUIRED = {"model": Mapping, "config": str, "algo_name": str, "shape_metadata": Mapping}

RENAMING = ("bc", "gl", "hbc", "iris")  # algorithms whose updates had other names than the log
RENAMED = LOG_NAMES | {  # some are logged twice
    "recons_loss": "recons_loss Reconstruction_Loss",
    "kl_loss": "kl_loss KL_Loss",
    "nll": "Log_Likelihood",
    "policy_grad_norm": "Policy_Grad_Norms",
    "grad_norm": "Grad_Norms",
}


def describe_policy(
    algo: Any,
    config: Config,
    env_args: Mapping[str, Any] | None,
    obs_shapes: Mapping[str, Sequence[int]],
    ac_dim: int,
    reward_stats: Mapping[str, Any],
    instructions: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of a checkpoint that is needed to act with its policy again.

    obs_shapes: the shape of each observation as networks see it.
    instructions: ``{sentence: [E]}``, the embeddings that it was trained with.
    """
    model = algo.serialize()
    return {
        "model": model,
        "config": config.dump(),
        "algo_name": config.algo_name,
        "env_metadata": env_args,
        "shape_metadata": {
            "all_shapes": {key: list(shape) for key, shape in obs_shapes.items()},
            "all_obs_keys": sorted(obs_shapes),
            "ac_dim": ac_dim,
        },
        "obs_normalization_stats": model["normalization"]["obs"],
        "action_normalization_stats": model["normalization"]["actions"],
        "reward_normalization_stats": dict(reward_stats),
        "instructions": {key: torch.from_numpy(x) for key, x in instructions.items()},
        "provenance": dict(config.meta.provenance),
    }


def write_checkpoint(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint. At any moment either the old file or the new one is there, whole."""
    size = sum(getattr(leaf, "nbytes", 0) for leaf in leaves(content).values())
    with interrupts_wait(), whole_file(path, size) as partial, open(partial, "wb") as file:
        torch.save(map_leaves(lambda leaf: leaf, content), file)  # any mappings become dicts


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read the dict in a checkpoint file, with its tensors on the CPU. ``path`` may be that of a
    run, or of a folder of runs: see ``checkpoint_in``.

    Raises ``FileNotFoundError``, or ``ValueError`` for a file that is damaged, is no checkpoint
    or holds pickled objects of other classes, which could run any code.
    """
    if Path(path).is_dir():
        path = checkpoint_in(path)
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such checkpoint")
    _check_sums(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = " ".join(str(error).split())
        _, _, rest = found.partition("Unsupported ")
        what = rest.split(" was not")[0] or found[:120]
        raise ValueError(
            f"{path}: holds pickled Python objects ({what}), which could run any code and are not "
            "loaded; where you trust the file, load it where it was made and save again "
            "only tensors, numbers, strings, lists and dicts"
        ) from None
    except Exception as error:  # whatever a file that offrl did not write makes of the reader
        raise ValueError(
            f"{path}: not a readable checkpoint ({' '.join(str(error).split())[:120]})"
        ) from None
    content = content if isinstance(content, dict) else {}
    _check_parts(content, path, f'torch.load("{path}", weights_only=True)')
    newer = _newer_version(content)
    if newer:
        _warn_once(
            f"{path}: written by offrl {newer}, newer than this one ({__version__}); upgrade offrl "
            "if the policy does not load or does not act as it did"
        )
    return brought_up_to_date(content)


def checkpoint_in(folder: str | Path) -> Path:
    """Find the checkpoint to use in the folder of a run, or of the newest run in a folder of runs:
    the best one that was kept, else the last."""
    run = newest_run(Path(folder))
    if run is None:
        raise FileNotFoundError(f"{folder}: no run folder, and none is in it; name a checkpoint")
    names = {}
    if kept := kept_checkpoints(run):
        names = read_checkpoint(kept[0]).get("variable_state", {}).get("best_checkpoints", {})
    found = best_kept(run, names) or run / "last.pth"
    log.info(f"checkpoint: {found}")
    return found


def brought_up_to_date(content: dict[str, Any]) -> dict[str, Any]:
    """Bring a checkpoint of robomimic or of an earlier offrl into the present layout. Parts that an
    earlier offrl did not save are added to ``content`` itself."""
    content = upgrade_checkpoint(content)
    progress, acting = content.get("variable_state"), content.get("online")
    if isinstance(progress, dict) and "step" in progress and "last_step" not in progress:
        # Trainings were saved between two epochs only.
        progress |= {"last_step": progress["step"], "due": [], "pending": None, "seconds": {}}
        content.setdefault("averages", {"counts": {}})
    if content.get("algo_name") in RENAMING and (content.get("averages") or {}).get("counts"):
        _rename(content["averages"])
    if isinstance(acting, dict) and "begins" in acting:
        explorers = acting.get("broker", {}).get("explorers", {}).values()
        for state in [acting, *(explorer["state"] for explorer in explorers)]:
            state.setdefault("num_restarts", 0)
            state.setdefault("succeeded", torch.full(state["begins"].shape, -1))
            state["statistics"].setdefault("seen", [])
    return content


def _rename(averages: dict[str, Any]) -> None:
    """Give the sums of half an epoch the names, and one the sign, that they have in logs."""
    were, averages["counts"] = averages["counts"], {}
    columns, signs = [], []
    for column, (name, count) in enumerate(were.items()):
        part, dot, own = name.rpartition(".")
        for new in RENAMED.get(own, own).split():
            if f"{part}{dot}{new}" == name or f"{part}{dot}{new}" not in were:
                averages["counts"][f"{part}{dot}{new}"] = count
                columns.append(column)
                signs.append(-1 if own == "nll" else 1)
    for sums in ("total", "rows"):
        averages[sums] = averages[sums][..., columns] * torch.tensor(signs)


def _check_parts(content: Mapping[str, Any], where: object, how: str = "ckpt_dict") -> None:
    """Raise ``ValueError`` if a checkpoint lacks parts of a policy. ``how`` names its dict."""
    missing = [key for key, kind in REQUIRED.items() if not isinstance(content.get(key), kind)]
    if missing:
        lacks = f"it lacks {', '.join(missing)}"
        if "model" not in missing:
            lacks += (
                "; to load the weights that it holds into an algorithm (algo_factory), call "
                f'algo.deserialize({how}["model"])'
            )
        raise ValueError(f"{where}: not a checkpoint of a policy: {lacks}")
    all_shapes, ac_dim = (content["shape_metadata"].get(key) for key in ("all_shapes", "ac_dim"))
    shapes = all_shapes.values() if isinstance(all_shapes, Mapping) else [None]
    if not (isinstance(ac_dim, int) and all(isinstance(x, (list, tuple)) for x in shapes)):
        raise ValueError(
            f"{where}: shape_metadata is to hold all_shapes, the shape of each observation as "
            "networks see it ([10], or [C, H, W]), and ac_dim, the number of action dimensions"
        )
    if not isinstance(content.get("env_metadata"), Mapping | None):
        raise ValueError(f"{where}: env_metadata is to be a dict that describes an environment")


def _check_sums(path: str | Path) -> None:
    """Raise ``ValueError`` unless the bytes match the checksums in the file, which ``torch.load``
    does not compare."""
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{path}: not a checkpoint, or one that is cut off; copy it again")
        try:
            with zipfile.ZipFile(file) as archive:
                num_bytes = sum(entry.file_size for entry in archive.infolist())
                problem = archive.testzip() if num_bytes < free_memory() else None
        except Exception as error:  # damage makes all kinds of errors
            problem = str(error)
    if problem is not None:
        raise ValueError(
            f"{path}: damaged ({problem}): its bytes are not those that were written; copy it "
            "again, or use another one of the run (previous.pth, models/)"
        )
    check_memory(num_bytes, str(path))


def _newer_version(content: Mapping[str, Any]) -> str | None:
    """Return the version of offrl that wrote a checkpoint, if this one is older."""
    written, this = str(content.get("provenance", {}).get("offrl", "")), __version__
    numbers = [[int(n) for n in re.findall(r"\d+", version)] for version in (written, this)]
    return written if numbers[0] > numbers[1] else None


@contextmanager
def while_loading(content: Mapping[str, Any], where: object) -> Iterator[None]:
    """Let a ``ValueError`` name the checkpoint, and say if a newer offrl wrote it."""
    try:
        yield
    except ValueError as error:
        newer = _newer_version(content)
        hint = f"; it was written by offrl {newer}, and this is {__version__}: upgrade offrl"
        raise ValueError(f"{where}: {error}{hint if newer else ''}") from None


def maybe_dict_from_checkpoint(
    ckpt_path: str | Path | None = None, ckpt_dict: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a checkpoint's content. Give either the file ``ckpt_path`` or ``ckpt_dict``."""
    if ckpt_path is not None and ckpt_dict is None:
        return read_checkpoint(ckpt_path)
    if ckpt_dict is not None and ckpt_path is None:
        return brought_up_to_date(ckpt_dict)
    raise ValueError("give either ckpt_path or ckpt_dict")


def config_from_checkpoint(
    algo_name: str | None = None,
    ckpt_path: str | Path | None = None,
    ckpt_dict: dict[str, Any] | None = None,
    modules: Sequence[str] = (),
) -> tuple[Config, dict[str, Any]]:
    """Read the config of a checkpoint. Returns it and the checkpoint.

    Raises ``ValueError`` if ``algo_name`` is given and the checkpoint is of another algorithm, or
    if its policy needs a module that is neither imported already nor named.

    modules: your own modules that the checkpoint may name. They are imported.
    """
    import_all(modules)
    if ckpt_dict is not None:
        _check_parts(ckpt_dict, "ckpt_dict")
    content = maybe_dict_from_checkpoint(ckpt_path, ckpt_dict)
    stored = content["algo_name"]
    with while_loading(content, ckpt_path or "ckpt_dict"):
        if algo_name not in (None, stored):
            raise ValueError(f"a checkpoint of {stored!r}, but {algo_name!r} was asked for")
        return stored_config(stored, content["config"]), content


def policy_from_checkpoint(
    ckpt_path: str | Path | None = None,
    ckpt_dict: dict[str, Any] | None = None,
    device: torch.device | str | None = None,
    verbose: bool = False,
    modules: Sequence[str] = (),
) -> tuple[RolloutPolicy, dict[str, Any]]:
    """Load a policy that is ready to act. Returns it and the checkpoint that it came from.

    With ``train.ema`` its networks have the averaged weights. Optimizers and the trained weights
    are loaded once it learns or is serialized; until then ``ckpt_dict`` must stay as it is.
    Checkpoints of robomimic are read as well. Raises ``FileNotFoundError``, or ``ValueError`` for a
    file that is damaged, no checkpoint, or refused by ``config_from_checkpoint``.

    ckpt_path: a ``.pth`` file, or a run's folder: its best checkpoint, else the last
        (``checkpoint_in``).
    ckpt_dict: the content of a checkpoint instead of a file.
    device: ``None``: a GPU if there is one, else the CPU.
    verbose: log the config and the networks.
    modules: your own modules that the checkpoint may name. They are imported.
    """
    config, content = config_from_checkpoint(None, ckpt_path, ckpt_dict, modules)
    shapes = content["shape_metadata"]
    algo = algo_factory(
        config.algo_name,
        without_pretrained(config),
        obs_key_shapes=shapes["all_shapes"],
        ac_dim=shapes["ac_dim"],
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
    )
    with while_loading(content, ckpt_path or "ckpt_dict"):
        algo.deserialize(to_act(content["model"]))
        _check_statistics(algo)
    algo.set_eval()
    if verbose:
        log.info("%s\n%s", config.dump(), algo.nets)
    return RolloutPolicy(algo, instruction=instruction(algo, content)), content


def instruction(algo: Any, content: Mapping[str, Any], lang: str | None = None) -> Any:
    """Return the embedding ``[E]`` of the sentence ``lang``, by default of the only instruction
    that the policy of this checkpoint was trained with; ``None`` if there are none or several. Only
    sentences that the policy was not trained with need the language model."""
    if not any(LANGUAGE in group for group in algo.obs_spec.groups.values()):
        if lang:
            raise ValueError(f"{lang!r}: this policy sees no instructions")
        return None
    stored = content.get("instructions")
    if lang is None:
        lang = (content.get("env_metadata") or {}).get("lang")
        if stored is not None and lang not in stored:
            lang = next(iter(stored)) if len(stored) == 1 else None
    if lang is None:
        return None
    if stored and lang in stored:
        return stored[lang].numpy()
    return embed([lang])[lang]


def _check_statistics(algo: Any) -> None:
    train = algo.global_config.train
    normalized = [key for key, c in train.action_config.items() if c.normalization]
    # Images and instructions are not normalised.
    obs = algo.obs_spec.groups["obs"].items()
    vectors = [key for key, spec in obs if len(spec.shape) == 1 and key != LANGUAGE]
    for what, needed, stats in (
        ("action", normalized, algo.action_normalizer.stats),
        ("observation", train.hdf5_normalize_obs and vectors, algo.obs_normalizer.stats),
    ):
        if needed and not stats:
            raise ValueError(
                f"the policy was trained on normalised {what}s, but the checkpoint lacks their "
                f"statistics ({what}_normalization_stats); export it again with them"
            )


def env_args_of(content: Mapping[str, Any], env_name: str | None = None) -> dict[str, Any]:
    """Return the ``env_args`` of a checkpoint's environment, or of ``env_name`` instead: one of
    several that the policy was trained in, or gymnasium's if the checkpoint names none."""
    if env_name in (several := content.get("environments", {})):
        return several[env_name]
    allow_names(env_name)
    env_args = content.get("env_metadata")
    if not env_args and env_name is None:
        raise ValueError(
            "the checkpoint names no environment (env_metadata), as its data did not; name one of "
            "gymnasium's (rollout --env, env_name)"
        )
    env_args = env_args or env_args_named(env_name or "")
    return {**env_args, "env_name": env_name} if env_name else env_args


def env_from_checkpoint(
    ckpt_path: str | Path | None = None,
    ckpt_dict: dict[str, Any] | None = None,
    env_name: str | None = None,
    verbose: bool = False,
    modules: Sequence[str] = (),
) -> tuple[Any, dict[str, Any]]:
    """Make the environment that a policy was trained for. Returns it and the checkpoint.

    env_name: another environment to make instead, with the same arguments.
    modules: your own modules that the checkpoint may name. They are imported.
    """
    import_all(modules)
    content = maybe_dict_from_checkpoint(ckpt_path, ckpt_dict)
    env_args = env_args_of(content, env_name)
    if verbose:
        log.info("environment: %s", env_args)
    return make_env(env_args), content
