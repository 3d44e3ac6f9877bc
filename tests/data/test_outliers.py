"""Demonstrations that are unlike the others."""

import numpy as np
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from offrl.data.formats.files import open_demos
from offrl.data.remarks import FEWEST, UNUSUAL, features, unusual

NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda x: round(x, 3))
COLUMNS = arrays.arrays(np.float64, st.integers(0, 40), elements=NUMBERS)


def found(values):
    return {i for i, _ in unusual({"length": np.asarray(values, float)})}


def test_one_that_is_far_off_is_found_and_described():
    ((number, sentence),) = unusual({"length": np.array([28, 30, 29, 31, 137, 27.0])})
    assert number == 4
    assert sentence.startswith("its length, 137, is far above the median of 29.5 (z = ")


def test_the_strangest_comes_first_whatever_it_is_strange_in():
    columns = {"length": [10, 11, 12, 13, 14, 99], "return": [-9999, 1, 2, 3, 4, 5]}
    order = [i for i, _ in unusual({name: np.array(x, float) for name, x in columns.items()})]
    assert order == [0, 5]


def test_unusual_begins_at_three_and_a_half_standard_deviations():
    others = [-2, -1, -1, 0, 0, 1, 1, 2]  # whose median deviation is 1
    assert found([*others, 5.1]) == set() and found([*others, 5.3]) == {8}


def test_few_that_differ_from_many_equal_ones_are_unusual_and_many_are_not():
    assert found([1] * 19 + [0]) == {19}
    assert found([1] * 12 + [0] * 8) == set()


def test_what_is_not_finite_is_unusual_unless_it_is_so_everywhere():
    assert unusual({"return": np.array([1, 2, 3, np.nan, 2, np.inf, 1])}) == [
        (3, "its return is nan"),
        (5, "its return is inf"),
    ]
    assert found([np.nan] * 9) == set()


@given(COLUMNS)
def test_fewer_than_half_are_unusual_and_none_of_few_or_of_equal_ones(values):
    strange = found(values)
    assert len(strange) <= len(values) / 2
    if len(values) < FEWEST or np.ptp(values) == 0:
        assert not strange


@given(COLUMNS, st.sampled_from([-2.0, 0.5, 4.0]), st.randoms())
def test_neither_units_nor_order_matter(values, unit, random):
    order = list(range(len(values)))
    random.shuffle(order)
    assert found(values * unit) == found(values)
    assert {order[i] for i in found(values[order])} == found(values)


@given(arrays.arrays(np.float64, st.integers(FEWEST, 40), elements=NUMBERS))
def test_whatever_is_further_from_the_median_than_an_unusual_one_is_unusual_too(values):
    strange = found(values)
    distances = np.abs(values - np.median(values))
    if strange:
        nearest = min(distances[i] for i in strange)
        assert strange == set(np.flatnonzero(distances >= nearest))
        spread = 1.4826 * np.median(distances) or 1.2533 * distances.mean()
        assert nearest > 0.99 * UNUSUAL * spread


def demo(**arrays):
    return {"actions": np.array([[0.5, -2.0], [0.5, -1.0], [0.0, -1.0]]), **arrays}


def test_what_is_measured_of_an_episode():
    rows = np.array([[0.0], [1.0], [1.0]])  # moves, then stands
    measured = features(demo(rewards=np.array([0, 0.5, 1]), **{"obs/x": rows}))
    assert measured["length"] == 3 and measured["return"] == 1.5
    assert measured["largest action"] == 2 and measured["mean action"] == pytest.approx(5 / 6)
    assert measured["jerkiness"] == pytest.approx(1.5 / 4)
    assert measured["stillness"] == 0.5
    assert np.isnan(features(demo())["return"])


def test_images_and_single_steps_are_measured_as_well():
    images = np.zeros((1, 4, 4, 3), np.uint8)
    measured = features({"actions": np.ones(1), "obs/camera": images})
    assert measured["jerkiness"] == 0 and measured["stillness"] == 1


def test_lift_has_one_that_missed_the_cube_for_six_seconds():
    with open_demos(ROOT / "datasets/lift/low_dim.hdf5") as file:
        measured = [features(file.trajectory(name)) for name in file.demos()]
    columns = {name: np.array([one[name] for one in measured]) for name in measured[0]}
    assert unusual(columns)[0][0] == 22
