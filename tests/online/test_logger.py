"""The logger around trainers of a user's own."""

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from offrl.online import logger

LOSS = torch.tensor(0.5, requires_grad=True)


def trainer_of(records):
    class Mine:
        config = {"lr": 0.1}  # no config of offrl's

        def __call__(self, times=1):
            yield from records * times

    return Mine


@pytest.mark.parametrize(
    "records, tag, steps",
    [
        ([{"log_type": "train", "sample_step": 7, "logs": {"loss": LOSS}}], "Train/loss", [7, 7]),
        ([{"type": "train", "step": 3, "logs": {"loss": np.float32(0.5)}}], "Train/loss", [3, 3]),
        ([{"type": "a"}, {"type": "train", "logs": {"loss": 0.5, "x": "y"}}], "Train/loss", [2, 4]),
        ([{"loss": 0.5, "step": 3, "logs": None}], "Log/loss", [3, 3]),
    ],
)
def test_any_trainer_may_be_decorated(records, tag, steps, tmp_path):
    Mine = trainer_of(records)
    Mine.__call__ = logger(Mine.__call__, tmp_path)
    assert [*Mine()(times=2)] == records * 2
    events = EventAccumulator(str(tmp_path / "Mine-1")).Reload()
    assert events.Tags()["scalars"] == [tag]
    assert [(x.step, x.value) for x in events.Scalars(tag)] == [(step, 0.5) for step in steps]


def test_records_are_dicts(tmp_path):
    with pytest.raises(ValueError, match="Mine: its record 1 is 0.5, not a dict"):
        [*logger(trainer_of([0.5]).__call__, tmp_path)(trainer_of([0.5])())]
