"""The same networks in offrl and robomimic 0.3.0: weights, training steps and episodes compared.

    python benchmarks/parity.py [PART OF A CASE'S NAME ...]

For each case both build the algorithm from one config; robomimic's fresh weights go to offrl and
back, both take three training steps on the same batches and random numbers, and both act for 13
steps where no draw is made in another order (a mixture's mode, a learned prior). Exits with 1 if
something differs by more than float32 explains. The recordings in ``tests/golden`` are of
robomimic 0.5.0; this covers many more configs, of the version that a package index has.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import sys
from contextlib import redirect_stdout
from typing import Any
from unittest import mock

import torch
from measure import markdown
from peers import ROBOMIMIC
from torch import Tensor, nn
from tqdm import tqdm

from offrl import algo_factory, config_factory
from offrl.models.backbones import resnet
from offrl.robomimic.checkpoints import upgrade_checkpoint
from offrl.robomimic.weights import weights_to_robomimic
from offrl.specs import modalities
from offrl.tree import map_leaves, merge

STORED = {"pos": (3,), "object": (10,), "touch": (1,), "image": (52, 60, 3), "depth": (40, 40, 1)}
AC_DIM, BATCH_SIZE, TRAINING_STEPS, EPISODE = 7, 4, 3, 13
# Relative; steps multiply rounding errors.
LOSS_TOLERANCE, ACTION_TOLERANCE = 1e-4, 1e-5


def cases() -> dict[str, dict[str, Any]]:
    """Config overrides by name."""
    no_dropout = dict.fromkeys(("emb_dropout", "attn_dropout", "block_output_dropout"), 0.0)
    small = {"enabled": True, "embed_dim": 16, "num_layers": 2, "num_heads": 2} | no_dropout
    rnn = {"enabled": True, "hidden_dim": 16, "horizon": 5}
    transformer = {**small, "context_length": 4}
    heads = {
        "deterministic": {},
        "gaussian": {"gaussian": {"enabled": True}},
        "gaussian-fixed": {"gaussian": {"enabled": True, "fixed_std": True}},
        "gaussian-exp": {"gaussian": {"enabled": True, "std_activation": "exp"}},
        "gmm": {"gmm": {"enabled": True, "num_modes": 3}},
        "gmm-exp": {"gmm": {"enabled": True, "std_activation": "exp", "min_std": 0.01}},
    }
    trunks = {
        "mlp": {},
        "rnn": {"rnn": rnn},
        "gru": {"rnn": rnn | {"rnn_type": "GRU", "num_layers": 1}, "actor_layer_dims": []},
        "rnn-open-loop": {"rnn": rnn | {"open_loop": True}, "actor_layer_dims": []},
        "transformer": {"transformer": transformer},
        "transformer-geglu": {
            "transformer": transformer
            | {"activation": "geglu", "supervise_all_steps": True}
            | {"sinusoidal_embedding": True, "nn_parameter_for_timesteps": False}
        },
        "transformer-table": {"transformer": transformer | {"nn_parameter_for_timesteps": False}},
    }
    vaes = {
        "plain": {},
        "sum": {"decoder": {"reconstruction_sum_across_elements": True}, "kl_weight": 0.5},
        "clip": {"latent_clip": 0.5},
        "learned": {"prior": {"learn": True}},
        "learned-conditioned": {"prior": {"learn": True, "is_conditioned": True}},
        "gmm": {"prior": {"learn": True, "use_gmm": True}},
        "gmm-weights": {
            "prior": dict.fromkeys(
                ("learn", "is_conditioned", "use_gmm", "gmm_learn_weights"), True
            )
        },
        "categorical": {"prior": {"use_categorical": True}},
        "categorical-learned": {
            "prior": {"use_categorical": True, "learn": True}
            | {"is_conditioned": True, "categorical_gumbel_softmax_hard": True}
        },
        "unconditioned": {
            "decoder": {"is_conditioned": False},
            "prior": {"learn": True, "is_conditioned": True},
        },
    }
    shallow = {"backbone_class": "ShallowConv", "feature_dimension": 16}
    cores = {
        "shallow": {"core_kwargs": shallow | {"pool_kwargs": {"num_kp": 8}}},
        "temperature": {"core_kwargs": shallow | {"pool_kwargs": {"learnable_temperature": True}}},
        "mean-pool": {"core_kwargs": shallow | {"pool_class": "SpatialMeanPool"}},
        "no-pool": {"core_kwargs": shallow | {"pool_class": None}},
        "no-linear": {"core_kwargs": shallow | {"feature_dimension": None}},
        "resnet18": {"core_kwargs": {"backbone_class": "ResNet18Conv"}},
        "coord-conv": {"core_kwargs": {"backbone_kwargs": {"input_coord_conv": True}}},
    }
    crop = {"obs_randomizer_class": "CropRandomizer", "core_kwargs": shallow} | {
        "obs_randomizer_kwargs": {"crop_height": 44, "crop_width": 50, "num_crops": 2}
    }
    image = {"modalities": {"obs": {"low_dim": ["pos"], "rgb": ["image"]}}}
    goal = {"modalities": {"goal": {"low_dim": ["pos", "object"]}}}
    depth = {"modalities": {"obs": {"depth": ["depth"]}}, "encoder": {"depth": cores["shallow"]}}
    conditioned = {"vae": {"enabled": True, "prior": {"learn": True, "is_conditioned": True}}}

    found: dict[str, dict[str, Any]] = {}
    for trunk, switches in trunks.items():
        for head in heads if trunk == "mlp" else ("deterministic", "gmm", "gmm-exp"):
            found[f"{trunk}, {head}"] = {"algo": switches | heads[head]}
    for name, vae in vaes.items():
        found[f"vae, {name}"] = {"algo": {"vae": {"enabled": True} | vae}}
    for name, core in (cores | {"crops": crop}).items():
        found[f"image, {name}"] = {"observation": image | {"encoder": {"rgb": core}}}
    for name, algo in (trunks | {"vae": conditioned}).items():
        seen = {"observation": image | {"encoder": {"rgb": cores["shallow"]}}}
        found[f"image, {name}"] = seen | {"algo": algo}
        found[f"goal, {name}"] = {"observation": goal, "algo": algo}
    found["depth"] = {"observation": depth}
    loss = {"l2_weight": 0.5, "l1_weight": 0.3, "cos_weight": 0.2}
    optimizer = {"learning_rate": {"initial": 0.001}, "regularization": {"L2": 0.01}}
    found["losses, weight decay"] = {"algo": {"loss": loss, "optim_params": {"policy": optimizer}}}
    found = {name: complete(overrides) for name, overrides in found.items()}
    image |= {"encoder": {"rgb": cores["shallow"]}}
    others = planner_cases(vaes, image, goal) | hierarchy_cases() | offline_cases(image, goal)
    return found | others


def offline_cases(image: dict[str, Any], goal: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Missing as draws come in another order: mixtures as samplers, CQL's several samples."""
    bounds = {"value_bounds": [-2.0, 5.0]}
    gaussian = {"common": {"use_tanh": True, "std_activation": "exp"}}
    variants = {
        "bcq": {
            "plain": {},
            "perturbed": {"actor": {"enabled": True}},
            "three critics, Huber": {"critic": {"ensemble": {"n": 3}, "use_huber": True}},
            "bounds, clipped": {"critic": bounds | {"max_gradient_norm": 0.1}},
            "n-step, infinite": {"n_step": 3, "infinite_horizon": True},
            "distributional": {"critic": bounds | {"distributional": {"enabled": True}}},
        },
        "cql": {
            "Lagrange": {},
            "fixed weights": {
                "critic": {"target_q_gap": None, "cql_weight": 2.0, "min_q_weight": 0.5},
                "actor": {"target_entropy": None},
            },
            "entropy in the backup": {"critic": {"deterministic_backup": False}},
            "cloning first": {"actor": {"bc_start_steps": 2}},
            "n-step, bounds": {"n_step": 2, "critic": bounds | {"max_gradient_norm": 0.1}},
        },
        "iql": {
            "plain": {},
            "tanh": {"actor": {"net": gaussian}},
            "mixture": {"actor": {"net": {"type": "gmm"}}},
            "clipped": {
                "adv": {"clip_adv_value": 0.1, "beta": 0.3, "use_final_clip": False},
                "actor": {"max_gradient_norm": 0.5},
                "critic": {"use_huber": True, "max_gradient_norm": 0.1},
            },
        },
        "td3_bc": {
            "plain": {},
            "every step": {"actor": {"update_freq": 1}, "critic": {"ensemble": {"weight": 0.7}}},
            "n-step, bounds": {"n_step": 3, "critic": bounds, "infinite_horizon": True},
        },
    }
    dims = {"critic": {"layer_dims": [16, 12]}, "actor": {"layer_dims": [14, 10]}}
    found = {}
    for algo, by_name in variants.items():
        for name, overrides in by_name.items():
            found[f"{algo}, {name}"] = {"algo": merge(dims, overrides)}
        found[f"{algo}, image"] = {"algo": dims, "observation": image}
        if algo != "iql":  # robomimic's forgets the goal
            found[f"{algo}, goal"] = {"algo": dims, "observation": goal}
    return {
        name: complete(overrides) | {"algo": overrides["algo"], "algo_name": name.partition(",")[0]}
        for name, overrides in found.items()
    }


