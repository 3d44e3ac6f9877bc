"""Targets, losses and exploration of the algorithms of online RL, against plain arithmetic."""

import copy
import math

import pytest
import torch

from offrl import algo_factory, config_factory
from offrl.algos.dqn import DistributionalDQN
from offrl.algos.shared.masks import masked
from offrl.seeding import seed_everything
from offrl.tree import map_leaves

SHAPES, NUM_ACTIONS = {"place": (3,)}, 4
REAL = ("td3", "ddpg", "sac")
C51 = {"critic": {"value_bounds": [-1.0, 3.0], "distributional": {"enabled": True, "num_atoms": 5}}}
DQNS = {
    "dqn": {},
    "several": {"critic": {"ensemble": {"n": 3}}},
    "double": {"double": True},
    "dueling": {"dueling": True},
    "distributional": C51,
    "all": C51 | {"double": True, "dueling": True},
}


def make(name, algo=None, train=None):
    seed_everything(0)
    seen = {"modalities": {"obs": {"low_dim": ["place"]}}}
    config = config_factory(name, {"algo": algo or {}, "train": train or {}, "observation": seen})
    size = NUM_ACTIONS if config.train.acts_discretely else 2
    algo = algo_factory(name, config, SHAPES, ac_dim=size, device="cpu")
    with torch.no_grad():  # target networks that differ
        for parameter in algo.nets.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    algo.set_train()
    return algo


def make_batch(name, size=12, steps=1, masks=False):
    torch.manual_seed(1)
    actions = torch.rand(size, steps, 2) * 2 - 1
    if config_factory(name).train.acts_discretely:
        actions = torch.eye(NUM_ACTIONS)[torch.randint(NUM_ACTIONS, (size, steps))]
    batch = {
        "obs": {"place": torch.randn(size, steps, 3)},
        "next_obs": {"place": torch.randn(size, steps, 3)},
        "actions": actions,
        "rewards": torch.rand(size, steps),
        "dones": (torch.rand(size, steps) < 0.3).float(),
    }
    if masks:
        for group in ("obs", "next_obs"):
            mask = (torch.rand(size, steps, NUM_ACTIONS) < 0.5).float()
            mask[..., 2] = mask.sum(-1).eq(0).float().maximum(mask[..., 2])  # one at least
            batch[group]["action_mask"] = mask
    return batch


def ready_batch(algo, name, **options):
    return algo.process_batch_for_training(make_batch(name, **options))


def rows_of(batch):
    for i in range(len(batch["rewards"])):
        yield map_leaves(lambda x, i=i: x if x is None else x[i : i + 1], batch)


# -- real-valued actions --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["td3", "ddpg"])
def test_deterministic_targets(name):
    algo = make(name, {"actor": {"noise_std": 0.4, "noise_clip": 0.3}} if name == "td3" else {})
    batch = ready_batch(algo, name)
    critic, actor = algo.nets["critic_target"], algo.nets["actor_target"]
    assert critic.num_critics == (2 if name == "td3" else 1)
    torch.manual_seed(5)
    target = algo.q_target(batch)
    torch.manual_seed(5)
    noise = (0.4 * torch.randn(12, 1, 2)).clamp(-0.3, 0.3) * (name == "td3")
    assert name == "ddpg" or (noise.abs() > 0.299).any()
    for i, row in enumerate(rows_of(batch)):
        action = (actor(row["next_obs"])[0].mode() + noise[i]).clamp(-1, 1)
        value = min(critic(row["next_obs"], action).flatten().tolist())
        expected = row["rewards"].item() + 0.99 * (1 - row["dones"].item()) * value
        assert target[i].item() == pytest.approx(expected, abs=1e-5)


