"""Online training in simulators of arms, side by side in processes."""

import numpy as np
import pytest

from offrl.envs import ROBOSUITE_KWARGS, vector
from offrl.envs.vector.processes import ProcessVector
from offrl.online import Trainer

TASKS = {
    "push-v3": {"type": "metaworld", "env_kwargs": {"reward_shaping": True}},
    "Lift": {"type": "robosuite", "env_kwargs": ROBOSUITE_KWARGS | {"reward_shaping": True}},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["push-v3", pytest.param("Lift", marks=pytest.mark.thorough)])
def test_arms_learn_in_processes(name, monkeypatch):
    monkeypatch.setattr(vector, "MESSAGES", -1.0)
    online = {"num_envs": 2, "collect_steps": 5, "random_steps": 10, "horizon": 12}
    config = {
        "experiment": {"env_meta_update_dict": TASKS[name]},
        "train": {"cuda": False, "batch_size": 8, "online": online},
        "algo": {"critic": {"layer_dims": [16]}, "actor": {"layer_dims": [16]}},
    }
    trainer = Trainer(config, name, "sac", num_steps=60)
    records = list(trainer())
    assert isinstance(trainer.envs, ProcessVector) and trainer.step == 60
    returns = [r["logs"]["Return"] for r in records if r["logs"].get("Episodes")]
    assert len(returns) >= 2 and np.isfinite(returns).all() and min(returns) > 0
    assert sum(r["type"] == "train" for r in records) == 5
    state = trainer.state()
    trainer.close()

    again = Trainer(config, name, "sac", num_steps=60)
    again.restore(state)
    for key, shown in trainer.obs.items():
        np.testing.assert_array_equal(again.obs[key], shown)
    again.close()
