"""Steps that are captured. A tape stands for CUDA graphs: it repeats the operations of one step on
the same memory, as a graph does, so that all that is not in them has to reach them in tensors."""

import copy
import json
import os
import subprocess
import sys
from functools import partial

import pytest
import torch
from test_conformance import FIRST, case_of  # noqa: F401  # a fixture
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from offrl.algos.shared import algo as base
from offrl.algos.shared import engine, optim
from offrl.algos.shared.engine import Engine, chosen_engine
from offrl.assembly.recorded import Experiment
from offrl.kernels import compiled
from offrl.training import Trainer


class Tape(TorchDispatchMode):
    """Keeps the operations of a function. What depends on weights would be on the device."""

    def __init__(self):
        super().__init__()
        self.calls, self.before = [], []
        self.on_device = set()  # ids of results, which are all kept

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        options = options or {}
        given = tree_leaves((arguments, options))
        is_there = any(isinstance(x, torch.nn.Parameter) or id(x) in self.on_device for x in given)
        if is_there and function is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        for schema, x in zip(function._schema.arguments, arguments, strict=False):
            if schema.alias_info is not None and schema.alias_info.is_write:
                self.before += [(there.detach(), there.clone()) for there in tree_leaves(x)]
        result = function(*arguments, **options)
        self.calls.append((function, arguments, options, result))
        self.on_device.update(map(id, tree_leaves(result) if is_there else ()))
        return result

    def replay(self):
        with torch.no_grad():
            for function, arguments, options, result in self.calls:
                if function.is_view or "empty" in function.name():  # these start no kernel
                    continue
                again = function(*arguments, **options)
                for there, x in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(x, torch.Tensor) and x is not there:
                        there.copy_(x)


def on_tape(device, function):
    """Stands for ``engine.captured``, which computes nothing."""
    tape, rng = Tape(), torch.get_rng_state()
    try:
        with tape:
            result = function()
    finally:
        with torch.no_grad():
            for there, was in reversed(tape.before):
                there.copy_(was)
        torch.set_rng_state(rng)
    return tape.replay, result


@pytest.fixture
def captures(monkeypatch):
    """Lets steps on the CPU be captured. Returns the number of captures so far."""
    made = []

    def captured(device, function):
        made.append(device)
        return on_tape(device, function)

    for module in (optim, base):
        monkeypatch.setattr(module, "keeps_numbers", lambda config, device: True)
    monkeypatch.setattr(engine, "captured", captured)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # its RNNs keep state from a tape
    monkeypatch.setattr(engine, "beside", lambda device, function: function())
    return made


def trained(case, kind, num_steps, swap=None, device="cpu"):
    """The algorithm after a number of steps of an engine, and the numbers that these returned."""
    train = {"engine": kind, "max_grad_norm": 0.5, "ema": {"enabled": True}}
    schedule = {"scheduler_type": "cosine", "step_every_batch": True}
    algo, batches = case.make(train | {"num_epochs": 10}, learning_rate=schedule, device=device)
    algo.set_train()
    made, logs = Engine(algo), []
    for number in range(num_steps):
        if number == swap:  # a checkpoint is loaded, or the state was saved and an epoch validated
            algo.deserialize(copy.deepcopy(algo.serialize()))
            algo.set_eval()
            algo.set_train()
        info = made.step(next(batches), epoch=1 + number // 16)
        logs.append({name: x.clone() for name, x in info.items()})
    return algo, logs


NAMES = sorted(FIRST - {"residual-default"})
QUICK = {"bc-rnn-deterministic", "cql-lagrange", "td3_bc-default", "vq_bet-codes", "hbc-separate"}


each_case = pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[] if x in QUICK else pytest.mark.thorough) for x in NAMES]
)


@each_case
def test_captured_steps_have_the_bits_of_eager_ones(case_of, captures, name):  # noqa: F811
    eager, logs = trained(case_of(name), "eager", 24, swap=20)
    assert not captures
    graph, own_logs = trained(case_of(name), "graph", 24, swap=20)
    assert captures or not graph.is_capturable()
    for key, x in eager.nets.state_dict().items():
        assert torch.equal(x, graph.nets.state_dict()[key]), key
    for number, (info, own) in enumerate(zip(logs, own_logs, strict=True)):
        assert info.keys() == own.keys()
        assert all(torch.equal(x, own[key]) for key, x in info.items()), f"step {number + 1}"
    assert all(getattr(eager, x) == getattr(graph, x) for x in eager.COUNTERS)


@pytest.fixture
def parts(monkeypatch):
    """Leaves the parts of compiled steps uncompiled. Returns these parts."""
    made = []

    def kept(module):
        made.append(module)
        return module.forward

    monkeypatch.setattr(compiled, "_Part", kept)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # as in compiled steps
    for module in (optim, base):
        monkeypatch.setattr(module, "keeps_numbers", lambda config, device: True)
    return made


@each_case
def test_compiled_steps_are_made_of_the_operators_of_eager_ones(case_of, parts, name):  # noqa: F811
    eager, logs = trained(case_of(name), "eager", 24, swap=20)
    assert not parts
    own, own_logs = trained(case_of(name), "compile", 24, swap=20)
    assert parts or not own.is_capturable()
    # An optimizer's first eager step has another form, with a rounding less.
    near = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)
    near(dict(own.nets.state_dict()), dict(eager.nets.state_dict()))
    near(own_logs, logs)
    assert all(getattr(eager, x) == getattr(own, x) for x in eager.COUNTERS)


COMPILED = compiled._Part


