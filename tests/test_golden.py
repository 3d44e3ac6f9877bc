"""robomimic's recordings: outputs, training steps and episodes from its checkpoints.

The cases are the folders of ``tests/golden/cases`` and of ``$OFFRL_GOLDEN/cases``; nothing here
knows their names.
"""

import json
import os
from collections import deque
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import GOLDEN

from offrl import policy_from_checkpoint
from offrl.normalize import Normalizer
from offrl.registry import ALGOS
from offrl.robomimic.weights import weights_from_robomimic, weights_to_robomimic
from offrl.tree import map_leaves

FOLDERS = [GOLDEN, *map(Path, filter(None, [os.environ.get("OFFRL_GOLDEN")]))]
CASES = sorted(p.parent for f in FOLDERS for p in f.glob("cases/*/model.pth"))
PARAMETERS = {"mean": "mean", "scale": "std", "logits": "logits"}
FORWARD = {"rtol": 1e-5, "atol": 2e-6}
# After training: Adam makes whole steps of gradients that are nothing but rounding errors.
TRAINED = {"rtol": 1e-4, "atol": 5e-6}


class Case:
    def __init__(self, folder):
        self.expected = json.loads((folder / "expected.json").read_text())
        if self.expected["algo"] not in ALGOS.names():
            pytest.skip(f"{self.expected['algo']} is not in offrl")
        self.arrays = np.load(folder / "io.npz")
        self.policy, self.checkpoint = policy_from_checkpoint(folder / "model.pth", device="cpu")
        self.weights = torch.load(folder / "model.pth", weights_only=True)["model"]["nets"]
        self.algo = self.policy.policy

    def nested(self, prefix):
        tree = {}
        for key in self.arrays:
            if key.startswith(prefix):
                *groups, name = key.removeprefix(prefix).split("/")
                branch = tree
                for group in groups:
                    branch = branch.setdefault(group, {})
                branch[name] = torch.tensor(self.arrays[key])
        return tree

    def obs(self, prefix="obs/"):
        """Observations ``[N, T, ...]``; recorded without time where the policy has none."""
        obs = self.nested(prefix)
        ranks = {k: len(s.shape) for k, s in self.algo.obs_spec.groups["obs"].items()}
        return {k: x if x.ndim == ranks[k] + 2 else x[:, None] for k, x in obs.items()}

    @property
    def goal(self):
        return self.nested("goal/") or None

    def close(self, actual, name):
        expected = self.arrays[name]
        actual = actual.detach().numpy().reshape(expected.shape)
        tolerance = TRAINED if name.startswith("expected_after") else FORWARD
        np.testing.assert_allclose(actual, expected, **tolerance, err_msg=name)


@pytest.fixture(params=CASES, ids=lambda p: p.name)
def case(request):
    return Case(request.param)


def check_outputs(case, split):
    """Every recorded output of the policy; at least one."""
    case.algo.set_eval()
    statistics = case.algo.obs_normalizer
    case.algo.obs_normalizer = Normalizer()  # what is recorded is what networks see
    names = {n.partition("/")[2] for n in case.arrays if n.startswith(f"{split}/")}
    checked = check_values(case, split, names)
    config = case.algo.algo_config
    if "vae" in config and config.vae.enabled:
        check_vae(case, split, case.algo.nets["policy"])
    elif "candidates" in names or "sampler/action" in names:
        check_candidates(case, split, names)
    else:
        pi, _ = case.algo.action_distribution(case.obs(), case.goal)
        if split == "expected_eval":
            pi = pi.low_noise()
        for name, attribute in PARAMETERS.items():
            if name in names:
                case.close(getattr(pi, attribute), f"{split}/{name}")
                checked += 1
        if "log_prob" in names:
            actions = torch.tensor(case.arrays["actions"])
            actions = actions if actions.ndim == 3 else actions[:, None]
            case.close(pi.log_prob(actions), f"{split}/log_prob")
        if "action" in names and "mean" not in names:
            case.close(pi.mode(), f"{split}/action")
            checked += 1
        assert checked, names
    case.algo.obs_normalizer = statistics
    if "rollout_policy_action" in names:
        raw = case.nested("obs/")
        for i, action in enumerate(case.arrays[f"{split}/rollout_policy_action"]):
            case.policy.start_episode()
            actual = case.policy({k: x[i].numpy() for k, x in raw.items()})
            np.testing.assert_allclose(actual, action, **FORWARD)


def check_values(case, split, names):
    """Critics, their targets, values of states, the target of a deterministic actor."""
    obs, goal, nets = case.obs(), case.goal, case.algo.nets
    outputs = {}
    if "critic" in nets:
        actions = torch.tensor(case.arrays["actions"])[:, None]
        for prefix, net in (("q", "critic"), ("q_target", "critic_target")):
            for i, q in enumerate(nets[net](obs, actions, goal)):
                outputs[f"{prefix}{i}"] = q
    if "v" in names or ("state_value" in names and "candidates" not in names):
        outputs["v"] = outputs["state_value"] = case.algo.get_state_value(case.nested("obs/"), goal)
    if "action_target" in names:
        outputs["action_target"] = nets["actor_target"](obs, goal)[0].mode()
    for name in names & outputs.keys():
        case.close(outputs[name], f"{split}/{name}")
    return len(names & outputs.keys())


