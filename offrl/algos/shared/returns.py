"""Advantages and targets of values, of the steps of a rollout.

All arrays are ``[N, L]``, of NumPy: ``N`` environments and ``L`` rows, in which row ``l + 1`` holds
what was observed after the step of row ``l``. ``ends`` marks steps behind which nothing of the same
episode follows but that observation: the last ones of episodes and of the rollout. Its value stands
for all later rewards, unless the step ``terminated`` the episode: then there are none. Rows from
which no step was taken are ignored, and meaningless in results.

The sums run backwards, one step of all environments at a time: on a GPU each would be a kernel.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]


def ends_of(mask: Bools) -> Bools:
    """Say where steps are the last ones of an episode or of the rollout: the next row has no step,
    by the ``mask`` of rows from which a step was taken."""
    ends = np.ones_like(mask)
    ends[:, :-1] = ~mask[:, 1:]
    return ends


def gae(
    rewards: Floats, values: Floats, terminated: Bools, ends: Bools, gamma: float, lambda_: float
) -> Floats:
    """Compute generalised advantage estimates (Schulman et al., 2016, arXiv:1506.02438, equation
    16): ``sum_k (gamma lambda)^k delta_(t + k)`` over the rest of the episode, where
    ``delta_t = r_t + gamma V(s_(t + 1)) - V(s_t)``."""
    deltas = rewards + gamma * _next_values(values, terminated) - values
    return _sums(deltas, np.full_like(deltas, gamma * lambda_), ends)


def vtrace(
    rewards: Floats,
    values: Floats,
    terminated: Bools,
    ends: Bools,
    log_ratios: Floats,
    gamma: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> tuple[Floats, Floats]:
    """Compute V-trace (Espeholt et al., 2018, arXiv:1802.01561, equation 1): targets of values, and
    the advantages that weigh the policy's gradient (section 4.2).

    log_ratios: of the probabilities of the actions, the present policy's to the acting one's.
    """
    rho, c = (np.exp(np.minimum(log_ratios, np.log(bar))) for bar in (rho_bar, c_bar))
    next_values = _next_values(values, terminated)
    corrections = _sums(rho * (rewards + gamma * next_values - values), gamma * c, ends)
    later = np.zeros_like(corrections)
    later[:, :-1] = np.where(ends[:, :-1], 0.0, corrections[:, 1:])
    advantages = rho * (rewards + gamma * (next_values + later) - values)
    return values + corrections, advantages


def _next_values(values: Floats, terminated: Bools) -> Floats:
    """Shift values to the step before; of the last row nothing is known."""
    following = np.zeros_like(values)
    following[:, :-1] = np.where(terminated[:, :-1], 0.0, values[:, 1:])
    return following


def _sums(terms: Floats, factors: Floats, ends: Bools) -> Floats:
    """Sum ``x_t = terms_t + factors_t x_(t + 1)``, where ``x`` is nothing behind ``ends``."""
    sums, later = np.empty_like(terms), np.zeros_like(terms[:, 0])
    for step in reversed(range(terms.shape[1])):
        later = np.where(ends[:, step], 0.0, later)
        later = terms[:, step] + factors[:, step] * later
        sums[:, step] = later
    return sums
