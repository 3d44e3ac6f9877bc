"""Checks of what every algorithm must do, to be run on one of your own.

from offrl.testing import check_algo

def test_my_algo():
    check_algo("my_package.my_algo", {"algo": {"actor_layer_dims": [16, 16]}})
"""

import copy
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import h5py
import numpy as np
import torch

from offrl.acting.policy import RolloutPolicy
from offrl.algos import Algo, PolicyAlgo, algo_factory
from offrl.algos.shared.chunks import ChunkPolicy
from offrl.algos.shared.weights import to_act
from offrl.checkpoint import read_checkpoint
from offrl.config import Config, ObservationConfig, Section, config_factory
from offrl.config.algo import TDConfig
from offrl.data.datasets import make_dataset
from offrl.data.loader import BatchLoader
from offrl.seeding import seed_everything
from offrl.testing.device import updates_do_not_wait_for_the_device
from offrl.testing.graphs import updates_with_one_key_make_the_same_calls
from offrl.testing.learning import it_learns_what_is_right
from offrl.testing.state import (
    acting_to_learn_has_no_training_mode,
    preparing_and_validating_change_no_state,
)
from offrl.training.recorded import Trainer
from offrl.tree import leaves, merge

OBS_SHAPES = {"position": (3,), "speed": (2,)}
AC_DIM = 2
SMALL = {
    "experiment": {
        "epoch_every_n_steps": 5,
        "rollout": {"enabled": False},
        "save": {"every_n_epochs": 1},
    },
    "train": {"num_epochs": 3, "batch_size": 4, "cuda": False, "hdf5_normalize_obs": False},
}
IN_MEMORY = {"seq_length": 2}
STREAMED = {"hdf5_cache_mode": None, "num_data_workers": 2, "frame_stack": 2}


def check_algo(name: str, config: Mapping[str, Any] | None = None) -> None:
    """Test a registered algorithm as offrl's own are tested, on small data that is made for it.

    Among other things the loss falls, validation changes nothing, a resumed training equals an
    uninterrupted one, and padded steps do not count. Raises ``AssertionError`` that says which
    promise is broken.

    name: as in a config's ``algo_name``.
    config: overrides for its defaults; small networks keep this to seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        case = AlgoCase(name, config or {}, Path(folder))
        for check in CHECKS:
            check(case)


class AlgoCase:
    """An algorithm with ``overrides`` of its config, and small data in ``folder`` to train on."""

    def __init__(self, name: str, overrides: Mapping[str, Any], folder: Path):
        defaults = config_factory(name)
        seen = {"modalities": {"obs": {"low_dim": list(OBS_SHAPES)}}}
        small = SMALL | {"observation": _in_each_part(defaults.observation, seen)}
        self.name, self.data = name, folder / "demos.hdf5"
        places = {"data": str(self.data), "output_dir": str(folder / "runs")}
        self.overrides = merge(merge(small, overrides), {"train": places})
        self.section, own = defaults.algo, config_factory(name, self.overrides)
        self.own_section = own.algo
        write_random_demos(self.data, own.train.acts_discretely)

    def config(self, train: Mapping[str, Any] | None = None, **optim: Any) -> Config:
        """Make the config with changes of ``train`` and of every network's optimizer."""
        train, algo = dict(train or {}), dict(self.overrides.get("algo", {}))
        frames = train.get("frame_stack", 1)
        if "transformer" in algo and "context_length" in self.section["transformer"]:
            algo = merge(algo, {"transformer": {"context_length": frames}})
        if "horizon" in self.section:  # of chunks
            lengths = {"action_horizon": 2, "prediction_horizon": 4}
            algo = merge(algo, {"horizon": {"observation_horizon": frames, **lengths}})
            train.pop("seq_length", None)
        algo = merge(algo, _every_optimizer(self.own_section.to_dict(), optim))
        return config_factory(self.name, merge(self.overrides, {"algo": algo, "train": train}))

    def seeing(self, seen: Mapping[str, Any]) -> "AlgoCase":
        """Make the same case with overrides of the section ``observation``."""
        observation = _in_each_part(config_factory(self.name, self.overrides).observation, seen)
        own = merge(self.overrides, {"observation": observation})
        return AlgoCase(self.name, own, self.data.parent)

    def make(
        self,
        train: Mapping[str, Any] | None = None,
        device: str = "cpu",
        batch_size: int = 8,
        learning_rate: Mapping[str, Any] | None = None,
    ) -> tuple[Algo, Iterator[dict]]:
        """Make a new algorithm, the same each time, and batches."""
        seed_everything(0)
        config = self.config(train, learning_rate={"initial": 1e-3, **(learning_rate or {})})
        dataset = make_dataset(config, {}, get_pad_mask=True, hdf5_normalize_obs=True)
        algo = algo_factory(self.name, config, dataset.obs_shapes, dataset.ac_dim, device)
        algo.set_statistics(
            dataset.get_obs_normalization_stats(), dataset.get_action_normalization_stats()
        )
        if config.experiment.ckpt_path is not None:
            algo.start_from(read_checkpoint(config.experiment.ckpt_path))
        return algo, iter(BatchLoader(dataset, batch_size=batch_size, seed=0))

    def updated(self, train: Mapping[str, Any] | None = None) -> tuple[Algo, Any, Mapping]:
        """Make a new algorithm and let it update once. Returns it, the batch and its ``info``."""
        algo, batches = self.make(train)
        batch = algo.process_batch_for_training(next(batches))
        return algo, batch, algo.train_on_batch(batch, epoch=1)


