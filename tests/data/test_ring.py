"""Batches that are sent to a GPU ahead of their turn; a fake one is as late as a GPU may be."""

import copy
from itertools import count, islice

import pytest
import torch
from fake_gpu import CUDA, gpu  # noqa: F401  # a fixture

from offrl import Trainer
from offrl.data.loader import BatchLoader
from offrl.data.ring import Ring
from offrl.data.sequence import SequenceDataset
from offrl.testing.device import DEVICE, watched
from offrl.tree import leaves


def batch_of(number, size=2):
    """All that a batch may hold."""
    pad_mask = torch.arange(size)[:, None] >= number % 2
    return {
        "obs": {"image": torch.full((size, 1, 3), number % 256, dtype=torch.uint8)},
        "actions": torch.full((size, 1, 2), float(number)),
        "goal_obs": None,
        "rewards": torch.full((2 * size, 1), float(number), dtype=torch.float64)[::2],
        "pad_mask": pad_mask,
    }


def assert_same(batch, expected):
    ours, theirs = leaves(batch), leaves(expected)
    assert ours.keys() == theirs.keys()
    for name, x in theirs.items():
        assert ours[name] is x is None or torch.equal(ours[name], x), name
        assert x is None or ours[name].dtype == x.dtype


def test_batches_arrive_as_they_were_in_three_pinned_ones(gpu):  # noqa: F811
    read, received = [], []

    def reading():
        for number in count():
            read.append(number)
            yield batch_of(number)

    gpu.present.lags = True
    for batch in islice(Ring(CUDA)(reading()), 9):
        received.append(batch)
        assert len(read) == len(received) + 2
    gpu.present.finish()
    for number, batch in enumerate(received):
        assert_same(batch, batch_of(number))
    assert len(gpu.pinned) == 3 * 4
    used = [x for batch in received for x in leaves(batch).values() if x is not None]
    assert len(used) == len(gpu.present.used)
    assert all(x is y for x, y in zip(used, gpu.present.used, strict=True))


def test_batches_of_another_form_get_other_memory(gpu):  # noqa: F811
    sizes = [2, 2, 3, 2, 2, 2, 2]
    read = [batch_of(number, size) for number, size in enumerate(sizes)]
    for batch, expected in zip(Ring(CUDA)(iter(read)), read, strict=True):
        assert_same(batch, expected)
    assert len(gpu.pinned) == (3 + 1) * 4


@pytest.mark.parametrize("num_good", [0, 1, 2, 5])
def test_an_error_comes_at_its_batch(gpu, num_good):  # noqa: F811
    def read():
        yield from map(batch_of, range(num_good))
        raise OSError("the file ends here")

    received = Ring(CUDA)(read())
    assert len([*islice(received, num_good)]) == num_good
    with pytest.raises(OSError, match="the file ends here"):
        next(received)


def test_data_that_is_there_is_not_sent(gpu, demos):  # noqa: F811
    dataset = SequenceDataset(demos, ["position"])
    dataset.to(DEVICE)
    batch = next(iter(BatchLoader(dataset, 4, seed=0).to(CUDA)))
    assert batch["actions"].device.type == DEVICE and not gpu.pinned


@pytest.mark.parametrize("options", [{"goal_mode": "mixture"}, {"seq_length": 3, "frame_stack": 2}])
def test_gathering_where_the_data_is_waits_for_nothing(demos, options):
    dataset = SequenceDataset(demos, ["position"], get_pad_mask=True, **options)
    dataset.to(DEVICE)
    draws = torch.empty(4, dataset.num_draws, dtype=torch.float64, device=DEVICE)
    with watched():
        dataset.get_batch(torch.empty(4, dtype=torch.long, device=DEVICE), draws)


def numbers(record):
    return record["type"], {k: x for k, x in record["logs"].items() if "Time" not in k}


def test_a_training_and_its_resumption_have_the_bits_of_one_without(
    gpu,  # noqa: F811
    small_config,
    monkeypatch,
):
    train = {"hdf5_filter_key": "train", "hdf5_validation_filter_key": "valid"}
    config = small_config(
        {
            "experiment": {"validate": True},
            "algo": {"vae": {"enabled": True}},  # each step draws
            "observation": {"modalities": {"goal": {"low_dim": ["position"]}}},
            "train": train | {"goal_mode": "future_uniform"},
        }
    )
    monkeypatch.setattr(Trainer, "PROGRESS_EVERY", 3)
    plain = Trainer(config)
    logs = [*map(numbers, plain())]
    assert not gpu.pinned
    gpu.gets_data()
    sent = Trainer(config)
    own_logs, states = [], {}
    for record in sent():
        own_logs.append(numbers(record))
        states[sent.step] = copy.deepcopy(sent.state())
        if sent.step == 9:
            break
    assert gpu.pinned and own_logs == logs[: len(own_logs)]
    assert all(state["loader"]["position"] == step for step, state in states.items())
    resumed = Trainer(config)
    for trainer in (sent, resumed):
        trainer.restore(states[6])  # in the midst of an epoch
        later = [*map(numbers, trainer())]
        assert later == logs[-len(later) :]
        for name, x in plain.algo.nets.state_dict().items():
            assert torch.equal(x, trainer.algo.nets.state_dict()[name])