def test_an_actor_climbs_the_first_critic_when_its_turn_comes():
    algo = make("td3", {"actor": {"update_freq": 3}})
    batch = ready_batch(algo, "td3")
    obs = batch["obs"]
    evaluations = []
    algo.nets["actor"].register_forward_hook(lambda *_: evaluations.append(1))
    for step in range(1, 7):
        before = copy.deepcopy(algo.nets.state_dict())
        with torch.no_grad():
            policy = algo.nets["actor"](obs)[0].mode()
        evaluations.clear()
        info = algo.train_on_batch(batch, epoch=1)
        after = algo.nets.state_dict()
        moved = {key.split(".")[0] for key in after if not torch.equal(before[key], after[key])}
        is_due = step % 3 == 0
        assert moved == (set(algo.nets) if is_due else {"critic"})
        assert len(evaluations) == is_due and ("Actor/Loss" in info) == is_due
        if is_due:
            value = algo.nets["critic"](obs, policy)[0].mean()
            assert info["Actor/Loss"].item() == pytest.approx(-value.item(), abs=1e-5)
    assert "Actor/Grad_Norms" not in info  # nobody asked


def test_sac_targets():
    algo = make("sac")
    batch = ready_batch(algo, "sac")
    assert algo.target_entropy({}) == -2 and algo.nets["critic"].num_critics == 2
    next_pi, _ = algo.policy(batch["next_obs"])
    torch.manual_seed(3)
    value = algo.next_value(batch, next_pi)
    torch.manual_seed(3)
    noise = torch.randn(12, 2)
    mean, std = next_pi.mean[:, 0], next_pi.std[:, 0]
    actions = torch.tanh(mean + std * noise)
    density = torch.distributions.Normal(mean, std).log_prob(mean + std * noise)
    log_prob = (density - torch.log(1 - actions.square() + 1e-6)).sum(-1)
    q = algo.nets["critic_target"](batch["next_obs"], actions[:, None])[..., 0].amin(0)
    alpha = algo.nets["entropy"]().exp()
    torch.testing.assert_close(value[:, 0], q - alpha * log_prob)


@pytest.mark.parametrize("name", ["td3", "ddpg", "td3_bc"])
def test_exploring_adds_noise_to_the_policys_action(name):
    algo = make(name, {"actor": {"exploration_std": 0.3}})
    obs = {"place": torch.randn(3, 1, 3)}
    with torch.no_grad():
        action = algo.act(obs)[0]
        algo.nets["actor"].head.action.bias += 4 * torch.tensor([1.0, 0.0])  # at a bound
        noisy = torch.stack([algo.explore(obs)[0] for _ in range(600)])
    assert noisy.max() == 1 and (noisy >= -1).all()
    error = (noisy - action)[..., 1]
    assert error.std().item() == pytest.approx(0.3, abs=0.05)
    assert error.mean().abs() < 0.05


@pytest.mark.parametrize("name", [*REAL, "dqn", "discrete_sac"])
def test_what_a_row_explores_depends_on_its_own_generator(name):
    algo, obs = make(name), {"place": torch.randn(3, 1, 3)}
    for first in range(5):
        seeded = [torch.Generator().manual_seed(i) for i in (first, 7, 8)]
        together, _ = algo.explore(obs, generators=seeded)
        some = {"place": obs["place"][:1]}
        alone, _ = algo.explore(some, generators=[torch.Generator().manual_seed(first)])
        torch.testing.assert_close(together[:1], alone)


# -- discrete actions -----------------------------------------------------------------------------


def values_of(critic, obs):
    """``[A]``, one action at a time: the least of the critics."""
    return [critic(obs, action[None, None]).amin(0).item() for action in torch.eye(NUM_ACTIONS)]


def allowed_in(row, group):
    mask = row[group].get("action_mask")
    return [a for a in range(NUM_ACTIONS) if mask is None or mask[0, -1, a]]


