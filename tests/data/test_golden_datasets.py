"""Items equal those that robomimic 0.5.0 returned, setting by setting."""

import json
from pathlib import Path

import numpy as np
import pytest

from offrl.data.sequence import SequenceDataset

DATASETS = Path(__file__).parents[1] / "golden" / "datasets"
SETTINGS = sorted(DATASETS.glob("*/settings.json"))


def flatten(tree, prefix=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}/")
        else:
            yield prefix + key, value


@pytest.mark.parametrize("path", SETTINGS, ids=lambda p: p.parent.name)
@pytest.mark.parametrize("cache_mode", ["all", "low_dim", None])
def test_items_equal_robomimics(path, cache_mode):
    recorded = json.loads(path.read_text())
    items = dict(np.load(path.parent / "items.npz"))
    settings = recorded["settings"] | {"hdf5_cache_mode": cache_mode}
    dataset = SequenceDataset(hdf5_path=DATASETS / recorded["dataset"], **settings)

    assert len(dataset) == recorded["length"]
    assert dataset.demos == recorded["demo_order"]
    for index in recorded["indices"]:
        expected = {
            k.partition("/")[2]: v for k, v in items.items() if k.startswith(f"item{index}/")
        }
        actual = dict(flatten(dataset[index]))
        assert actual.keys() == expected.keys()
        for key, value in expected.items():
            value = value if value.dtype == bool else value.astype(np.float32)
            assert actual[key].dtype == value.dtype
            np.testing.assert_allclose(actual[key], value, rtol=1e-6, atol=1e-6, err_msg=key)

    stats = {
        "action_normalization_stats": dataset.get_action_normalization_stats(),
        "obs_normalization_stats": dataset.get_obs_normalization_stats(),
    }
    for key, value in items.items():
        kind, _, rest = key.partition("/")
        if kind in stats:
            name, _, part = rest.rpartition("/")
            np.testing.assert_allclose(stats[kind][name][part], value, rtol=1e-6, atol=1e-6)
