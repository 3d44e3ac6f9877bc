"""Actions in the units of environments: a method of all algorithms, also of those without act; and
which kinds of actions an algorithm can use."""

from typing import Any

from offrl.lazy import Tensor, torch
from offrl.normalize import CONVERSIONS, rot_6d_to_matrix


def raw_action(algo: Any, action: Tensor) -> Tensor:
    """Turn actions of ``act``, ``[B, A]``, into the environment's: undo the normalisation, convert
    rotations (``train.action_config``), and make discrete actions integers."""
    if algo.is_discrete:
        return action.argmax(-1)
    train, stats = algo.global_config.train, algo.action_normalizer.stats
    config = {key: own for key, own in train.action_config.items() if key in train.action_keys}
    rotations = [key for key, own in config.items() if own.format == "rot_6d"]
    is_changed = rotations or any(own.normalization for own in config.values())
    if is_changed and not algo._has_statistics:
        raise ValueError(
            "train.action_config: asks for other actions than the environment takes, and the "
            "algorithm has no statistics to turn them back; call algo.set_statistics(obs=..., "
            "actions=...) once"
        )
    raw = algo.action_normalizer.unnormalize_vector(action)
    if not rotations:
        return raw
    widths = [own["scale"].shape[-1] for own in stats.values()]
    parts = dict(zip(stats, raw.split(widths, dim=-1), strict=True))
    for key in rotations:
        if key in parts:
            convert = CONVERSIONS[config[key].convert_at_runtime]
            parts[key] = convert(rot_6d_to_matrix(parts[key]))
    return torch.cat([*parts.values()], dim=-1)


def check_kinds(algo: Any) -> None:
    """Raise ``ValueError`` for actions, or groups of observations, that an algorithm cannot use."""
    kind, name = "discrete" if algo.is_discrete else "real-valued", algo.global_config.algo_name
    if kind not in algo.ACTIONS:
        remedy, other = ("null", "discrete_cql") if algo.is_discrete else ('"discrete"', "iql")
        key = algo.global_config.train.action_keys[0]
        raise ValueError(
            f"train.action_config.{key}.format: actions are {kind}, but {name} learns "
            f"{algo.ACTIONS[0]} ones; set it to {remedy}, or another algorithm (bc, {other})"
        )
    for group in algo.obs_spec.groups:
        if algo.obs_spec.keys(group) and group not in algo.GROUPS:
            raise ValueError(
                f"observation.modalities.{group}: {name} uses no {group}s; name no "
                "observations there"
            )
