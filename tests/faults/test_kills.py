import pytest
from kills import kill_and_compare


@pytest.mark.thorough
def test_random_kills_change_no_bit(tmp_path):
    kill_and_compare(6, seed=1, folder=tmp_path)


@pytest.mark.thorough
def test_random_kills_beside_an_evaluation_change_no_bit(tmp_path):
    kill_and_compare(4, seed=1, folder=tmp_path, in_background=True)


@pytest.mark.thorough
@pytest.mark.parametrize("algo", ["hbc", "iris"])
def test_random_kills_change_no_bit_of_a_hierarchy(algo, tmp_path):
    kill_and_compare(4, seed=1, folder=tmp_path, algo=algo)
