"""Algorithms as users write them: registered in either way, old rules and new, with mistakes."""

import sys
import threading

import numpy as np
import pytest
import torch
from conftest import ROOT, write_demos

from offrl import (
    RolloutPolicy,
    Trainer,
    algo_factory,
    config_factory,
    models,
    register_algo,
    register_algo_factory_func,
)
from offrl.algos import ChunkConfig, ChunkPolicy, HorizonConfig
from offrl.algos.base import PolicyAlgo, Seen, masked_mean
from offrl.config import AlgoConfig, OptimConfig, Section
from offrl.registry import ALGO_CONFIGS
from offrl.specs import ObsSpec
from offrl.testing import (
    CHECKS,
    AlgoCase,
    a_copy_for_another_process_acts_the_same,
    averages_are_for_acting_and_weights_for_training,
    check_algo,
)
from offrl.testing.learning import it_learns_what_is_right


class MixtureConfig(Section):
    enabled: bool = False


class OwnConfig(AlgoConfig):
    ALGO_NAME = "own"

    optim_params: dict[str, OptimConfig] = {"policy": OptimConfig()}
    actor_layer_dims: list[int] = [16]
    gmm: MixtureConfig = MixtureConfig()


class Own(PolicyAlgo):
    def _create_networks(self):
        self.nets["policy"] = models.mlp_actor(self.obs_spec, self.ac_dim, [16], self.head)

    head = "deterministic"

    def update(self, batch):
        pi, _ = self.nets["policy"](batch["obs"])
        loss = masked_mean((pi.mode() - batch["actions"]).square().mean(-1), batch["pad_mask"])
        return {"loss": loss, "grad_norm": self.optimize("policy", loss)}

    def act(self, obs, goal=None, state=None, generators=None):
        return self.nets["policy"](self.prepare_obs(obs))[0].mode()[:, -1], state


class OwnMixture(Own):
    """As algorithms were written before there was ``update``."""

    head = "gmm"

    def process_batch_for_training(self, batch):
        return {
            "obs": self.prepare_obs(batch["obs"]),
            "actions": self.to_device(batch["actions"]),
            "mask": self.to_device(batch.get("pad_mask")),
        }

    def train_on_batch(self, batch, epoch, validate=False):
        with torch.set_grad_enabled(not validate):
            nll = -self.nets["policy"](batch["obs"])[0].log_prob(batch["actions"])
            loss = masked_mean(nll, batch["mask"])
        if not validate:
            self.optimize("policy", loss)
        return {"loss": loss.detach()}


class OwnScale(Own):
    """Learns a number with an optimizer of its own, and holds what cannot be copied."""

    def _create_networks(self):
        super()._create_networks()
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.scales = torch.optim.SGD([self.scale], lr=0.1, momentum=0.9)
        self.lock = threading.Lock()

    def update(self, batch):
        if not self.validates:
            self.scale.grad = torch.ones(1)
            self.scales.step()
        return super().update(batch)

    def serialize(self):
        own = {"scale": self.scale.detach(), "scales": self.scales.state_dict()}
        return super().serialize() | own

    def deserialize(self, state):
        super().deserialize(state)
        if "scale" in state:
            self.scale.data.copy_(state["scale"])
            self.scales.load_state_dict(state["scales"])

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "lock"}


@pytest.fixture(autouse=True)
def own(registries):
    ALGO_CONFIGS.register("own")(OwnConfig)


def by_function():
    @register_algo_factory_func("own")
    def algo_config_to_class(algo_config):
        return (OwnMixture if algo_config.gmm.enabled else Own), {}


