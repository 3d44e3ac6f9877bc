"""Chunks that are predicted by graphs, for which the tape of ``test_engine`` stands."""

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_conformance import case_of  # noqa: F401  # a fixture
from test_engine import on_tape

from offrl import RolloutPolicy
from offrl.algos.shared import acting
from offrl.algos.shared.acting import Draws, acts_by_graphs
from offrl.algos.shared.engine import MOST_GRAPHS
from offrl.kernels.operators import Operators
from offrl.testing import OBS_SHAPES
from offrl.testing.device import DEVICE, without_numbers
from offrl.tree import map_leaves, merge

DDIM = {"ddpm": {"enabled": False}, "ddim": {"enabled": True, "num_inference_timesteps": 3}}
POLICIES = {
    "DDPM": ("diffusion_policy-default", {}),
    "DDIM": ("diffusion_policy-default", DDIM),
    "DPM-Solver": ("diffusion_policy-default", {"scheduler": "DPMSolverMultistepScheduler"}),
    "flow": ("flow_matching-transformer", {}),
    "ACT": ("act-default", {"draws_latent": True}),
    "VQ-BeT": ("vq_bet-policy", {}),
}
QUICK = {"DDPM", "VQ-BeT"}


@pytest.fixture
def captures(monkeypatch):
    """Lets policies on the CPU act by graphs. Returns the sizes of the batches that were
    captured."""
    made = []

    def captured(device, function):
        replay, result = on_tape(device, function)
        made.append(len(result))
        return replay, result

    monkeypatch.setattr(acting, "captured", captured)
    monkeypatch.setattr(acting, "beside", lambda device, function: function())
    monkeypatch.setattr(
        acting, "acts_by_graphs", lambda algo: algo.global_config.train.engine == "graph"
    )
    return made


def made(case_of, name, engine, device="cpu"):  # noqa: F811
    case, section = POLICIES[name]
    case = copy.copy(case_of(case))
    case.overrides = merge(case.overrides, {"algo": section})
    train = {"engine": engine, "ema": {"enabled": True}, "frame_stack": 2}
    return case.make(train, device=device)


def seen(num, number):
    drawn = torch.Generator().manual_seed(number)
    return {key: torch.randn(num, 2, *x, generator=drawn) for key, x in OBS_SHAPES.items()}


def predicted(algo, batches, has_seeds, num_calls=1):
    """The chunks of a policy in the midst of a training, and the random numbers after them."""
    chunks, device = [], algo.device
    generators = [torch.Generator().manual_seed(row) for row in range(3)]

    def predict():
        for num in (2, 3, 2) * num_calls:
            own = generators[:num] if has_seeds else None
            with torch.no_grad():
                chunks.append(algo.chunk(seen(num, len(chunks)), None, own))

    def learn():
        algo.set_train()
        for _ in range(2):
            algo.train_on_batch(algo.process_batch_for_training(next(batches)), epoch=1)

    torch.manual_seed(0)
    algo.set_eval()
    predict()
    learn()
    predict()  # as a policy that explores does, by the weights that learn
    algo.set_eval()
    predict()
    learn()
    algo.set_eval()
    predict()
    algo.deserialize(copy.deepcopy(algo.serialize()))
    learn()
    algo.set_eval()
    predict()
    draws = [torch.rand(3, generator=x) for x in generators] + [torch.rand(3, device=device)]
    return chunks, draws


@pytest.mark.parametrize("has_seeds", [True, False])
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.thorough] * (x not in QUICK)) for x in POLICIES]
)
def test_chunks_of_graphs_have_the_bits_of_eager_ones(case_of, captures, name, has_seeds):  # noqa: F811
    eager, draws = predicted(*made(case_of, name, "eager"), has_seeds)
    assert not captures
    graph, own_draws = predicted(*made(case_of, name, "graph"), has_seeds)
    assert captures == [2, 3] * 3, "the weights, their averages, and those that were loaded"
    for number, (one, other) in enumerate(zip(eager, graph, strict=True)):
        assert torch.equal(one, other), number
    assert all(map(torch.equal, draws, own_draws))


class OnDevice(Operators):
    """Refuses what no capture allows: to copy between devices, and to ask for numbers. What is
    computed on the CPU alone is computed once, and single numbers from there are constants."""

    def see(self, func, arguments):
        name, tensors = func.name(), [x for x in arguments if isinstance(x, torch.Tensor)]
        there = [x for x in tensors if x.device.type == DEVICE]
        copies = "copy" in name and (
            len({x.device.type for x in tensors}) > 1
            or any(x.type != tensors[0].device.type for x in arguments if type(x) is torch.device)
        )
        mixes = there and any(x.ndim and x.device.type != DEVICE for x in tensors)
        asks = torch.Tag.data_dependent_output in func.tags or (
            torch.Tag.dynamic_output_shape in func.tags
            and (name != "aten::index.Tensor" or any(x.dtype is torch.bool for x in tensors))
        )
        assert not (copies or mixes or (there and asks)), name