def test_updates_of_dqn_are_compiled_where_no_target_is_due(case_of, parts, caplog):  # noqa: F811
    algo, batches = case_of("dqn-default").make({"engine": "compile"})
    algo.set_train()
    made = Engine(algo)
    algo.global_config.train.batch_size = len(next(batches)["actions"])
    for _ in range(4):
        made.step(algo.process_batch_for_training(next(batches)), epoch=1, is_raw=False)
    assert parts and "steps are eager" not in caplog.text


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.thorough)])
def compiles(request, parts, monkeypatch):
    """Compiles parts anew each time, or lets something stand for it that rounds in its own way.
    Returns whether it is the compiler."""
    monkeypatch.setattr(compiled, "_Part", COMPILED if request.param else inexact)
    if not request.param:
        yield False
        return
    from torch._inductor import config

    with config.patch(force_disable_caches=True):
        yield True


def inexact(module):
    return lambda *inputs: tree_map(lambda x: 1.001 * x, module(*inputs))


def weights_of(trainer):
    state = trainer.algo.serialize()
    return dict(state["nets"]) | {f"ema of {k}": x for k, x in state["ema"]["weights"].items()}


def test_compiled_steps_go_on_with_the_same_bits(small_config, compiles, caplog):
    config = small_config({"train": {"engine": "compile", "ema": {"enabled": True}}})
    whole, state = Trainer(config), None
    for record in whole():
        if record["type"] == "progress" and record["step"] == 7:
            state = copy.deepcopy(whole.state())
        whole.interrupts.saves = record["step"] < 9  # in the midst of an epoch
    later = Trainer(config)
    later.restore(state)
    list(later())
    eager = Trainer(small_config({"train": {"ema": {"enabled": True}}}))
    list(eager())
    weights, resumed, near = map(weights_of, (whole, later, eager))
    for key, x in weights.items():
        assert torch.equal(x, resumed[key]), key
        torch.testing.assert_close(x, near[key], rtol=1e-2, atol=1e-3)
    was_eager = all(torch.equal(x, near[key]) for key, x in weights.items())
    assert compiles or not was_eager
    assert "steps are eager" not in caplog.text


@pytest.mark.thorough  # imports the compiler
def test_a_compiler_that_is_missing_is_named_at_the_start(small_config):
    from torch._inductor import config

    config_of_run = small_config({"train": {"engine": "compile"}})
    Trainer(config_of_run)
    problem = r"train.engine: compile needs a C\+\+ compiler.*g\+\+"
    without = config.patch({"cpp.cxx": ("no-such-compiler",)})
    with without, pytest.raises(ValueError, match=problem):
        Trainer(config_of_run)
    Trainer(config_of_run)


@pytest.mark.thorough  # imports the compiler
def test_a_folder_that_cannot_be_written_to_is_named_at_the_start():
    check = "from offrl.kernels.compiled import check_compiler; check_compiler()"
    environ = os.environ | {"TORCHINDUCTOR_CACHE_DIR": "/proc/no-such-folder"}
    done = subprocess.run([sys.executable, "-c", check], env=environ, capture_output=True)
    problem = done.stderr.decode().splitlines()[-1]
    assert problem.startswith("ValueError: train.engine: compile needs a folder")
    assert "no-such-folder" in problem and "TORCHINDUCTOR_CACHE_DIR" in problem


@pytest.mark.thorough  # imports the compiler
def test_compiling_on_a_cpu_does_not_warn_of_a_gpu_that_is_missing():
    check = "from offrl.kernels.compiled import check_compiler; check_compiler()"
    script = f"{check}; import torch.utils.cpp_extension"
    environ = os.environ | {"CUDA_HOME": "/usr", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True)
    assert done.returncode == 0 and not done.stderr


def test_a_graph_needs_a_gpu_and_whole_batches(small_config):
    with pytest.raises(ValueError, match=r"train.engine: graph needs a GPU.*train.cuda"):
        Trainer(small_config({"train": {"engine": "graph", "cuda": False}}))
    config = small_config({"train": {"engine": "graph", "accumulate": 2}})
    for config.train.engine in ("graph", "compile"):
        with pytest.raises(ValueError, match=r"train.accumulate makes a step of parts"):
            chosen_engine(config, torch.device("cuda"), resumes=False)


def test_a_run_says_how_its_steps_are_made_and_an_earlier_one_stays_as_it_was(small_config):
    trainer = Trainer(small_config({"train": {"num_epochs": 2}}))
    assert trainer.config.train.engine == "eager"
    records = trainer()
    next(x for x in records if x["type"] == "epoch")
    checkpoint = copy.deepcopy(trainer.state())
    assert json.loads(checkpoint["config"])["train"]["engine"] == "eager"
    assert Experiment(trainer.config, checkpoint).config.train.engine == "eager"
    earlier = small_config({"train": {"num_epochs": 2}})  # earlier versions did not say it
    resumed = Experiment(earlier, checkpoint).config
    assert resumed.train.engine == "auto"
    assert not optim.keeps_numbers(resumed, torch.device("cuda"))
    assert optim.keeps_numbers(trainer.config, torch.device("cuda"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", NAMES)
def test_graphs_have_the_bits_of_eager_steps_on_a_gpu(case_of, name):  # noqa: F811
    eager, logs = trained(case_of(name), "eager", 200, swap=100, device="cuda")
    graph, own_logs = trained(case_of(name), "graph", 200, swap=100, device="cuda")
    for key, x in eager.nets.state_dict().items():
        assert torch.equal(x, graph.nets.state_dict()[key]), key
    assert all(torch.equal(x, own_logs[-1][key]) for key, x in logs[-1].items())
