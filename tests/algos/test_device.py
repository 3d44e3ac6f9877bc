"""Updates do not wait for the device, also with images, goals and batches from acting, and those
with the same ``graph_key`` make the same calls.

The conformance suite holds each algorithm to this with vectors from recorded data.
"""

import pytest
import torch
from gymnasium.spaces import Box
from own_steps import RNN, Noise, Rounds
from own_steps import make as make_on_cpu

from offrl import algo_factory, config_factory, register_algo
from offrl.algos.bc import BC, BCConfig
from offrl.seeding import seed_everything
from offrl.testing import AlgoCase
from offrl.testing.device import (
    DEVICE,
    update_under_watch,
    updates_do_not_wait_for_the_device,
    watched,
    without_numbers,
)
from offrl.testing.graphs import (
    differences,
    recorded_updates,
    updates_with_one_key_make_the_same_calls,
)
from offrl.tree import map_leaves, merge

SIZE, STEPS = 6, 2
VECTORS = {"modalities": {"obs": {"low_dim": ["x"]}}}
IMAGES = {"modalities": {"obs": {"low_dim": ["x"], "rgb": ["camera"]}, "goal": {"low_dim": ["x"]}}}
RANDOM = {
    "obs_randomizer_class": [
        "ColorRandomizer",
        "ShiftRandomizer",
        "CropRandomizer",
        "GaussianNoiseRandomizer",
    ],
    "obs_randomizer_kwargs": [{}, {"pad": 3}, {"crop_height": 36, "crop_width": 36}, {}],
}
SHALLOW = {
    "core_kwargs": {"backbone_class": "ShallowConv", "pool_kwargs": {"num_kp": 4}},
}
AVERAGED = {"ema": {"enabled": True}, "max_grad_norm": 1.0}
SCHEDULED = {
    "policy": {"learning_rate": {"scheduler_type": "cosine", "step_every_batch": True}},
}
CASES = {
    "ResNet and goals": ("bc", {"observation": IMAGES | {"encoder": {"rgb": RANDOM}}}),
    "images of critics": ("td3", {"observation": IMAGES | {"encoder": {"rgb": SHALLOW}}}),
    "averages and schedules": ("bc", {"train": AVERAGED, "algo": {"optim_params": SCHEDULED}}),
    "RMSprop": ("bc", {"algo": {"optim_params": {"policy": {"optimizer_type": "rmsprop"}}}}),
    "several steps": ("td3", {"algo": {"n_step": STEPS}}),
    "demonstrations among them": ("sqil", {}),
    "discrete actions": ("discrete_sqil", {}),
    "forbidden actions": ("discrete_sac", {}),
}


def make(name, overrides, device=DEVICE):
    """An algorithm, by default on the device without numbers."""
    own = {"train": {"cuda": False}, "observation": VECTORS, "experiment": {}}
    own["experiment"]["epoch_every_n_steps"] = 10
    config = config_factory(name, merge(own, overrides))
    seed_everything(0)
    with without_numbers():
        made = algo_factory(name, config, {"x": (3,), "camera": (3, 40, 40)}, 3, device)
    made.set_train()
    return made


def batch_for(algo):
    """A batch as recorded data or a replay gives it."""
    window = algo.window(algo.algo_config)
    num_frames = algo.num_frames
    num_steps = window.get("seq_length", 1) + num_frames - 1

    def look(*size):
        images = torch.zeros(*size, 40, 40, 3, dtype=torch.uint8)
        return {"x": torch.zeros(*size, 3), "camera": images}

    batch = {
        "obs": look(SIZE, num_steps),
        "next_obs": look(SIZE, num_steps),
        "goal_obs": look(SIZE),
        "actions": torch.zeros(SIZE, num_steps, 3),
        "rewards": torch.zeros(SIZE, num_steps),
        "dones": torch.zeros(SIZE, num_steps),
        "pad_mask": torch.ones(SIZE, num_steps, 1),
        "weights": torch.ones(SIZE),
        "is_demo": torch.ones(SIZE, 1),
    }
    if algo.is_discrete:
        mask = torch.ones(SIZE, num_steps, 3, dtype=torch.bool)
        for key in ("obs", "next_obs"):
            batch[key]["action_mask"] = mask
    return map_leaves(lambda x: x.to(algo.device), batch)


