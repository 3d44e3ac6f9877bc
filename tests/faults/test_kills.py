import pytest
from kills import kill_and_compare


@pytest.mark.slow
def test_ten_random_kills_change_no_bit(tmp_path):
    kill_and_compare(10, seed=1, folder=tmp_path)
