"""Subgoals that policies say they follow: measured in episodes, and shown in films."""

import numpy as np
import pytest
from toy_env import WalkHome, toy_args

from offrl.acting import EpisodeRequest, EpisodeResult, Policy, Subgoal, rollout, run_episode
from offrl.envs import make_env
from offrl.envs.workers import EnvPool
from offrl.evaluation import summarize

HAND_ENV = toy_args() | {"env_name": "toy_env:HandToy-v0"}


class Aiming(Policy):
    """Sends the hand to one place after the other, for ``steps`` actions each: ``target(start, n)``
    is where from ``start`` for the n-th time. An action moves it by 0.1 in each direction."""

    def __init__(self, target, steps, key="hand_eef_pos"):
        self.target, self.steps, self.key, self.followed = target, steps, key, {}
        self.obs_keys = (key,)

    def start_episode(self, env=0, seed=None):
        self.followed[env] = [0, 0, None, seed]

    def act(self, obs_by_env, goal_by_env=None, reward_by_env=None):
        actions = {}
        for env, obs in obs_by_env.items():
            number, left, place, seed = self.followed[env]
            if left == 0:
                place = self.target(obs[self.key], number)
                number, left = number + 1, self.steps + (seed or 0) % 3
            self.followed[env] = [number, left - 1, place, seed]
            actions[env] = np.clip(10 * (place - obs[self.key])[:2], -1, 1)
        return actions

    def subgoal(self, env=0):
        _, left, place, _ = self.followed[env]
        return None if place is None else Subgoal({self.key: place}, left)


def measured(target, horizon, steps=3):
    request = EpisodeRequest(seed=0, horizon=horizon, terminate_on_success=False)
    policy = Aiming(target, steps)
    policy.start_episode(seed=0)
    return run_episode(make_env(HAND_ENV), request, policy).subgoal_distances


def away(x):
    return lambda start, number: start + np.array([x, 0.0, 0.0])


def test_the_least_distance_from_each_subgoal_is_measured():
    assert measured(away(0.2), horizon=3) == pytest.approx([0.0])
    assert measured(away(1.0), horizon=9) == pytest.approx([0.7, 0.7, 0.7])

    def there_and_past(start, number):
        return start + np.array([0.1 if number == 0 else -0.5, 0.0, 0.0])

    assert measured(there_and_past, horizon=6) == pytest.approx([0.0, 0.2])


def test_a_subgoal_is_nearest_where_the_hand_passes_it():
    class Passing(Aiming):
        def act(self, obs_by_env, *others):
            return {env: np.ones(2) for env in super().act(obs_by_env)}

    policy = Passing(lambda start, number: start + np.array([0.1, 0.1, 0.01]), 4)
    policy.start_episode(seed=0)
    result = run_episode(make_env(HAND_ENV), EpisodeRequest(0, 4, False), policy)
    assert result.subgoal_distances == pytest.approx([0.01])


def test_two_subgoals_at_the_same_place_are_two():
    distances = measured(lambda start, number: np.array([5.0, 0.0, 1.0]), horizon=9)
    assert len(distances) == 3 and distances == sorted(distances, reverse=True)
    assert distances[0] - distances[2] > 0.5


def test_one_that_the_end_cuts_off_does_not_count():
    assert measured(away(0.0), horizon=2) == []
    assert len(measured(away(0.0), horizon=8)) == 2


def test_of_several_hands_the_farthest_counts():
    class Both(Aiming):
        def subgoal(self, env=0):
            subgoal = super().subgoal(env)
            hand = subgoal.positions["hand_eef_pos"]
            return Subgoal({"hand_eef_pos": hand, "position": hand + 0.3}, subgoal.steps_left)

    policy = Both(away(0.0), 3)
    policy.start_episode(seed=0)
    result = run_episode(make_env(HAND_ENV), EpisodeRequest(0, 3, False), policy)
    assert result.subgoal_distances == pytest.approx([0.3 * np.sqrt(3)])


