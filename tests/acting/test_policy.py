import math

import numpy as np
import pytest
import torch
from toy_env import ToyEnv, toy_args

from offrl import RolloutPolicy, Trainer
from offrl.acting.episode import rollout
from offrl.envs import make_env
from offrl.envs.workers import EpisodeRequest, EpisodeResult
from offrl.evaluation.evaluate import evaluate, summarize
from offrl.intervals import wilson_interval


def make_policy(small_config, dims):
    """A GMM policy, so that actions are sampled."""
    overrides = {
        "algo": {"gmm": {"enabled": True, "low_noise_eval": False}, "actor_layer_dims": dims},
        "train": {"action_config": {"actions": {"normalization": "min_max"}}},
    }
    return RolloutPolicy(Trainer(small_config(overrides)).algo)


@pytest.fixture
def policy(small_config):
    return make_policy(small_config, [16, 16])


def run(policy, pool, n=10):
    requests = [EpisodeRequest(seed, 20, terminate_on_success=False) for seed in range(n)]
    results = list(evaluate(policy, pool, requests))
    return sorted((r.request.seed, r.total_reward, r.length) for r in results)


@pytest.mark.slow
@pytest.mark.parametrize("dims", [[16, 16], [333, 333], [50], [], [1024, 1024]])
def test_an_evaluation_is_bit_equal_for_any_number_of_workers(small_config, dims, pools):
    # Widths that are no multiple of the vector length have kernels that differ from row to row.
    policy = make_policy(small_config, dims)
    torch.manual_seed(0)
    first = run(policy, pools[1])
    state = torch.get_rng_state()
    assert first == run(policy, pools[2]) == run(policy, pools[5])
    assert torch.equal(state, torch.get_rng_state())
    assert len({reward for _, reward, _ in first}) == 10


def test_an_evaluation_uses_one_thread_and_gives_the_others_back(policy, pools):
    before = torch.get_num_threads()
    for _ in evaluate(policy, pools[1], [EpisodeRequest(0, 3)]):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_actions_are_in_the_units_of_the_data(policy):
    obs, _ = ToyEnv().reset(seed=0)
    policy.start_episode(seed=1)
    action = policy(obs)
    stats = policy.policy.action_normalizer.stats["actions"]
    batch = policy.policy.to_device({k: torch.tensor(v)[None, None] for k, v in obs.items()})
    with torch.no_grad():
        raw, _ = policy.policy.act(batch, None, None, [torch.Generator().manual_seed(1)])
    expected = raw * stats["scale"] + stats["offset"]
    np.testing.assert_allclose(action, expected[0].numpy(), rtol=1e-5)


def test_a_missing_observation_is_named(policy):
    policy.start_episode()
    with pytest.raises(ValueError, match="speed.*position"):
        policy({"position": np.zeros(3)})
    with pytest.raises(ValueError, match="start_episode"):
        RolloutPolicy(policy.policy)({"position": np.zeros(3), "speed": np.zeros(2)})


def test_a_rollout_in_this_process_counts_return_and_length(policy):
    env = make_env(toy_args())
    stats = rollout(policy, env, horizon=7, seed=3, terminate_on_success=False)
    assert stats["Horizon"] == 7 and stats["Return"] < 0
    assert stats == rollout(policy, env, horizon=7, seed=3, terminate_on_success=False)


def test_the_interval_is_wilsons():
    low, high = wilson_interval(45, 50)
    assert (low, high) == (pytest.approx(0.7864, abs=1e-4), pytest.approx(0.9565, abs=1e-4))
    assert wilson_interval(50, 50) == (pytest.approx(0.9287, abs=1e-4), 1.0)
    assert wilson_interval(0, 7)[0] == 0.0
    # The bounds solve |p - rate| = z sqrt(p (1 - p) / n).
    for p in (low, high):
        assert abs(p - 0.9) == pytest.approx(1.959964 * math.sqrt(p * (1 - p) / 50))


def test_a_summary_leaves_out_what_could_not_be_run():
    request = EpisodeRequest(0, 10)
    results = [
        EpisodeResult(request, success=True, total_reward=1.0, length=4),
        EpisodeResult(request, success=False, total_reward=0.0, length=10),
        EpisodeResult(request, error="lost"),
    ]
    logs = summarize(results)
    assert (logs["n"], logs["Crashed"], logs["Success_Rate"]) == (2, 1, 0.5)
    assert (logs["Return"], logs["Horizon"]) == (0.5, 7.0)
    assert summarize(results[2:]) == {"n": 0, "Crashed": 1}


@pytest.mark.parametrize(
    ("said", "rate"),
    [((None, None), None), ((None, True), 0.5), ((False, None), 0.0), ((False, False), 0.0)],
)
def test_a_success_rate_is_of_what_reports_success(said, rate):
    request = EpisodeRequest(0, 10)
    logs = summarize([EpisodeResult(request, success=x, total_reward=3.0) for x in said])
    assert logs.get("Success_Rate") == rate and (logs["n"], logs["Return"]) == (2, 3.0)
    assert sum(name.startswith("Success") for name in logs) == (0 if rate is None else 3)


def test_an_action_that_is_not_finite_never_leaves_the_policy(policy):
    policy.start_episode()
    obs = {"position": np.array([0.0, np.nan, 0.0]), "speed": np.zeros(2)}
    with pytest.raises(ValueError, match="NaN.*position"):
        policy(obs)


def test_a_driver_may_reuse_its_buffers(small_config):
    trainer = Trainer(small_config({"train": {"frame_stack": 3}}))
    buffer = {"position": np.zeros(3), "speed": np.zeros(2)}
    actions = []
    for reuse in (True, False):
        policy = RolloutPolicy(trainer.algo)
        policy.start_episode(seed=0)
        for step in range(4):
            buffer["position"][:] = step
            policy(buffer if reuse else {key: value.copy() for key, value in buffer.items()})
        actions.append(policy._episodes[0].frames["position"][:, 0].tolist())
    assert actions == [[1.0, 2.0, 3.0]] * 2


def test_observations_may_become_finer_during_an_episode(policy):
    policy.start_episode()
    policy({"position": np.zeros(3, dtype=int), "speed": np.zeros(2, dtype=int)})
    policy({"position": np.full(3, 0.3), "speed": np.full(2, 0.9)})
    frames = policy._episodes[0].frames
    assert frames["position"][-1].tolist() == [0.3] * 3 and frames["speed"][-1, 0] == 0.9


def test_an_observation_of_another_shape_is_named(policy):
    policy.start_episode()
    with pytest.raises(ValueError, match=r"'position'.*\[4\].*\[3\]"):
        policy({"position": np.zeros(4), "speed": np.zeros(2)})
