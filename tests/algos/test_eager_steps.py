"""Steps that are eager though another engine is to make them, and say so."""

import random
import re

import pytest
import torch
from test_conformance import case_of  # noqa: F401  # a fixture
from test_engine import captures, parts  # noqa: F401  # fixtures

from offrl.algos.shared.engine import Engine
from offrl.tree import map_leaves


def test_processed_batches_of_other_sizes_are_learned_from_eagerly(case_of, parts, caplog):  # noqa: F811
    caplog.set_level("INFO")
    results = []
    for kind in ("eager", "compile"):
        algo, batches = case_of("bc-mlp-deterministic").make({"engine": kind, "batch_size": 3})
        algo.set_train()
        made, rows = Engine(algo), algo.process_batch_for_training(next(batches))
        for size in (3, 3, 2, 2, 3, 3):
            batch = map_leaves(lambda x, size=size: x[:size], rows)
            info = made.step(batch, epoch=1, is_raw=False)
        results.append([dict(info), dict(algo.nets.state_dict())])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)
    (line,) = [x.message for x in caplog.records if "eager" in x.message]
    assert "fewer samples than train.batch_size" in line and len(made._graphs) == 1


def broken(case, update, kind="graph"):
    algo, batches = case.make({"engine": kind})
    algo.set_train()
    own = algo.update
    algo.update = lambda batch: update(algo, batch, own)
    return algo, Engine(algo), batches


def waits(algo, batch, own):
    info = own(batch)
    assert float(info["loss"]) > -1e9
    return info


def steps_twice(algo, batch, own):
    own(batch)
    return own(batch)


@pytest.mark.parametrize(
    ("update", "problem"),
    [(waits, "not permitted when stream is capturing"), (steps_twice, "several optimizer steps")],
)
def test_what_cannot_be_captured_goes_on_eagerly(
    case_of,  # noqa: F811
    captures,  # noqa: F811
    caplog,
    update,
    problem,
):
    case = case_of("bc-mlp-deterministic")
    algo, made, batches = broken(case, update)
    for _ in range(8):
        made.step(next(batches), epoch=1)
    (line,) = [x.message for x in caplog.records if "steps are eager" in x.message]
    assert problem in line and len(captures) <= 2  # once, and once later
    other, _, batches = broken(case, update)
    for _ in range(8):
        other.train_on_batch(other.process_batch_for_training(next(batches)), epoch=1)
    for key, x in other.nets.state_dict().items():
        assert torch.equal(x, algo.nets.state_dict()[key])


def test_what_cannot_be_compiled_goes_on_eagerly(case_of, parts, caplog):  # noqa: F811
    case = case_of("bc-mlp-deterministic")
    algo, made, batches = broken(case, waits, "compile")
    other, _, own_batches = broken(case, waits, "compile")
    for _ in range(4):
        made.step(next(batches), epoch=1)
        other.train_on_batch(other.process_batch_for_training(next(own_batches)), epoch=1)
    (line,) = [x.message for x in caplog.records if "steps are eager" in x.message]
    assert "numbers in tensors" in line and not parts
    for key, x in other.nets.state_dict().items():
        assert torch.equal(x, algo.nets.state_dict()[key])


class Kept:
    num = 0


def counts_in_python(algo, batch, own):
    info = own(batch)
    algo.kept["num"] += 1
    return info | {"counted": info["loss"] * algo.kept["num"]}


def keeps_a_tensor(algo, batch, own):
    info = own(batch)
    algo.smooth = 0.9 * algo.smooth + info["loss"].detach()
    return info


def keeps_a_list(algo, batch, own):
    info = own(batch)
    algo.seen.append(info["loss"].detach())
    return info


def replaces_weights(algo, batch, own):
    info, weight = own(batch), next(algo.nets.parameters())
    weight.data = 0.5 * weight.data
    return info


def reads_a_list(algo, batch, own):
    info = own(batch)
    return info | {"read": torch.tensor(info["loss"].tolist())}


def draws_in_python(algo, batch, own):
    info = own(batch)
    return info | {"drawn": info["loss"] * random.random()}


def draws_by_its_own_generator(algo, batch, own):
    return own(batch) | {"drawn": torch.rand((), generator=torch.Generator().manual_seed(0))}


def goes_by_a_count(algo, batch, own):
    info = own(batch)
    algo.num += 1
    return info | {"counted": info["loss"] * (2 if algo.num > 1000 else 1)}


def goes_by_the_epoch(algo, batch, own):
    info = own(batch)
    return info | {"scaled": info["loss"] * algo.epoch}


def counts_in_an_object(algo, batch, own):
    algo.object.num += 1
    return own(batch)


def returns_nothing(algo, batch, own):
    own(batch)


@pytest.mark.parametrize(
    ("kind", "update", "problem"),
    [
        ("graph", counts_in_python, r"no part of graph_key"),
        ("graph", keeps_a_tensor, "update changes smooth"),
        ("graph", counts_in_an_object, "update changes num"),
        ("graph", goes_by_a_count, r"no part of graph_key"),
        ("graph", goes_by_the_epoch, r"no part of graph_key"),
        ("graph", keeps_a_list, "update changes seen"),
        ("graph", replaces_weights, r"update changes policy\.\S*weight"),
        ("compile", keeps_a_list, "update changes seen"),
        ("compile", reads_a_list, r"Tensor\.tolist reads"),
        ("compile", goes_by_a_count, r"no part of graph_key"),
        ("compile", goes_by_the_epoch, r"no part of graph_key"),
        ("compile", draws_in_python, r"no part of graph_key"),
        ("compile", replaces_weights, r"update changes policy\.\S*weight"),
        ("compile", returns_nothing, "update returns no tensors"),
        ("compile", draws_by_its_own_generator, r"cannot be compiled: .*rand\.generator"),
    ],
)
def test_what_updates_do_beside_operators_is_not_lost(
    case_of,  # noqa: F811
    captures,  # noqa: F811
    parts,  # noqa: F811
    caplog,
    kind,
    update,
    problem,
):
    case, results = case_of("bc-mlp-deterministic"), []
    for engine_kind in ("eager", kind):
        algo, made, batches = broken(case, update, engine_kind)
        algo.kept, algo.smooth, algo.seen = {"num": 0}, torch.zeros(()), []
        algo.COUNTERS, algo.num, algo.object = (*algo.COUNTERS, "num"), 0, Kept()
        random.seed(0)
        for _ in range(6):
            info = made.step(next(batches), epoch=1)
        kept = algo.kept, algo.smooth, algo.seen, algo.num, algo.object.num
        results.append([dict(info), dict(algo.nets.state_dict()), kept])
    torch.testing.assert_close(*results, rtol=0, atol=0)
    (line,) = [x.message for x in caplog.records if "steps are eager" in x.message]
    assert re.search(problem, line)
