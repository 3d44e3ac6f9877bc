"""Packs observations on their way from an explorer to the Learner. Networks see each frame several
times, in stacks, and as floats. It is sent only once, as it was observed."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offrl.algos.shared.policy_gradient import PolicyGradient

SAVING = 0.5  # share of bytes saved, below which rounds are not packed


def packed(alg: Any, rollout: Mapping[str, Any], ready: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the ``obs`` of a processed round by ``frames``: unique frames ``shown``,
    ``{key: [U, ...]}``, and the ``index`` ``[..., F]`` of those in each row. A round stays
    unchanged if that saves little, if observations are normalised, or if the algorithm processes
    rounds in its own way, so that ``obs`` may not consist of frames.

    rollout: the round before processing, from ``Rollout.take``.
    """
    is_own = type(alg).process_batch_for_training is not PolicyGradient.process_batch_for_training
    # Running statistics will have changed by the time of learning.
    if is_own or alg.obs_normalizer.stats:
        return dict(ready)
    _, first, index = np.unique(rollout["frames"], return_index=True, return_inverse=True)
    shown = {key: x.flatten(0, 2)[first] for key, x in rollout["obs"].items()}
    if _size(shown) > (1 - SAVING) * _size(ready["obs"]):
        return dict(ready)
    index = torch.from_numpy(index.astype(np.int32)).view(rollout["frames"].shape)
    frames = {"shown": shown, "index": index if "mask" in ready else index[rollout["mask"]]}
    return {key: x for key, x in ready.items() if key != "obs"} | {"frames": frames}


def unpacked(alg: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Restore a round that was ``packed``."""
    if "frames" not in data:
        return dict(data)
    rest = dict(data)
    frames = rest.pop("frames")
    index = frames["index"]
    stacks = {key: x[index.flatten(0, -2)] for key, x in frames["shown"].items()}
    seen = alg.prepare_obs(stacks)
    return {"obs": {key: x.unflatten(0, index.shape[:-1]) for key, x in seen.items()}, **rest}


def _size(obs: Mapping[str, Tensor]) -> int:
    return sum(x.nbytes for x in obs.values())