@pytest.mark.slow
def test_workers_measure_what_is_measured_here():
    """The subgoals of a batch have different ages, as episodes have different intervals."""
    requests = [EpisodeRequest(seed, horizon=11, terminate_on_success=False) for seed in range(7)]
    env, policy, found = make_env(HAND_ENV), Aiming(away(0.55), 2), []
    here = []
    for request in requests:
        policy.start_episode(seed=request.seed)
        here.append(run_episode(env, request, policy).subgoal_distances)
    assert {len(distances) for distances in here} == {5, 3, 2}
    for num_workers in (1, 3):
        with EnvPool(HAND_ENV, num_workers) as pool:
            results = sorted(pool.run(requests, policy), key=lambda r: r.request.seed)
        assert all(r.error is None for r in results)
        assert [r.subgoal_distances for r in results] == here
        found.append(summarize(results))
    assert found[0] == found[1] and found[0]["Subgoals"] == sum(map(len, here))


def test_a_summary_says_how_often_subgoals_are_reached():
    request = EpisodeRequest(0, 1)
    results = [
        EpisodeResult(request, subgoal_distances=[0.0, 0.02]),
        EpisodeResult(request),
        EpisodeResult(request, subgoal_distances=[0.021]),
        EpisodeResult(request, error="crashed", subgoal_distances=[0.0]),
    ]
    logs = summarize(results)
    assert logs["Subgoals"] == 3 and logs["Subgoals_Reached"] == 2 / 3
    assert logs["Subgoal_Distance"] == pytest.approx(0.041 / 3)
    assert not any(name.startswith("Subgoal") for name in summarize([EpisodeResult(request)]))


@pytest.mark.parametrize("num_workers", [None, 2])
def test_a_film_shows_the_present_subgoal(num_workers):
    def film(policy, env_args=HAND_ENV):
        """The first pixel's red of each picture."""
        request = EpisodeRequest(0, 8, terminate_on_success=False, frame_every=1)
        if num_workers is None:
            policy.start_episode(seed=0)
            result = run_episode(make_env(env_args), request, policy)
        else:
            with EnvPool(env_args, num_workers) as pool:
                (result,) = pool.run([request], policy)
        assert result.error is None and result.no_video is None
        return [int(frame[0, 0, 0]) for frame in result.frames]

    def target(start, number):
        return np.array([number + 1.0, 0.0, 1.0])

    assert film(Aiming(target, 3)) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert film(WalkHome()) == [255] * 9
    assert film(Aiming(target, 3, key="position"), toy_args()) == [*range(9)]  # it cannot mark


def test_an_environment_that_is_no_gymnasium_environment_is_filmed():
    class Plain:
        def __init__(self):
            env = make_env(HAND_ENV)
            self.reset, self.step, self.is_success = (
                env.reset,
                env.step,
                env.get_wrapper_attr("is_success"),
            )

        def render(self):
            return np.zeros((4, 4, 3), np.uint8)

    policy = WalkHome()
    policy.start_episode(seed=0)
    result = run_episode(Plain(), EpisodeRequest(0, 3, False, frame_every=1), policy)
    assert len(result.frames) == 4 and result.no_video is None


def test_a_policy_that_derives_from_nothing_has_subgoals_as_well():
    class Plain:
        def __init__(self):
            aiming = Aiming(away(0.0), 2)
            self.start_episode, self.act, self.subgoal = (
                aiming.start_episode,
                aiming.act,
                aiming.subgoal,
            )

    with EnvPool(HAND_ENV, 1) as pool:
        (result,) = pool.run([EpisodeRequest(0, 4, terminate_on_success=False)], Plain())
    assert result.subgoal_distances == [0.0, 0.0]
    assert rollout(Plain(), make_env(HAND_ENV), 4)["Horizon"] > 0
