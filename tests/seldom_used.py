"""Steps of a network, by one process or by several; the second does without a layer."""

from types import MethodType
from unittest import mock

import torch
from torch import nn

from offrl import algo_factory, config_factory, parallel


def update(algo, batch):
    net = algo.nets["policy"]
    hidden = net["first"](batch["obs"]["x"])
    loss = net["last"](net["seldom"](hidden) if algo.epoch != 2 else hidden).square().mean()
    algo.optimize("policy", loss)
    return {"loss": loss}


def three_steps(accumulate):
    """Return in which order layers get their gradients, sums over the processes begin and steps
    end; and the weights, and the counts of Adam's steps."""
    torch.manual_seed(0)
    train = {"accumulate": accumulate, "cuda": False}
    observation = {"modalities": {"obs": {"low_dim": ["x"]}}}
    config = config_factory("bc", {"train": train, "observation": observation})
    algo = algo_factory("bc", config, {"x": [3]}, 2, device="cpu")
    layers = {name: nn.Linear(3, 3, bias=False) for name in ("first", "seldom", "last")}
    algo.nets["policy"] = nn.ModuleDict(layers)
    algo.take_stock()
    algo.update = MethodType(update, algo)

    events = []
    for name, layer in layers.items():
        layer.weight.register_hook(lambda _, name=name: events.append(name))
    all_reduce = torch.distributed.all_reduce

    def noted(*args, **options):
        events.append("sum")
        return all_reduce(*args, **options)

    one_byte = mock.patch.object(parallel, "BUCKET", 1)  # each layer has a bucket of its own
    with one_byte, mock.patch.object(torch.distributed, "all_reduce", noted):
        for epoch in (1, 2, 3):
            xs = torch.randn(8, 1, 3).split(8 // parallel.num_ranks())
            algo.train_on_batch({"obs": {"x": xs[parallel.rank()]}}, epoch)
            events.append("end")
    weights = [layer.weight.tolist() for layer in layers.values()]
    return events, weights, [int(x["step"]) for x in algo.optimizers["policy"].state.values()]