@pytest.mark.parametrize("has_seeds", [True, False])
@pytest.mark.parametrize("name", POLICIES)
def test_what_is_captured_does_not_wait_for_the_device(case_of, name, has_seeds):  # noqa: F811
    with without_numbers():
        algo, _ = made(case_of, name, "eager", DEVICE)
    draws = Draws(2 * has_seeds, torch.device(DEVICE))
    obs = map_leaves(lambda x: x.to(DEVICE), seen(2, 0))
    with torch.no_grad(), OnDevice(), draws:
        chunks = algo.chunk(obs, None, draws.generators or None)
    assert len(chunks) == 2 and chunks.device.type == DEVICE


def played(case_of, engine, name="DDPM", change=lambda algo: None):  # noqa: F811
    """The actions in one environment and in three beside it, whose chunks come in a batch of eight
    rows."""
    algo, _ = made(case_of, name, engine)
    change(algo)
    policy, rng = RolloutPolicy(algo), np.random.default_rng(0)
    for env in range(4):
        policy.start_episode(env, seed=env)
    actions = []
    for step in range(6):
        for envs in ([0], [1, 2, 3][: 3 - step // 4]):
            obs = {e: {k: rng.normal(size=x) for k, x in OBS_SHAPES.items()} for e in envs}
            actions += policy.act(obs).values()
    return policy, np.stack(actions)


def test_a_policy_plays_chunks_of_graphs(case_of, captures):  # noqa: F811
    _, eager = played(case_of, "eager")
    policy, graph = played(case_of, "graph")
    assert captures == [2, 8]
    np.testing.assert_array_equal(eager, graph)
    algo = pickle.loads(pickle.dumps(policy)).policy
    with torch.no_grad():
        algo.chunk(seen(2, 0))
    assert captures == [2, 8, 2], "a copy has graphs of its own"


def waits(algo, own):
    def sample(*seen):
        actions = own(*seen)
        return actions if float(actions.mean()) < 9 else actions + 1

    return sample


def draws_in_place(algo, own):
    def sample(obs, goal, generators):
        noise = torch.zeros(len(generators), 1, 1)
        for row, generator in zip(noise, generators, strict=True):
            if generator is not None:
                row.normal_(generator=generator)
        return own(obs, goal, generators) + noise

    return sample


def draws_numbers(algo, own):
    def sample(obs, goal, generators):
        drawn = [torch.randint(9, (1, 1), generator=x or torch.Generator()) for x in generators]
        return own(obs, goal, generators) + torch.stack(drawn)

    return sample


@pytest.mark.parametrize("habit", [waits, draws_in_place, draws_numbers])
def test_what_cannot_be_captured_is_predicted_eagerly(case_of, captures, caplog, habit):  # noqa: F811
    def change(algo):
        algo.sample = habit(algo, algo.sample)

    _, eager = played(case_of, "eager", "flow", change)
    _, graph = played(case_of, "graph", "flow", change)
    np.testing.assert_array_equal(eager, graph)
    (line,) = [x.message for x in caplog.records if "train.engine" in x.message]
    assert "cannot be captured: " in line and not captures


def test_most_forms_are_predicted_by_graphs_and_the_rest_eagerly(case_of, captures):  # noqa: F811
    algo, _ = made(case_of, "ACT", "graph")
    with torch.no_grad():
        for num in [*range(1, MOST_GRAPHS + 3), 1]:
            algo.chunk(seen(num, 0))
        algo.chunk({key: x.double() for key, x in seen(1, 0).items()})
        assert captures == [*range(1, MOST_GRAPHS + 1)]
        algo.set_statistics(algo.obs_normalizer.stats, algo.action_normalizer.stats)
        algo.chunk({key: x.double() for key, x in seen(1, 0).items()})
        algo.chunk(seen(1, 0))
        assert captures[MOST_GRAPHS:] == [1, 1]
        algo.explores = True
        algo.chunk(seen(1, 0))
        with torch.inference_mode():
            algo.chunk(seen(1, 0))
            algo.chunk(seen(1, 0))
            algo.chunk(seen(1, 0), None, [torch.Generator()])
    assert captures[MOST_GRAPHS + 2 :] == [1, 1, 1], "what it may depend on is part of the key"


def test_graphs_are_for_acting_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def captures(engine="graph", device="cuda"):
        config = SimpleNamespace(train=SimpleNamespace(engine=engine))
        algo = SimpleNamespace(global_config=config, device=torch.device(device))
        return acts_by_graphs(algo)

    with torch.no_grad():
        assert captures() and not captures("eager") and not captures(device="cpu")
        with monkeypatch.context() as patch:
            patch.setattr(torch, "is_autocast_enabled", lambda kind: kind == "cuda")
            assert not captures()
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert not captures(), "in a step of a training that is captured"
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert not captures(), "where gradients are computed"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("has_seeds", [True, False])
@pytest.mark.parametrize("name", POLICIES)
def test_graphs_have_the_bits_of_eager_chunks_on_a_gpu(case_of, caplog, name, has_seeds):  # noqa: F811
    eager, draws = predicted(*made(case_of, name, "eager", "cuda"), has_seeds, num_calls=14)
    graph, own_draws = predicted(*made(case_of, name, "graph", "cuda"), has_seeds, num_calls=14)
    assert not caplog.records
    assert len(eager) > 200 and all(map(torch.equal, eager, graph))
    assert all(map(torch.equal, draws, own_draws))