@pytest.mark.parametrize("case", CASES)
def test_updates_do_not_wait(case):
    algo = make(*CASES[case])
    batch = batch_for(algo)
    with watched():
        batch = algo.process_batch_for_training(batch)
    update_under_watch(algo, batch)
    assert algo.is_capturable() == (case != "ResNet and goals"), "but for the colours' order"


def test_learning_rates_and_the_decay_of_averages_are_all_that_changes():
    """Whoever captures updates as graphs has to tell them these numbers."""
    algo = make(*CASES["averages and schedules"], "cpu")
    first, *_, last = (calls for *_, calls in recorded_updates(algo, batch_for(algo), [1] * 5))
    changed = [(one, other) for one, other in differences(first, last)]
    assert {one[0] for one, _ in changed} == {"aten::_fused_adam_", "aten::_foreach_lerp_.Scalar"}
    for one, other in changed:
        assert one[0] == other[0]
        assert sum(a != b for a, b in zip(one[1], other[1], strict=True)) == 1


PHASES = {
    "plas": {"warmup_steps": 5, "action_sampler": {"vae": {"encoder_layer_dims": [8]}}},
    "cql": {"actor": {"bc_start_steps": 5}},
    "rlpd": {"actor": {"bc_start_steps": 5, "update_freq": 2}},
    "bcq": {"action_sampler": {"freeze_encoder_epoch": 2}},
}


@pytest.mark.parametrize("name", PHASES)
def test_updates_of_another_phase_have_another_key(name, tmp_path):
    updates_with_one_key_make_the_same_calls(AlgoCase(name, {"algo": PHASES[name]}, tmp_path))


# -- rounds of own steps, which are processed on the CPU ------------------------------------------

MEMORY = {"memory": RNN["memory"]}
# Those that wait, and why nothing can be done about it.
WAITING = {
    "reinforce": ("reinforce", {}, "advantages are summed up backwards, step by step, in NumPy"),
    "a2c": ("a2c", {}, "as REINFORCE"),
    "impala": ("impala", {}, "targets are summed up backwards, step by step, in NumPy"),
    "memory": ("ppo", MEMORY, "a memory begins anew where episodes do, other ones in each round"),
    "early stop": ("ppo", {"target_kl": 0.01}, "the host decides whether passes are left out"),
}


def batch_of_a_round(name, section):
    """An algorithm on the CPU, and a batch of a round of its steps."""
    ours = make_on_cpu(name, Box(-1, 1, (2,)), section)
    data = Rounds(ours, lambda: Noise(Box(-1, 1, (2,))), num_envs=2).collect(4)
    num = len(data["rewards"].flatten())
    data["demos"] = {"obs": {"x": torch.zeros(num, 1, 4)}, "actions": torch.zeros(num, 1, 2)}
    return ours, next(iter(ours.minibatches(ours.process_batch_for_training(data))))


def update_there(ours, batch):
    """The same updates on the device without numbers."""
    with without_numbers():
        algo = algo_factory(
            ours.global_config.algo_name, ours.global_config, {"x": (4,)}, 2, DEVICE
        )
    algo.set_train()
    update_under_watch(algo, map_leaves(lambda x: x.to(DEVICE), batch))


@pytest.mark.parametrize("name", ["ppo", "gail"])
def test_updates_of_a_round_do_not_wait(name, monkeypatch):
    ours, batch = batch_of_a_round(name, {})
    update_there(ours, batch)
    assert ours.is_capturable()
    monkeypatch.setattr(ours, "process_batch_for_training", dict)  # once a round
    first, *others = recorded_updates(ours, batch, [1] * 5)
    assert others and not any([*differences(first[2], calls)] for *_, calls in others)