def write_random_demos(path: Path, is_discrete: bool = False) -> None:
    """Write three short demonstrations with random content (of discrete actions, three kinds)."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for i, length in enumerate((5, 7, 6)):
            demo = file.create_group(f"data/demo_{i}")
            for key, shape in OBS_SHAPES.items():
                demo[f"obs/{key}"] = rng.standard_normal((length, *shape))
            actions = np.tanh(rng.standard_normal((length, AC_DIM)))
            demo["actions"] = np.digitize(actions[:, 0], [-0.4, 0.4]) if is_discrete else actions
            demo["rewards"] = rng.random(length)
            demo["dones"] = np.eye(length)[-1]


# -- the checks -----------------------------------------------------------------------------------


def loss_falls_on_one_batch(case: AlgoCase) -> None:
    algo, batch, info = case.updated()
    assert "loss" in info, f"update returned no 'loss', but {', '.join(info) or 'nothing'}"
    losses = [float(algo.train_on_batch(batch, epoch=1)["loss"])]
    wanted = losses[0] - 0.1 * abs(losses[0])
    while len(losses) < 100 and not max(losses[-5:]) < wanted:
        losses.append(float(algo.train_on_batch(batch, epoch=1)["loss"]))
    assert all(np.isfinite(losses)), "the loss becomes NaN or infinite"
    assert losses[-1] < wanted, f"from {losses[0]} to {losses[-1]}"


def frozen_weights_stay(case: AlgoCase) -> None:
    algo, batch, _ = case.updated()
    nets = [algo.nets.get_submodule(name) for name in algo.optimizers]
    parameters = [list(net.parameters()) for net in nets]
    frozen = [some[0].requires_grad_(False) for some in parameters if len(some) > 1]
    before = [weight.clone() for weight in frozen]
    try:
        for _ in range(2):
            algo.train_on_batch(batch, epoch=1)
    except RuntimeError as error:
        raise AssertionError(
            f"update fails where weights are frozen (requires_grad_(False)): {error}; leave the "
            "gradients of weights to self.optimize"
        ) from error
    assert all(torch.equal(a, b) for a, b in zip(before, frozen, strict=True))


def info_is_detached_numbers(case: AlgoCase) -> None:
    for name, value in case.updated()[2].items():
        assert value.dim() == 0, f"{name} has shape {list(value.shape)}; one number is needed"
        assert not value.requires_grad, f"{name} holds on to the graph; detach it"


def serialize_and_deserialize_are_the_identity(case: AlgoCase) -> None:
    algo, batch, _ = case.updated()
    state = copy.deepcopy(algo.serialize())
    other, _ = case.make()
    other.deserialize(state)
    for a in (algo, other):
        seed_everything(1)
        a.train_on_batch(batch, epoch=1)
    assert _same(_weights(algo), _weights(other)), "a state that was put back trains differently"
    bare, _ = case.make()
    bare.deserialize(state["nets"])
    assert _same(bare.nets.state_dict(), state["nets"])


def weights_that_do_not_fit_are_refused_by_name(case: AlgoCase) -> None:
    algo, _ = case.make()
    state = dict(algo.nets.state_dict())
    first = next(key for key, weight in state.items() if weight.ndim > 1)
    broken = {**state, first: state[first][:1, ..., :1]}
    assert f"of another shape: {first}" in _refusal(algo, broken)
    del broken[first]
    assert f"missing: {first}" in _refusal(algo, broken | {"stranger": torch.zeros(1)})


def averages_are_for_acting_and_weights_for_training(case: AlgoCase) -> None:
    """Check ``train.ema``, in checkpoints as well."""
    averaging = {"ema": {"enabled": True, "power": None, "max_decay": 0.5}}
    algo, batch, _ = case.updated(averaging)
    for _ in range(2):
        algo.train_on_batch(batch, epoch=1)
    state, trained = copy.deepcopy(algo.serialize()), _weights(algo)
    algo.set_eval()
    shown = _weights(algo)
    assert not _same(shown, trained), (
        "set_eval() shows no averages (train.ema), which follow the steps of self.optimize; make "
        "every step by it"
    )
    assert _same(_tensors(algo.serialize()), _tensors(state)), "serialize() depends on the mode"
    other, _ = case.make(averaging)
    other.deserialize(state)
    for each in (algo, other):
        each.set_eval()
        assert _same(_weights(each), shown), "averages do not come back"
        each.set_train()
        assert _same(_weights(each), trained), "set_train() brings back other weights"
    acting, _ = case.make(averaging)
    acting.deserialize(to_act(state))
    acting.set_eval()
    assert _same(_weights(acting), shown), "what is loaded to act has other weights"
    assert _same(_tensors(acting.serialize()), _tensors(state)), "no way back from acting alone"
    assert _same(_weights(acting), shown), "serialize() changes how a policy acts"


def acting_in_a_batch_equals_one_by_one(
    case: AlgoCase, frame_stack: int = 1, device: str = "cpu"
) -> None:
    """Compare actions to 1e-6, in batches and alone; to 1e-5 on a GPU, where a recurrent network's
    sums depend on the size of the batch, and for chunks, as denoising adds rounding errors up."""
    algo, _ = case.make({"frame_stack": frame_stack}, device)
    atol = 1e-5 if device != "cpu" or isinstance(algo, ChunkPolicy) else 1e-6
    if not isinstance(algo, PolicyAlgo):
        return
    generator = torch.Generator().manual_seed(0)
    shapes = OBS_SHAPES.items()
    episodes = [
        [{k: torch.randn(s, generator=generator).numpy() for k, s in shapes} for _ in range(5)]
        for _ in range(5)
    ]
    goals = {env: episode.pop() for env, episode in enumerate(episodes)}
    alone: list[list[Any]] = []
    for seed, episode in enumerate(episodes):
        policy = RolloutPolicy(algo)
        policy.start_episode(seed=seed)
        alone.append([policy(obs, goals[seed], float(step)) for step, obs in enumerate(episode)])
    together = RolloutPolicy(algo, batch_size=3)
    if together.num_environments is not None:  # it serves one environment only
        return
    for seed in range(5):
        together.start_episode(env=seed, seed=seed)
    for step in range(4):
        obs = {env: episode[step] for env, episode in enumerate(episodes)}
        actions: dict[int, Any] = together.act(obs, goals, dict.fromkeys(obs, float(step)))
        for env, action in actions.items():
            assert action.shape == (() if algo.is_discrete else (AC_DIM,)), (
                f"act gives an environment an action of shape {list(action.shape)}; return [B, A]"
            )
            np.testing.assert_allclose(action, alone[env][step], atol=atol, rtol=0)


def a_copy_for_another_process_acts_the_same(case: AlgoCase) -> None:
    """Compare actions to the bit, as needed for evaluations on Ray (``distributed.address``)."""
    algo, _, _ = case.updated()
    if not isinstance(algo, PolicyAlgo):
        return
    policy = RolloutPolicy(algo, batch_size=4)
    actions: list[Any] = []
    for each in (policy, pickle.loads(cloudpickle.dumps(policy))):
        rng = np.random.default_rng(0)
        each.start_episode(seed=1)
        goal = {key: rng.normal(size=shape) for key, shape in OBS_SHAPES.items()}
        for step in range(3):
            obs = {key: rng.normal(size=shape) for key, shape in OBS_SHAPES.items()}
            actions.append(each(obs, goal, float(step)))
    np.testing.assert_array_equal(actions[:3], actions[3:])


def resumed_equals_uninterrupted(case: AlgoCase, train: Mapping[str, Any] = IN_MEMORY) -> None:
    """Compare weights, optimizers, schedules and random state to the bit."""
    schedule = {"scheduler_type": "cosine", "step_every_batch": True}
    config = case.config(train, learning_rate=schedule)
    whole = Trainer(config)
    state = {}
    for record in whole():
        if record["type"] == "epoch" and record["epoch"] == 1:
            state = copy.deepcopy(whole.state())
    end = whole.state()
    later = Trainer(config)
    later.restore(state)
    list(later())
    assert later.step == whole.step == 15
    assert torch.equal(end["rng"]["torch"], later.state()["rng"]["torch"])
    assert _same(_weights(whole.algo), _weights(later.algo))
    assert _same(*(_tensors(t.algo.serialize()) for t in (whole, later)))


def padded_steps_never_enter_the_loss(case: AlgoCase) -> None:
    several = {"n_step": 3} if isinstance(case.config().algo, TDConfig) else {}
    wide = AlgoCase(case.name, merge(case.overrides, {"algo": several}), case.data.parent)
    algo, batches = wide.make({"seq_length": 4})
    batch = next(batches)
    padded = ~batch["pad_mask"].squeeze(-1)
    assert padded.any()
    spoilt = copy.deepcopy(batch)
    spoilt["actions"][padded] = 0.9
    spoilt["rewards"][padded] = 50.0
    losses = []
    for b in (batch, spoilt):
        seed_everything(2)
        ready = algo.process_batch_for_training(b)
        losses.append(algo.train_on_batch(ready, epoch=1, validate=True)["loss"])
    assert torch.equal(*losses), (
        "steps outside the demonstration count (pad_mask), in this check's windows of 4 steps"
    )


CHECKS: tuple[Callable[[AlgoCase], None], ...] = (
    loss_falls_on_one_batch,
    it_learns_what_is_right,
    preparing_and_validating_change_no_state,
    acting_to_learn_has_no_training_mode,
    frozen_weights_stay,
    info_is_detached_numbers,
    updates_do_not_wait_for_the_device,
    updates_with_one_key_make_the_same_calls,
    serialize_and_deserialize_are_the_identity,
    weights_that_do_not_fit_are_refused_by_name,
    averages_are_for_acting_and_weights_for_training,
    acting_in_a_batch_equals_one_by_one,
    partial(acting_in_a_batch_equals_one_by_one, frame_stack=3),
    a_copy_for_another_process_acts_the_same,
    padded_steps_never_enter_the_loss,
    resumed_equals_uninterrupted,
    partial(resumed_equals_uninterrupted, train=STREAMED),
)
if torch.cuda.is_available():
    CHECKS += (
        partial(resumed_equals_uninterrupted, train={"cuda": True}),
        partial(acting_in_a_batch_equals_one_by_one, device="cuda"),
    )


def _in_each_part(section: Section, overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the overrides of a section ``observation`` for each part of an algorithm."""
    if isinstance(section, ObservationConfig):
        return overrides
    return {key: _in_each_part(section[key], overrides) for key in section.keys()}


def _every_optimizer(section: Mapping[str, Any], optim: Mapping[str, Any]) -> dict[str, Any]:
    """Make the overrides of a section ``algo``, and of those of an algorithm's parts in it."""
    return {
        key: dict.fromkeys(part, optim) if key == "optim_params" else _every_optimizer(part, optim)
        for key, part in section.items()
        if isinstance(part, Mapping)
    }


def _weights(algo: Algo) -> dict[str, torch.Tensor]:
    return copy.deepcopy(algo.nets.state_dict())


def _same(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def _refusal(algo: Algo, weights: Mapping[str, torch.Tensor]) -> str:
    try:
        algo.deserialize(weights)
    except ValueError as error:
        return str(error)
    return "nothing was refused"


def _tensors(tree: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {key: value for key, value in leaves(tree).items() if isinstance(value, torch.Tensor)}