def projected(returns, probabilities, atoms):
    """Algorithm 1 of Bellemare et al."""
    found, spacing = [0.0] * len(atoms), atoms[1] - atoms[0]
    for value, p in zip(returns, probabilities, strict=True):
        b = (min(max(value, atoms[0]), atoms[-1]) - atoms[0]) / spacing
        low, high = math.floor(b), math.ceil(b)
        if low == high:
            found[low] += p
        else:
            found[low] += p * (high - b)
            found[high] += p * (b - low)
    return found


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("switches", DQNS.values(), ids=DQNS)
def test_dqn_targets(switches, masks):
    algo = make("dqn", switches)
    batch = ready_batch(algo, "dqn", masks=masks)
    online, slow = algo.nets["critic"], algo.nets["critic_target"]
    assert ("targets" in batch) != algo.algo_config.double
    target = batch["targets"] if "targets" in batch else algo._targets_of(batch)
    is_distributional = isinstance(algo, DistributionalDQN)
    chooser = online if algo.algo_config.double else slow
    for i, row in enumerate(rows_of(batch)):
        values = values_of(chooser, row["next_obs"])
        best = max(allowed_in(row, "next_obs"), key=values.__getitem__)
        reward, discount = row["rewards"].item(), 0.99 * (1 - row["dones"].item())
        if not is_distributional:
            expected = reward + discount * values_of(slow, row["next_obs"])[best]
            assert target[i].item() == pytest.approx(expected, abs=1e-5)
            continue
        p = slow.probabilities(row["next_obs"], torch.eye(NUM_ACTIONS)[best][None, None])[0, 0, 0]
        atoms = slow.atoms.tolist()
        expected = projected([reward + discount * z for z in atoms], p.tolist(), atoms)
        torch.testing.assert_close(target[i], torch.tensor(expected))


def test_a_dueling_network_has_a_value_and_advantages():
    algo = make("dqn", {"dueling": True})
    critic, obs = algo.nets["critic"], {"place": torch.randn(5, 1, 3)}
    last = []
    critic.head["value"].register_forward_hook(lambda *given: last.append(given[2]))
    values = critic.values(obs)
    value, advantages = last[0][0, :, 0], last[0][0, :, 1:]
    assert advantages.shape == (5, NUM_ACTIONS)
    for i in range(5):
        for a in range(NUM_ACTIONS):
            expected = value[i] + advantages[i, a] - sum(advantages[i]) / NUM_ACTIONS
            assert values[0, i, a].item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize("bounds", [None, [0.0, 1.0]])
def test_values_of_discrete_actions_keep_their_bounds(bounds):
    algo = make("ddqn", {"critic": {"value_bounds": bounds}})
    torch.nn.init.constant_(algo.nets["critic"].head["value"].bias, 50.0)
    values = algo.nets["critic"].values({"place": torch.randn(5, 1, 3)})
    assert (values <= 1).all() == (bounds is not None)