@pytest.mark.parametrize("case", WAITING)
def test_some_updates_of_a_round_wait_and_say_so(case):
    name, section, _ = WAITING[case]
    ours, batch = batch_of_a_round(name, section)
    with pytest.raises(AssertionError, match="the training waits"):
        update_there(ours, batch)
    assert not ours.is_capturable()


# -- users' algorithms ----------------------------------------------------------------------------


class SlowConfig(BCConfig):
    ALGO_NAME = "slow"


def item(loss, batch):
    return loss.item()


def number(loss, batch):
    return float(loss) > 0


def branch(loss, batch):
    return 1 if loss > 0 else 2


def printed(loss, batch):
    return f"{loss:.3f}"


def array(loss, batch):
    return loss.numpy()


def as_list(loss, batch):
    return batch["actions"].tolist()


def on_the_cpu(loss, batch):
    return loss.cpu()


def masked(loss, batch):
    return batch["actions"][batch["actions"] > 0]


def places(loss, batch):
    return (batch["actions"] > 0).nonzero()


def from_the_cpu(loss, batch):
    return batch["actions"] * torch.arange(2)


def new_number(loss, batch):
    return loss * torch.tensor(0.5, device=loss.device)


HABITS = {
    item: "asks the device for a number,",
    number: "asks the device for a number,",
    branch: "asks the device for a number,",
    printed: "copies to the CPU",
    array: "copies to the CPU",
    as_list: "copies to the CPU",
    on_the_cpu: "copies to the CPU",
    masked: "asks the device for a number of elements",
    places: "asks the device for a number of elements",
    from_the_cpu: "uses numbers on the CPU",
    new_number: "uses numbers on the CPU",
}


class Slow(BC):
    habit = staticmethod(lambda loss, batch: 0.5)

    def update(self, batch):
        info = super().update(batch)
        found = self.habit(info["loss"].detach(), batch)
        return info | {"found": found}


def test_what_waits_is_named_by_its_line(tmp_path, monkeypatch):
    register_algo(SlowConfig)(Slow)
    case = AlgoCase("slow", {"algo": {"actor_layer_dims": [8]}}, tmp_path)
    updates_do_not_wait_for_the_device(case)
    monkeypatch.setattr(Slow, "habit", staticmethod(lambda loss, batch: torch.zeros(())))
    with pytest.raises(AssertionError, match="update returned 'found' on the CPU"):
        updates_do_not_wait_for_the_device(case)
    for habit, words in HABITS.items():
        monkeypatch.setattr(Slow, "habit", staticmethod(habit))
        with pytest.raises(AssertionError, match=words) as raised:
            updates_do_not_wait_for_the_device(case)
        line = habit.__code__.co_firstlineno + 1
        assert str(raised.value).startswith(f"{__file__.rpartition('/')[2]}, line {line} (return ")
    monkeypatch.setattr(Slow, "is_capturable", lambda self: False)
    updates_do_not_wait_for_the_device(case)


class Branching(Slow):
    count = 0

    def update(self, batch):
        self.count += 1
        loss = super().update(batch)["loss"]
        return {"loss": loss, "number": self.change(loss.detach())}


CHANGES = {
    "now and then": lambda algo, x: x.exp() if algo.count % 3 == 0 else x,
    "a number": lambda algo, x: x * 0.9**algo.count,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_graph_key_lacks_is_found(tmp_path, monkeypatch, change):
    register_algo(SlowConfig)(Branching)
    monkeypatch.setattr(Branching, "change", CHANGES[change], raising=False)
    case = AlgoCase("slow", {"algo": {"actor_layer_dims": [8]}}, tmp_path)
    with pytest.raises(AssertionError, match=r"same graph_key\(\), but .*aten::"):
        updates_with_one_key_make_the_same_calls(case)
    key = Slow.graph_key
    own = {"now and then": lambda self: (self.count + 1) % 3, "a number": lambda self: self.count}
    monkeypatch.setattr(Branching, "graph_key", lambda self: (*key(self), own[change](self)))
    updates_with_one_key_make_the_same_calls(case)
