"""The RayBroker and ``benchmarks/scaling.py``, its model: 64 explorers that share processes."""

from collections import Counter

import pytest
from conftest import ROOT

pytest.importorskip("ray", reason="no Ray")

from offrl.cluster import connected

EXPLORERS = 64
FREE = 1e12  # a link, bytes a second


@pytest.fixture(scope="module")
def scaling():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        import scaling

        with connected("local", num_cpus=scaling.PROCESSES):
            yield scaling


@pytest.fixture(scope="module")
def costs(scaling):
    """Of receiving, on this machine as it is now."""
    return scaling.Costs(scaling.receive_seconds(EXPLORERS, 70_000), 0, 0, 0, 0)


def test_what_takes_longest_is_saturated(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from scaling import Costs, Traffic, predict

    costs = Costs(1e-3, 1e-6, 1e-9, 1e-3, 1e-9)
    traffic = Traffic("", 100, 1_000_000, 2_000_000, explore=1.0, update=0.01)
    assert predict(traffic, costs, 10, FREE)[:2] == (10, "explorers")
    rate, saturated, staleness = predict(traffic, costs, 200, FREE)
    # 1 + 0.2 + 1 ms to receive, 1 + 2 ms to publish, and the update.
    assert (round(1 / rate, 6), saturated, staleness) == (0.0152, "Learner", 399)
    quick = traffic._replace(update=0.002)
    assert predict(quick, costs, 200, FREE).saturated == "Broker"
    # Of 200 explorers on 7 machines each gets a version; four trajectories go to four of them.
    assert predict(quick, costs, 200, 1e8)[:2] == (50, "link")
    assert predict(quick, costs, 200, 1e8, num_trajectories=20)[:2] == (100, "link")


@pytest.mark.thorough
@pytest.mark.parametrize("size", [70_000, 1_000_000])
def test_all_explorers_have_their_turn_though_the_learner_is_slower(scaling, size):
    with scaling.synthetic(EXPLORERS, size) as broker:
        turns = Counter(broker.receive().explorer for _ in range(8 * EXPLORERS))
    assert min(turns.values()) >= 4 and max(turns.values()) <= 12


@pytest.mark.thorough
def test_slow_explorers_come_to_what_the_model_says(scaling, costs):
    # Eight times slower than what the Broker can take of them now.
    explore = max(1.0, 8 * EXPLORERS * costs.per_trajectory)
    traffic = scaling.Traffic("", 1, 70_000, 1000, explore, update=0.0)
    expected = scaling.predict(traffic, costs, EXPLORERS, FREE)
    assert expected.saturated == "explorers"
    with scaling.synthetic(EXPLORERS, 70_000, explore) as broker:
        rate, staleness = scaling.learn(broker, traffic, 8 * EXPLORERS)
    assert expected.rate / 3 < rate < 1.5 * expected.rate
    assert staleness == pytest.approx(expected.staleness, rel=0.3)


@pytest.mark.thorough
def test_a_slow_learner_comes_to_what_the_model_says(scaling, costs):
    update = max(0.01, 8 * costs.per_trajectory)
    traffic = scaling.Traffic("", 1, 70_000, 1000, 0.0, update)
    expected = scaling.predict(traffic, costs, EXPLORERS, FREE)
    assert expected.saturated == "Learner"
    with scaling.synthetic(EXPLORERS, 70_000) as broker:
        rate, staleness = scaling.learn(broker, traffic, 8 * EXPLORERS)
    assert expected.rate / 3 < rate < 1.5 * expected.rate
    assert staleness == pytest.approx(expected.staleness, rel=0.3)
