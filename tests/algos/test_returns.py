"""Advantages and V-trace against their definitions, sums over all later steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offrl.algos.shared.returns import ends_of, gae, vtrace

GAMMA, LAMBDA = 0.9, 0.7


@st.composite
def rollouts(draw):
    """Episodes of several environments: some terminate, some are cut off, the last one goes on or
    ends with the rollout, and padding may follow. Padding holds NaN."""
    num_envs, num_rows = draw(st.integers(1, 3)), draw(st.integers(2, 9))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    mask = np.zeros((num_envs, num_rows), bool)
    terminated = np.zeros_like(mask)
    for env in range(num_envs):
        row, filled = 0, num_rows - draw(st.integers(0, num_rows - 1))
        while row < filled - 1:
            length = draw(st.integers(1, filled - 1 - row))
            mask[env, row : row + length] = True
            terminated[env, row + length - 1] = draw(st.booleans())
            row += length + 1  # behind the last observation
    rewards, values, log_ratios = rng.standard_normal((3, num_envs, num_rows)).astype("float32")
    rewards[~mask] = np.nan
    log_ratios[~mask] = np.nan
    return rewards, values, terminated, mask, log_ratios


def steps_of(mask):
    return zip(*np.nonzero(mask), strict=True)


def episode_from(mask, env, row):
    """The rows of the steps from ``row`` to the end of the episode or of the rollout."""
    end = row
    while mask[env, end]:
        end += 1
    return range(row, end)


def td_error(rewards, values, terminated, env, k):
    later = 0.0 if terminated[env, k] else values[env, k + 1]
    return rewards[env, k] + GAMMA * later - values[env, k]


@given(rollouts())
def test_gae_is_the_discounted_sum_of_td_errors(rollout):
    rewards, values, terminated, mask, _ = rollout
    found = gae(rewards, values, terminated, ends_of(mask), GAMMA, LAMBDA)
    for env, row in steps_of(mask):
        expected = sum(
            (GAMMA * LAMBDA) ** (k - row) * td_error(rewards, values, terminated, env, k)
            for k in episode_from(mask, env, row)
        )
        assert found[env, row] == pytest.approx(expected, abs=1e-5)


@given(rollouts())
def test_with_lambda_one_advantages_are_returns_less_values(rollout):
    rewards, values, terminated, mask, _ = rollout
    found = gae(rewards, values, terminated, ends_of(mask), GAMMA, 1.0)
    for env, row in steps_of(mask):
        rows = episode_from(mask, env, row)
        last = rows[-1]
        total = sum(GAMMA ** (k - row) * rewards[env, k] for k in rows)
        if not terminated[env, last]:  # cut off: by a time limit or with the rollout
            total += GAMMA ** len(rows) * values[env, last + 1]
        assert found[env, row] == pytest.approx(total - values[env, row], abs=1e-5)


@given(rollouts(), st.floats(0.5, 2.0), st.floats(0.5, 2.0))
def test_vtrace_is_its_definition(rollout, rho_bar, c_bar):
    rewards, values, terminated, mask, log_ratios = rollout
    ends = ends_of(mask)
    arrays = rewards, values, terminated, ends, log_ratios
    targets, advantages = vtrace(*arrays, GAMMA, rho_bar, c_bar)
    ratios = np.exp(log_ratios)
    rho, c = np.minimum(ratios, rho_bar), np.minimum(ratios, c_bar)
    for env, row in steps_of(mask):
        rows = episode_from(mask, env, row)
        expected = values[env, row] + sum(
            GAMMA ** (k - row)
            * np.prod(c[env, row:k])
            * rho[env, k]
            * td_error(rewards, values, terminated, env, k)
            for k in rows
        )
        assert targets[env, row] == pytest.approx(expected, abs=1e-4)
        later = targets[env, row + 1] if len(rows) > 1 else values[env, row + 1]
        later = 0.0 if terminated[env, row] else later
        advantage = rho[env, row] * (rewards[env, row] + GAMMA * later - values[env, row])
        assert advantages[env, row] == pytest.approx(advantage, abs=1e-4)


@given(rollouts())
def test_vtrace_of_the_policys_own_steps_is_gae_with_lambda_one(rollout):
    rewards, values, terminated, mask, _ = rollout
    ends = ends_of(mask)
    targets, advantages = vtrace(rewards, values, terminated, ends, np.zeros_like(values), GAMMA)
    expected = gae(rewards, values, terminated, ends, GAMMA, 1.0)
    np.testing.assert_allclose(advantages[mask], expected[mask], atol=1e-5)
    np.testing.assert_allclose(targets[mask], (values + expected)[mask], atol=1e-5)