def planner_cases(
    vaes: dict[str, Any], image: dict[str, Any], goal: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    subgoals = {"modalities": {"subgoal": {"low_dim": ["pos", "touch"]}}}
    kinds = {"regression": {"enabled": False}}
    kinds |= {f"vae, {name}": {"enabled": True} | vae for name, vae in vaes.items()}
    found = {name: {"algo": {"vae": vae}, "observation": subgoals} for name, vae in kinds.items()}
    for name in ("regression", "vae, plain", "vae, learned-conditioned"):
        for kind, seen in {"goal": goal, "image": image}.items():
            found[f"{name}, {kind}"] = found[name] | {"observation": merge(subgoals, seen)}
    dims = {"ae": {"planner_layer_dims": [16, 12]}, "subgoal_horizon": 3}
    found = {f"gl, {name}": complete(overrides) for name, overrides in found.items()}
    for overrides in found.values():
        del overrides["algo"]["actor_layer_dims"]
        overrides["algo"] |= dims
        overrides |= {"algo_name": "gl", "train": {"seq_length": 4}}
    return found


def hierarchy_cases() -> dict[str, dict[str, Any]]:
    """The actor always sees its subgoal; by default robomimic's does not."""
    keys = {"low_dim": ["pos", "touch"], "rgb": [], "depth": [], "scan": []}
    seen = keys | {"low_dim": ["pos", "object", "touch"]}
    plans = {"modalities": {"obs": seen, "subgoal": keys}}
    follows = {"modalities": {"obs": seen, "goal": keys}}
    regression = {"vae": {"enabled": False}}
    learned = {"vae": {"prior": {"learn": True, "is_conditioned": True}}}
    small = {"ae": {"planner_layer_dims": [16, 12]}, "subgoal_horizon": 3}
    dims = {"encoder_layer_dims": [16], "decoder_layer_dims": [16], "prior_layer_dims": [10]}
    actor = {"rnn": {"hidden_dim": 16, "horizon": 4}, "actor_layer_dims": [12]}
    value = {"critic": {"layer_dims": [16, 12]}, "action_sampler": {"vae": dims}}
    found: dict[str, dict[str, Any]] = {}
    for name, planner in {"regression": regression, "vae": {}, "learned prior": learned}.items():
        plan = merge(small | {"vae": dims}, planner)
        for mode in ("separate", "cascade")[: 1 if planner is learned else 2]:
            found[f"hbc, {name}, {mode}"] = {
                "algo_name": "hbc",
                "algo": {"mode": mode, "planner": plan, "actor": actor},
                "observation": {"planner": plans, "actor": follows},
            }
        judges = {"planner": plan, "value": value, "num_samples": 7}
        found[f"iris, {name}"] = {
            "algo_name": "iris",
            "algo": {"value_planner": judges, "actor": actor},
            "observation": {
                "value_planner": {"planner": plans, "value": {"modalities": {"obs": keys}}},
                "actor": follows,
            },
        }
    return {name: case | {"train": {"seq_length": 4}} for name, case in found.items()}


def complete(overrides: dict[str, Any]) -> dict[str, Any]:
    """With small networks, and windows that fit the trunk."""
    vae_dims = {"latent_dim": 4, "encoder_layer_dims": [16, 12], "prior_layer_dims": [10]}
    algo = merge({"actor_layer_dims": [32, 24], "vae": vae_dims}, overrides.get("algo", {}))
    train = {"seq_length": 5} if "rnn" in algo else {}
    train = {"frame_stack": 4} if "transformer" in algo else train
    nothing: dict[str, list[str]] = {"rgb": [], "depth": [], "scan": []}
    obs = {"low_dim": ["pos", "object", "touch"]} | nothing
    observation = merge({"modalities": {"obs": obs}}, overrides.get("observation", {}))
    return {"algo": algo, "train": train, "observation": observation}


# -- both sides -----------------------------------------------------------------------------------


class Case:
    """One config in both libraries, with robomimic's weights."""

    def __init__(self, overrides: dict[str, Any]):
        from robomimic.algo import algo_factory as their_algo_factory
        from robomimic.config import config_factory as their_config_factory
        from robomimic.utils import obs_utils

        self.obs_utils = obs_utils
        overrides = dict(overrides)
        name = overrides.pop("algo_name", "bc")
        theirs = their_config_factory(name)
        with theirs.unlocked():
            theirs.train.hdf5_normalize_obs = False
            lay_over(theirs, overrides)
        obs_utils.initialize_obs_utils_with_config(theirs)
        self.config = config_factory(name, json.loads(theirs.dump()))
        keys = sorted(
            {key for group in modalities(self.config.observation).values() for key in group}
        )
        self.shapes = {k: s if len(s) == 1 else (s[2], *s[:2]) for k, s in STORED.items()}
        self.shapes = {key: self.shapes[key] for key in keys}
        self.has_goal = self.config.observation.has_goals
        arguments = {"obs_key_shapes": self.shapes, "ac_dim": AC_DIM, "device": "cpu"}
        self.theirs = their_algo_factory(name, theirs, **arguments)
        self.ours: Any = algo_factory(name, self.config, **arguments)

    def observations(self, *lead: int) -> dict[str, Tensor]:
        def draw(shape: tuple[int, ...]) -> Tensor:
            if shape[-1] == 3 and len(shape) == 3:
                return torch.randint(0, 256, (*lead, *shape), dtype=torch.uint8)
            return torch.rand(*lead, *shape) if len(shape) == 3 else torch.randn(*lead, *shape)

        return {key: draw(STORED[key]) for key in self.shapes}

    def batch(self) -> dict[str, Any]:
        steps = self.config.train.frame_stack - 1 + self.config.train.seq_length
        algo, lead = self.config.algo, (BATCH_SIZE,)
        transitions = {}
        if self.config.algo_name == "gl":
            transitions = {"next_obs": self.observations(*lead, steps)}
        elif "critic" in algo or "mode" in algo:
            steps = algo["n_step"] if "critic" in algo else steps
            transitions = {
                "next_obs": self.observations(*lead, steps),
                "rewards": torch.rand(*lead, steps),
                "dones": (torch.rand(*lead, steps) < 0.2).float(),
            }
        return transitions | {
            "obs": self.observations(BATCH_SIZE, steps),
            "goal_obs": self.observations(BATCH_SIZE) if self.has_goal else None,
            "actions": torch.rand(BATCH_SIZE, steps, AC_DIM) * 2 - 1,
        }

    def weights_differ(self) -> bool:
        """Whether weights are lost on their way to offrl and back."""
        weights = flat(self.theirs.serialize())
        content = {"model": self.theirs.serialize(), "algo_name": self.config.algo_name}
        model = upgrade_checkpoint(content)["model"]
        self.ours.deserialize(map_leaves(torch.clone, model["nets"]))
        back = flat(self._weights(self.ours))
        same_names = back.keys() == weights.keys()
        return not same_names or any(not torch.equal(back[k], w) for k, w in weights.items())

    def _weights(self, algo: Any) -> dict[str, Any]:
        if not hasattr(algo, "parts"):
            return weights_to_robomimic(algo.nets)
        return {name: self._weights(part) for name, part in algo.parts.items()}

    def training(self) -> float:
        """The largest relative difference of what both log, over the steps."""
        worst = 0.0
        self.theirs.set_train()
        self.ours.set_train()
        # robomimic's SpatialSoftmax draws numbers that it does not use.
        # Its projection of returns clamps them to the first two atoms: replaced by ours.
        with (
            mock.patch("torch.randn_like", lambda x, **_: torch.zeros_like(x)),
            mock.patch("robomimic.utils.loss_utils.project_values_onto_atoms", self._project),
        ):
            for step in range(TRAINING_STEPS):
                batch = self.batch()
                torch.manual_seed(step)
                inputs = self.theirs.process_batch_for_training(copy.deepcopy(batch))
                inputs = self.theirs.postprocess_batch_for_training(inputs, None)
                expected = self.theirs.log_info(self.theirs.train_on_batch(inputs, 1))
                torch.manual_seed(step)
                inputs = self.ours.process_batch_for_training(batch)
                actual = self.ours.log_info(self.ours.train_on_batch(inputs, 1))
                missing = expected.keys() - actual.keys()
                assert not missing, missing
                for name, value in expected.items():
                    worst = max(worst, abs(actual[name] - value) / (abs(value) + 1e-3))
        return worst

    def _project(self, values: Tensor, probabilities: Tensor, atoms: Tensor) -> Tensor:
        return self.ours.nets["critic"].project(values, probabilities)

    def episode(self) -> float | None:
        """The largest difference of two actions; ``None`` where draws come in another order."""
        algo = self.config.algo
        planner = algo["value_planner"] if "value_planner" in algo else algo
        vaes = [
            part["vae"]
            for part in (algo, planner["planner"] if "planner" in planner else {})
            if "vae" in part
        ]
        draws = any(vae.prior.learn or vae.prior.use_categorical for vae in vaes)
        if draws or "gmm" in algo and algo.gmm.enabled:
            return None
        if self.config.algo_name == "iql" and algo.actor.net.type == "gmm":
            return None
        worst, frames = 0.0, []
        for side in (self.theirs, self.ours):
            side.set_eval()
            side.reset()
        goal = self.observations(1) if self.has_goal else None
        for step in range(EPISODE):
            frames.append(self.observations(1))
            window = [
                frames[max(0, step - i)] for i in reversed(range(self.config.train.frame_stack))
            ]
            obs = {key: torch.stack([frame[key] for frame in window], 1) for key in self.shapes}
            if len(window) == 1:
                obs = frames[-1]
            torch.manual_seed(step)
            expected = self._acts(self.theirs, self._their_obs(obs), self._their_obs(goal))
            torch.manual_seed(step)
            actual = self._acts(self.ours, obs, goal)
            error = (actual - expected.reshape(actual.shape)).abs().max()
            worst = max(worst, error.item())
        return worst

    def _acts(self, side: Any, obs: Any, goal: Any) -> Tensor:
        if self.config.algo_name != "gl":
            return side.get_action(obs, goal)
        subgoals = side.sample_subgoals(obs, goal, num_samples=3)
        return torch.cat([subgoals[key].flatten() for key in sorted(subgoals)])

    def _their_obs(self, obs: dict[str, Tensor] | None) -> dict[str, Tensor] | None:
        processed = None if obs is None else self.obs_utils.process_obs_dict(dict(obs))
        return None if processed is None else {k: x.float() for k, x in processed.items()}


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Tensor]:
    leaves: dict[str, Tensor] = {}
    for key, value in tree.items():
        path = prefix + key
        leaves |= flat(value, f"{path}:") if isinstance(value, dict) else {path: value}
    return leaves


