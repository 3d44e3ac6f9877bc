import pytest
from kills import kill_and_compare


@pytest.mark.parametrize(
    "num_kills",
    [pytest.param(n, marks=m) for n, m in ((2, pytest.mark.slow), (10, pytest.mark.thorough))],
)
def test_random_kills_change_no_bit(num_kills, tmp_path):
    kill_and_compare(num_kills, seed=1, folder=tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("algo", ["hbc", "iris"])
def test_random_kills_change_no_bit_of_a_hierarchy(algo, tmp_path):
    kill_and_compare(6, seed=1, folder=tmp_path, algo=algo)