def test_an_algorithm_is_one_file_anywhere(tmp_path, monkeypatch, small_config):
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package/__init__.py").write_text("")
    (tmp_path / "my_package/halved_bc.py").write_text(
        "from typing import ClassVar\n"
        "from offrl.algos.base import register_algo_factory_func\n"
        "from offrl.algos.bc import BC, BCConfig\n"
        "class HalvedConfig(BCConfig):\n"
        "    ALGO_NAME: ClassVar[str] = 'halved_bc'\n"
        "@register_algo_factory_func('halved_bc')\n"
        "def algo_config_to_class(algo_config):\n"
        "    return HalvedBC, {}\n"
        "class HalvedBC(BC):\n"
        "    def _weights(self, terms):\n"
        "        return {t: 0.5 * w for t, w in super()._weights(terms).items()}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = small_config({"algo": {"actor_layer_dims": [8]}}, "my_package.halved_bc")
    logs = next(r["logs"] for r in Trainer(config)() if r["type"] == "train")
    assert logs["Loss"] == pytest.approx(0.5 * logs["L2_Loss"])


@pytest.mark.parametrize("enabled", [False, True])
def test_a_function_chooses_the_class_by_the_config(small_config, enabled):
    by_function()
    optim = {"policy": {"learning_rate": {"initial": 1e-2}}}
    algo = {"gmm": {"enabled": enabled}, "optim_params": optim}
    config = small_config({"algo": algo}, "own")
    assert config.algo.gmm.enabled == enabled
    trainer = Trainer(config)
    assert type(trainer.algo) is (OwnMixture if enabled else Own)
    losses = [r["logs"]["Loss"] for r in trainer() if r["type"] == "train"]
    assert losses[-1] < losses[0]


def test_a_policy_that_only_acts_keeps_an_optimizer_of_the_users(tmp_path):
    register_algo(OwnConfig)(OwnScale)
    case = AlgoCase("own", {}, tmp_path)
    averages_are_for_acting_and_weights_for_training(case)
    a_copy_for_another_process_acts_the_same(case)


@pytest.mark.slow
@pytest.mark.parametrize("enabled", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_both_do_what_every_algorithm_must(enabled):
    by_function()
    check_algo("own", {"algo": {"gmm": {"enabled": enabled}}})


class FramesConfig(OwnConfig):
    ALGO_NAME = "of_frames"


class OfFrames(Own):
    @classmethod
    def window(cls, algo_config):
        return {"frame_stack": 3}


def test_who_is_right_with_frames_of_its_own_is_not_taken_for_wrong(tmp_path):
    register_algo(FramesConfig)(OfFrames)
    it_learns_what_is_right(AlgoCase("of_frames", {}, tmp_path))


def test_a_decorator_registers_class_and_config(small_config):
    register_algo(OwnConfig)(Own)
    assert type(Trainer(small_config({}, "own")).algo) is Own


@pytest.mark.parametrize(
    ("example", "dims"), [("new_algorithm", "actor_layer_dims"), ("new_chunk_policy", "layer_dims")]
)
def test_the_examples_do_what_every_algorithm_must(monkeypatch, example, dims):
    monkeypatch.syspath_prepend(ROOT)
    check_algo(f"examples.{example}", {"algo": {dims: [16, 16]}})
    assert f"examples.{example}" in sys.modules


def test_an_algorithm_that_was_written_earlier_passes_too():
    """With ``act(obs, goal, state, generators)`` and a typed ``optim_params``."""
    check_algo("written_earlier.new_algorithm", {"algo": {"actor_layer_dims": [16, 16]}})


class OwnEarlier(Own):
    """Explores as algorithms did when what is seen were several arguments."""

    def act(self, obs, *others, **named):
        return super().act(obs, *others, **named)

    def explore(self, obs, goal=None, state=None, generators=None, num_steps=0):
        action, state = super().explore(obs, goal, state, generators, num_steps)
        return action + num_steps, state


@pytest.mark.parametrize("kind", [Own, OwnEarlier])
def test_what_is_seen_is_one_argument_or_several(kind):
    obs = {"position": torch.zeros(2, 1, 3)}
    config = config_factory("own", {"observation": {"modalities": {"obs": {"low_dim": [*obs]}}}})
    spec = ObsSpec.from_config(config.observation, {"position": (3,)})
    algo = kind(config=config, obs_spec=spec, ac_dim=2, device="cpu")
    action, state = algo.act(Seen(obs, state=1))
    for again in (algo.act(obs, None, 1), algo.act(obs, state=1), algo.act(obs=obs, state=1)):
        assert torch.equal(again[0], action) and again[1] == state == 1
    ahead = 5 if kind is OwnEarlier else 0
    assert torch.equal(algo.explore(Seen(obs, num_steps=5))[0], action + ahead)
    assert torch.equal(algo.explore(obs, None, None, None, 5)[0], action + ahead)
    assert torch.equal(algo.get_action({"position": obs["position"][:, 0]}), action)


def test_what_an_algorithm_reads_decides_what_is_loaded(small_config):
    class Reader(Own):
        NEEDS = ("obs", "next_obs", "actions", "returns")

        @classmethod
        def window(cls, algo_config):
            return {"seq_length": 3}

    register_algo(OwnConfig)(Reader)
    train = config_factory("own").train
    assert train.hdf5_load_next_obs and train.seq_length == 3
    assert train.dataset_keys == ["actions", "rewards", "dones", "returns"]
    said = {"hdf5_load_next_obs": False, "seq_length": 2, "dataset_keys": ["actions"]}
    assert config_factory("own", {"train": said}).train.to_dict().items() >= said.items()
    batch = Trainer(small_config({}, "own")).algo.process_batch_for_training
    with pytest.raises(ValueError, match="train.dataset_keys: .*'returns'"):
        batch(
            {"obs": {k: torch.zeros(1, 3, n) for k, n in (("position", 3), ("speed", 2))}}
            | {"next_obs": {k: torch.zeros(1, 3, n) for k, n in (("position", 3), ("speed", 2))}}
            | {"actions": torch.zeros(1, 3, 2)}
        )


def broken(info):
    """An algorithm whose third update returns what ``info`` makes of the loss."""

    class Broken(Own):
        num = 0

        def update(self, batch):
            numbers = super().update(batch)
            self.num += 1
            return info(numbers["loss"]) if self.num == 3 else numbers

    return Broken


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (lambda loss: {"l2": loss}, "own, step 3 .epoch 1.: .*'loss'.*l2"),
        (lambda loss: None, "own, step 3 .epoch 1.: .*'loss'"),
        (
            lambda loss: {"loss": loss, "kl": torch.zeros((), device="meta")},
            "own, step 3 .epoch 1.: .*'kl'.*meta.*cpu",
        ),
        (
            lambda loss: {"loss": loss, "kl": torch.zeros(4)},
            r"own, step 3 .epoch 1.: .*'kl'.*\[4\]",
        ),
        (
            lambda loss: {"loss": loss.expand(3)},
            r"own, step 3 .epoch 1.: .*loss.*\[3\]",
        ),
        (
            lambda loss: {"loss": loss * float("nan")},
            "own: .*loss.*NaN.*step 3 .epoch 1.",
        ),
    ],
)
def test_what_an_update_returns_is_checked(small_config, info, words):
    register_algo(OwnConfig)(broken(info))
    with pytest.raises(ValueError, match=words):
        list(Trainer(small_config({}, "own"))())