@pytest.mark.parametrize("switches", [{}, {"double": True}], ids=["dqn", "double"])
def test_the_slow_copy_is_renewed_every_so_many_updates(switches):
    algo = make("dqn", switches | {"target_every": 4})
    slow = [algo.nets["critic_target"].state_dict()["head.value.weight"].clone()]
    fast = []
    raw = make_batch("dqn")
    for step in range(9):
        now = algo.nets["critic_target"].state_dict()["head.value.weight"]
        before = now.clone()
        batch = algo.process_batch_for_training(raw)
        algo.train_on_batch(batch, epoch=1, validate=True)
        assert torch.equal(now, before)  # neither of both renews it
        fast.append(algo.nets["critic"].state_dict()["head.value.weight"].clone())
        algo.train_on_batch(batch, epoch=1)
        assert torch.equal(now, slow[0] if step < 4 else fast[4 * (step // 4)])
    assert algo.num_updates == 9
    # After updates by what was processed at once, it is renewed once, and counts from there on.
    for _ in range(6):
        algo.train_on_batch(batch, epoch=1)
    assert algo.renewed_at == 8
    algo.train_on_batch(algo.process_batch_for_training(raw), epoch=1)
    assert algo.renewed_at == 15
    other = make("dqn", switches | {"target_every": 4})
    other.deserialize(algo.serialize())
    assert (other.renewed_at, other.num_updates) == (15, 16)
    ahead = other.process_batch_for_training(raw)  # by a loop that prepares a batch ahead
    for _ in range(6):
        batch, ahead = ahead, other.process_batch_for_training(raw)
        other.train_on_batch(batch, epoch=1)
    assert other.renewed_at == 20


def test_dqn_explores_by_chance_less_and_less():
    algo = make("dqn", {"exploration": {"initial": 0.8, "final": 0.2, "steps": 100}})
    obs = {"place": torch.randn(1, 1, 3).expand(4000, -1, -1)}
    best = algo.act(obs)[0]
    for num_steps, share in ((0, 0.8), (50, 0.5), (100, 0.2), (1000, 0.2)):
        action, _ = algo.explore(obs, num_steps=num_steps)
        assert (action.sum(-1) == 1).all()
        rates = action.mean(0)[best[0] == 0] * NUM_ACTIONS
        torch.testing.assert_close(rates, torch.full_like(rates, share), atol=0.1, rtol=0)
    algo.set_eval()
    assert torch.equal(algo.act(obs)[0], best)


@pytest.mark.parametrize("name", ["dqn", "ddqn", "discrete_sac", "discrete_bcq", "discrete_cql"])
@pytest.mark.parametrize("evaluates", [False, True])
def test_forbidden_actions_are_never_chosen(name, evaluates):
    algo = make(name)
    if evaluates:
        algo.set_eval()
    obs = make_batch(name, size=200, masks=True)["obs"]
    with torch.no_grad():
        for choose in (algo.act, algo.explore):
            for _ in range(5):
                action, _ = choose(obs)
                assert ((action * obs["action_mask"][:, -1]).sum(-1) == 1).all()
    everything = algo.act({"place": obs["place"]})[0]
    assert not ((everything * obs["action_mask"][:, -1]).sum(-1) == 1).all()


def test_masks_are_of_the_latest_frame_and_of_the_state_after_n_steps():
    algo = make("dqn", {"n_step": 2}, {"frame_stack": 2, "seq_length": 2})
    raw = make_batch("dqn", steps=3, masks=True)
    ready = algo.process_batch_for_training(raw)
    scores = torch.zeros(12, NUM_ACTIONS)
    allowed = masked(scores, ready["next_obs"]) == 0
    assert torch.equal(allowed, raw["next_obs"]["action_mask"][:, 2] > 0)
    assert torch.equal(masked(scores, ready["obs"]) == 0, raw["obs"]["action_mask"][:, 1] > 0)


@pytest.mark.parametrize("masks", [False, True])
def test_discrete_sac_expects_over_all_actions(masks):
    algo = make("discrete_sac")
    torch.nn.init.constant_(algo.nets["entropy"].param, 0.3)
    assert algo.target_entropy({}) == pytest.approx(0.98 * math.log(NUM_ACTIONS))
    batch = ready_batch(algo, "discrete_sac", masks=masks)
    alpha = math.exp(0.3)

    def soft_value(row, group, critic):
        actions = allowed_in(row, group)
        logits = algo.nets["actor"](row[group])[0].logits[0, 0]
        p = logits[actions].softmax(-1).tolist()
        q = values_of(algo.nets[critic], row[group])
        expected = sum(x * q[a] for x, a in zip(p, actions, strict=True))
        return expected, sum(x * math.log(x) for x in p)

    next_pi, _ = algo.policy(batch["next_obs"])
    with torch.no_grad():
        found = algo.next_value(batch, next_pi)
    losses, entropies, targets = [], [], []
    for i, row in enumerate(rows_of(batch)):
        value, log_prob = soft_value(row, "next_obs", "critic_target")
        assert found[i].item() == pytest.approx(value - alpha * log_prob, abs=1e-5)
        value, log_prob = soft_value(row, "obs", "critic")
        losses.append(alpha * log_prob - value)
        entropies.append(-log_prob)
        targets.append(0.98 * math.log(len(allowed_in(row, "obs"))))
    info = algo.train_on_batch(batch, epoch=1)
    assert info["Actor/Loss"].item() == pytest.approx(sum(losses) / 12, abs=1e-5)
    surplus = (sum(entropies) - sum(targets)) / 12  # too little: the weight grows
    assert info["Entropy_Weight_Loss"].item() == pytest.approx(0.3 * surplus, abs=1e-5)
    weights = algo.nets.state_dict().values()
    assert all(torch.isfinite(weight).all() for weight in weights)


# -- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize(
    ("name", "switches"),
    [
        *((name, {}) for name in (*REAL, "discrete_sac", "ddqn")),
        *(("dqn", s) for s in DQNS.values()),
    ],
)
def test_batches_that_are_processed_at_once_are_those_processed_one_by_one(name, switches, n_step):
    algo = make(name, switches | {"n_step": n_step})
    raw = make_batch(name, size=20, steps=n_step, masks=name not in REAL)
    raw["weights"] = torch.rand(20)
    together = algo.process_batch_for_training(raw)
    for start in range(0, 20, 5):
        part = slice(start, start + 5)
        alone = algo.process_batch_for_training(map_leaves(lambda x, part=part: x[part], raw))
        cut = map_leaves(lambda x, part=part: x if x is None else x[part], together)
        torch.testing.assert_close(cut, alone, atol=1e-6, rtol=1e-6)


WEIGHTED = {name: (name, {}) for name in ("td3", "sac", "discrete_sac", "iql", "cql", "edac")}
WEIGHTED |= {"discrete_cql": ("discrete_cql", {}), "dqn": ("dqn", {}), "c51": ("dqn", C51)}


@pytest.mark.parametrize("case", WEIGHTED)
def test_a_batch_with_weights_gives_the_errors_of_its_samples(case):
    name, switches = WEIGHTED[case]
    losses = {}
    for weight in (None, 1.0, 3.0):
        algo = make(name, switches)
        raw = make_batch(name) | ({} if weight is None else {"weights": torch.full((12,), weight)})
        batch = algo.process_batch_for_training(raw)
        seed_everything(2)
        losses[weight] = algo.train_on_batch(batch, epoch=1)["loss"].item()
        if weight is None:
            assert algo.td_errors is None
        else:
            assert algo.td_errors.shape == (12,) and not algo.td_errors.requires_grad
            assert (algo.td_errors >= 0).all() and algo.td_errors.max() > 0
    assert losses[1.0] == pytest.approx(losses[None], abs=1e-5)
    assert losses[3.0] > losses[1.0]


@pytest.mark.parametrize("case", ["td3", "dqn", "c51"])
def test_each_sample_counts_by_its_weight(case):
    name, switches = WEIGHTED[case]
    algo = make(name, switches)
    batch = ready_batch(algo, name)
    target = batch["targets"] if "targets" in batch else algo.q_target(batch)
    with torch.no_grad():
        each = [
            algo.critic_losses(row, target[i : i + 1])[0] for i, row in enumerate(rows_of(batch))
        ]
        weights = torch.rand(12)
        losses, q = algo.critic_losses(batch | {"weights": weights[:, None]}, target)
    expected = sum(w * loss for w, loss in zip(weights, each, strict=True)) / 12
    torch.testing.assert_close(losses, expected)
    errors = torch.stack(each)[:, 0]  # of C51 the divergence
    if case != "c51":
        errors = torch.tensor([(q[:, i] - target[i]).abs().mean() for i in range(12)])
    torch.testing.assert_close(algo.td_errors, errors)