def check_candidates(case, split, names):
    """BCQ: the sampler, the perturbed actions, and the choice between recorded candidates."""
    algo, obs, goal = case.algo, case.obs(), case.goal
    sampler = algo.nets["action_sampler"]
    if "sampler/action" in names:
        check_vae(case, f"{split}/sampler", sampler)
    actions = torch.tensor(case.arrays["actions"])[:, None]
    for name, net in (("perturbed_action", "actor"), ("perturbed_action_target", "actor_target")):
        if name in names:
            case.close(algo.nets[net](obs, actions, goal), f"{split}/{name}")
    prefix = f"{split}/candidate_noise"
    noise = [case.arrays[n] for n in sorted(case.arrays) if n.startswith(prefix)]
    if noise:
        with Replay(case, queues={"rand": deque(), "randn": deque(map(torch.tensor, noise))}):
            value, action = algo.best_action(obs, goal)
        case.close(value, f"{split}/state_value")
        case.close(action, f"{split}/action")


def check_vae(case, split, vae):
    obs = case.algo.prepare_obs(case.obs())
    goal = case.algo.prepare_obs(case.goal, "goal")
    actions, z = (torch.tensor(case.arrays[k])[:, None] for k in ("actions", "z"))
    posterior, _ = vae.posterior(obs, goal, given=actions)
    for name, value in posterior.items():
        if f"{split}/encoder_{name}" in case.arrays:
            case.close(value, f"{split}/encoder_{name}")
    decoded, _ = vae.decoder(obs, goal, given=z)
    case.close(decoded.mode(), f"{split}/action")
    if f"{split}/kl_loss" in case.arrays:
        case.close(vae.prior.kl(posterior, z, obs, goal).mean(), f"{split}/kl_loss")


def test_outputs(case):
    check_outputs(case, "expected")


def test_outputs_in_eval_mode(case):
    if not any(name.startswith("expected_eval/") for name in case.arrays):
        pytest.skip("not recorded: the mode makes no difference")
    check_outputs(case, "expected_eval")


class Replay:
    """torch's random numbers replaced by recorded ones, uniform and normal each in their order."""

    def __init__(self, case, step=None, queues=None):
        self.queues = queues or {"rand": deque(), "randn": deque()}
        for noise in case.expected.get("train_noise", []) if step is not None else []:
            if "ignore" not in noise["meaning"]:
                uniform = noise["source"].rpartition(".")[2] in ("rand", "rand_like", "uniform_")
                recorded = torch.tensor(case.arrays[f"batch{step}/noise/{noise['index']}"])
                if "uniform(-1,1)" in noise["meaning"]:
                    recorded = (recorded + 1) / 2
                self.queues["rand" if uniform else "randn"].append(recorded)

    def __enter__(self):
        self._patches = [
            mock.patch("torch.rand", lambda *shape, **_: self._next("rand", shape)),
            mock.patch("torch.randn", lambda *shape, **_: self._next("randn", shape)),
            mock.patch("torch.randn_like", lambda like: self._next("randn", like.shape)),
        ]
        for patch in self._patches:
            patch.start()

    def _next(self, kind, shape):
        shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return self.queues[kind].popleft().reshape(shape)

    def __exit__(self, *_):
        for patch in self._patches:
            patch.stop()
        assert not any(self.queues.values()), "recorded numbers were not used"


def test_training_steps(case):
    algo, expected = case.algo, case.expected
    largest = {name: 0.0 for name, p in algo.nets.named_parameters() if p.requires_grad}
    algo.set_train()
    for step, logs in enumerate(expected["train_logs"]):
        batch = case.nested(f"batch{step}/")
        batch.pop("noise", None)
        with Replay(case, step):
            info = algo.train_on_batch(
                algo.process_batch_for_training(batch), epoch=expected["train_epoch"]
            )
        actual = algo.log_info(info)
        assert actual.keys() >= logs.keys()  # IQL's have no Loss there
        for name, value in logs.items():
            assert actual[name] == pytest.approx(value, rel=1e-4), (step, name)
        for name in largest:
            gradient = algo.nets.get_parameter(name).grad
            if gradient is not None:
                largest[name] = max(largest[name], float(gradient.abs().max()))
    check_outputs(case, "expected_after")
    weights = weights_to_robomimic(algo.nets)
    names = {value.data_ptr(): name for name, value in algo.nets.state_dict().items()}
    for name, norm in expected["final_param_norms"].items():
        ours = names.get(weights[name].data_ptr())
        # Where the exact gradient is zero (a bias before a softmax), Adam follows rounding errors.
        rounding = largest.get(ours, 1.0) < 1e-7
        tolerance = {"abs": 5e-3} if rounding else {"rel": 1e-4}
        assert float(weights[name].norm()) == pytest.approx(norm, **tolerance), name


def test_episodes(case):
    """Fourteen steps from a fresh start, as ``RolloutPolicy`` takes them."""
    raw = "rollout/raw_obs/" if any("raw_obs" in n for n in case.arrays) else "rollout/obs/"
    obs = case.nested(raw)
    if not obs:
        pytest.skip("no episode was recorded")
    steps = len(case.arrays["rollout/action"])
    if "rollout/dist/mean" not in case.arrays:
        case.policy.start_episode()
        for t in range(steps):
            action = case.policy({k: x[t].numpy() for k, x in obs.items()})
            np.testing.assert_allclose(action, case.arrays["rollout/action"][t], **FORWARD)
        return
    state, stacked = None, case.obs("rollout/obs/")
    for t in range(steps):
        pi, state = case.algo.action_distribution(
            map_leaves(lambda x, t=t: x[t : t + 1], stacked), None, state
        )
        for name, attribute in PARAMETERS.items():
            actual = getattr(pi.low_noise(), attribute).detach().numpy()[0]
            np.testing.assert_allclose(actual, case.arrays[f"rollout/dist/{name}"][t], **FORWARD)


def test_weights_come_back_under_robomimics_names(case):
    exported = weights_to_robomimic(case.algo.nets)
    assert exported.keys() == case.weights.keys()
    assert all(torch.equal(exported[key], case.weights[key]) for key in exported)
    again = weights_from_robomimic(exported)
    assert again.keys() == case.algo.nets.state_dict().keys()