def lay_over(config: Any, overrides: dict[str, Any]) -> None:
    for key, value in overrides.items():
        if isinstance(value, dict) and key in config and not key.endswith("kwargs"):
            lay_over(config[key], value)
        elif isinstance(value, dict):
            config[key].update(value)
        else:
            config[key] = value


class _TorchvisionResNet(nn.Module):
    """In torchvision's place, which is not everywhere to be had: robomimic takes its children."""

    def __init__(self, **_: Any):
        super().__init__()
        names = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")
        for name, layer in zip(names, resnet(18), strict=True):
            self.add_module(name, layer)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(512, 1000)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", help="only cases with all of these in their names")
    parts = parser.parse_args().parts
    ROBOMIMIC.install()
    ROBOMIMIC.make_importable()
    if isinstance(sys.modules["torchvision"], mock.MagicMock):
        sys.modules["torchvision"].models.resnet18 = _TorchvisionResNet
    logging.disable(logging.WARNING)
    chosen = {n: c for n, c in cases().items() if all(part in n for part in parts)}
    rows, failed = [], 0
    for name, overrides in tqdm(chosen.items(), disable=None):
        torch.manual_seed(0)
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            case = Case(overrides)
            lost, acting, training = case.weights_differ(), case.episode(), case.training()
        differs = lost or training > LOSS_TOLERANCE or (acting or 0.0) > ACTION_TOLERANCE
        failed += differs
        rows.append(
            [
                name,
                "lost" if lost else "equal",
                f"{training:.0e}",
                "" if acting is None else f"{acting:.0e}",
                "DIFFERS" if differs else "",
            ]
        )
    print(markdown(["case", "weights there and back", "training logs", "actions", ""], rows))
    print(f"{len(rows)} cases, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