@pytest.mark.parametrize("name", ["_create_networks", "update"])
def test_a_method_that_is_missing_is_named(small_config, name):
    register_algo(OwnConfig)(type("Bare", (Own,), {name: getattr(PolicyAlgo, name)}))
    with pytest.raises(ValueError, match=f"Bare: define {name}"):
        list(Trainer(small_config({}, "own"))())


def test_a_part_of_a_batch_that_is_missing_is_named(small_config):
    class Reader(Own):
        def update(self, batch):
            return super().update(batch | {"obs": batch["next_obs"]})

    register_algo(OwnConfig)(Reader)
    with pytest.raises(ValueError, match="'next_obs'.*NEEDS"):
        list(Trainer(small_config({}, "own"))())


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ({}, "Chunks: define sample"),
        ({"sample": lambda *_: torch.zeros(1, 2)}, r"Chunks: .*\[1, 2\].*\[1, 4, 2\]"),
    ],
)
def test_chunks_that_are_none_are_refused(small_config, methods, words):
    class OwnChunks(ChunkConfig):
        ALGO_NAME = "own_chunks"

        horizon: HorizonConfig = HorizonConfig(
            observation_horizon=1, action_horizon=2, prediction_horizon=4
        )

    methods = {"_create_networks": lambda self: None, **methods}
    register_algo(OwnChunks)(type("Chunks", (ChunkPolicy,), methods))
    algo = Trainer(small_config({}, "own_chunks")).algo
    with pytest.raises(ValueError, match=words):
        algo.predict({"position": torch.zeros(1, 3), "speed": torch.zeros(1, 2)})


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("climbs", "from .* to"),
        ("climbs_and_says_so", "sign of a loss"),
        ("trains_while_validating", r"train_on_batch\(validate=True\)"),
        ("sees_padding", "pad_mask"),
        ("forgets", "trains differently"),
        ("returns_nothing", "'loss'"),
    ],
)
def test_the_checks_find_what_is_wrong(mistake, words):
    class Wrong(Own):
        def update(self, batch):
            if mistake == "returns_nothing":
                return None
            if mistake == "sees_padding":
                batch = batch | {"pad_mask": None}
            if mistake == "trains_while_validating":
                self.validates = False
                with torch.enable_grad():
                    return super().update(batch)
            info = super().update(batch)
            return info | {"loss": -info["loss"]} if mistake == "climbs_and_says_so" else info

        def optimize(self, name, loss):
            return super().optimize(name, -loss if mistake.startswith("climbs") else loss)

        def serialize(self):
            state = super().serialize()
            return state | {"optimizers": {}} if mistake == "forgets" else state

    register_algo(OwnConfig)(Wrong)
    with pytest.raises(AssertionError, match=words):
        check_algo("own")


def test_every_check_has_a_name():
    assert len(CHECKS) == 17


def test_a_demonstration_of_one_step_is_no_obstacle(tmp_path, small_config):
    path = write_demos(tmp_path / "short.hdf5", lengths=(1, 4, 6))
    register_algo(OwnConfig)(Own)
    trainer = Trainer(small_config({"train": {"data": str(path)}}, "own"))
    assert len(trainer.dataset) == 11
    assert [r["type"] for r in trainer()] == ["train", "epoch"] * 3


def test_a_plain_number_is_one_for_the_log(small_config):
    class Plain(Own):
        def update(self, batch):
            return super().update(batch) | {"beta": 0.5}

    register_algo(OwnConfig)(Plain)
    trainer = Trainer(small_config({}, "own"))
    batch = trainer.algo.process_batch_for_training(next(iter(trainer.loader)))
    assert trainer.algo.train_on_batch(batch, epoch=1)["beta"] == torch.tensor(0.5)
    assert [r["type"] for r in trainer()] == ["train", "epoch"] * 3


def test_a_policy_that_cannot_act_says_so():
    class Silent(Own):
        act = None

    register_algo(OwnConfig)(Silent)
    config = config_factory("own", {"observation": {"modalities": {"obs": {"low_dim": ["x"]}}}})
    algo = algo_factory("own", config, {"x": (2,)}, ac_dim=2, device="cpu")
    policy = RolloutPolicy(algo)
    policy.start_episode()
    with pytest.raises(ValueError, match="Silent"):
        policy({"x": np.zeros(2)})
