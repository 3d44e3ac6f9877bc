"""Record cases for ``tests/golden/cases`` by running robomimic 0.3.0 on tiny networks.

    python benchmarks/record.py FOLDER [PART OF A CASE'S NAME ...]

``tests/golden/README.md`` describes the format. The cases of robomimic 0.5.0 there were recorded
elsewhere; these cover draws, goals and normalisation that those do not, and their names begin with
``v030``. Written is what both versions compute alike (``docs/differences.md``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from parity import lay_over
from peers import ROBOMIMIC
from torch import Tensor

SHAPES = {"object": (4,), "pos": (3,), "touch": (1,)}
AC_DIM, BATCH, ROWS, STEPS, EPISODE = 3, 6, 5, 5, 12
DIMS = [16, 12]

LOW_DIM = {"modalities": {"obs": {"low_dim": list(SHAPES)}}}
GOAL = {"modalities": {"obs": {"low_dim": list(SHAPES)}, "goal": {"low_dim": ["object", "pos"]}}}


def cases() -> dict[str, dict[str, Any]]:
    vae = {"enabled": True, "latent_dim": 2, "encoder_layer_dims": DIMS, "prior_layer_dims": [10]}
    vae["decoder_layer_dims"] = DIMS
    categorical = {"use_categorical": True, "categorical_dim": 3}
    mixture = {"learn": True, "is_conditioned": True, "use_gmm": True, "gmm_num_modes": 3}
    rnn = {"enabled": True, "hidden_dim": 8, "horizon": 5, "open_loop": True}
    gmm = {"enabled": True, "num_modes": 3}

    def sampler(**parts: Any) -> dict[str, Any]:
        critic = {"num_action_samples": 3, "num_action_samples_rollout": 7, "layer_dims": DIMS}
        actor = {"enabled": True, "layer_dims": DIMS}
        return {"critic": critic, "actor": actor, "action_sampler": parts}

    def bc(**algo: Any) -> dict[str, Any]:
        return {"algo_name": "bc", "algo": {"actor_layer_dims": DIMS} | algo}

    return {
        "bc_vae_categorical": bc(vae=vae | {"prior": categorical}),
        "bc_vae_gmm_prior": bc(vae=vae | {"prior": mixture | {"gmm_learn_weights": True}}),
        "bc_gmm_draws": bc(gmm=gmm | {"low_noise_eval": False}),
        "bc_rnn_open_loop": bc(rnn=rnn) | {"observation": GOAL, "train": {"seq_length": 5}},
        "bc_rnn_gmm_normalized": bc(rnn=rnn | {"open_loop": False}, gmm=gmm)
        | {"train": {"seq_length": 5, "hdf5_normalize_obs": True}},
        "bcq_gmm": {
            "algo_name": "bcq",
            "algo": sampler(vae={"enabled": False}, gmm=gmm, actor_layer_dims=DIMS),
        },
        "bcq_one_latent": {
            "algo_name": "bcq",
            "algo": sampler(vae=vae | {"latent_dim": 1, "prior": categorical}),
        },
        "td3_bc_goal_normalized": {
            "algo_name": "td3_bc",
            # Without noise it is drawn all the same.
            "algo": {"critic": {"layer_dims": DIMS}, "n_step": 2}
            | {"actor": {"layer_dims": DIMS, "noise_std": 0.0}},
            "observation": GOAL,
            "train": {"seq_length": 2, "hdf5_normalize_obs": True},
        },
    }


class Draws:
    """What torch draws meanwhile, in order, with its source."""

    SOURCES = (
        (torch, ("rand", "randn", "randn_like", "normal", "multinomial")),
        (torch.Tensor, ("normal_", "uniform_", "exponential_")),
    )

    def __init__(self) -> None:
        self.values: list[np.ndarray] = []
        self.sources: list[str] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        with ExitStack() as patches:
            for owner, names in self.SOURCES:
                for name in names:
                    source = f"{owner.__name__}.{name}"
                    replaced = self._recording(getattr(owner, name), source)
                    patches.enter_context(mock.patch.object(owner, name, replaced))
            yield

    def _recording(self, draw: Callable[..., Tensor], source: str) -> Callable[..., Tensor]:
        def recording(*args: Any, **kwargs: Any) -> Tensor:
            drawn = draw(*args, **kwargs)
            self.values.append(drawn.detach().numpy().copy())
            self.sources.append(source)
            return drawn

        return recording

    def meanings(self) -> list[dict[str, Any]]:
        return [
            {"index": i, "source": source, "meaning": f"of shape {list(values.shape)}"}
            for i, (source, values) in enumerate(zip(self.sources, self.values, strict=True))
        ]


class Case:
    def __init__(self, name: str, overrides: dict[str, Any]):
        from robomimic.algo import algo_factory
        from robomimic.config import config_factory
        from robomimic.utils import obs_utils

        torch.manual_seed(0)
        self.rng = np.random.default_rng(0)
        self.name, self.algo_name = name, overrides["algo_name"]
        self.config = config_factory(self.algo_name)
        with self.config.unlocked():
            self.config.train.hdf5_normalize_obs = False
            lay_over(self.config, {"observation": LOW_DIM})
            lay_over(self.config, {k: v for k, v in overrides.items() if k != "algo_name"})
        obs_utils.initialize_obs_utils_with_config(self.config)
        self.algo = algo_factory(
            self.algo_name, self.config, obs_key_shapes=SHAPES, ac_dim=AC_DIM, device="cpu"
        )
        with torch.no_grad():
            for parameter in self.algo.nets.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        self.has_goal = bool(self.config.observation.modalities.goal.low_dim)
        self.stats = None
        if self.config.train.hdf5_normalize_obs:
            self.stats = {
                key: {"mean": self.draw(1, *shape), "std": 0.5 + self.rng.random((1, *shape))}
                for key, shape in SHAPES.items()
            }
        self.arrays: dict[str, Any] = {}
        self.expected: dict[str, Any] = {
            "case": name,
            "algo": self.algo_name,
            "origin": "robomimic 0.3.0",
            "mode": "expected: train mode; expected_eval, rollout: eval mode",
        }

    def draw(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(np.float32)

    def observations(self, *lead: int, group: str = "obs") -> dict[str, np.ndarray]:
        keys = self.config.observation.modalities[group].low_dim
        return {key: self.draw(*lead, *SHAPES[key]) for key in keys}

    def normalized(self, obs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Also sequences, which only robomimic 0.5 can."""
        stats = self.stats or {}
        return {
            key: np.float32((x - stats[key]["mean"]) / stats[key]["std"]) if stats else x
            for key, x in obs.items()
        }

    def keep(self, prefix: str, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self.arrays[prefix + name] = value.detach().numpy() if torch.is_tensor(value) else value

    def keep_draws(self, prefix: str, draws: Draws) -> None:
        self.keep(prefix, {str(i): values for i, values in enumerate(draws.values)})

    # -- what is recorded -------------------------------------------------------------------------

    def record(self, folder: Path) -> None:
        is_sequence = "rnn" in self.config.algo and self.config.algo.rnn.enabled
        lead = (ROWS, self.config.train.seq_length) if is_sequence else (ROWS,)
        obs, goal = self.observations(*lead), self.observations(ROWS, group="goal")
        self.keep("obs/", obs)
        self.keep("goal/", goal)
        if self.stats:
            obs, goal = self.normalized(obs), self.normalized(goal)
            self.keep("obs_normalized/", obs)
            self.keep("goal_normalized/", goal)
        self.obs, self.goal = (
            {k: torch.from_numpy(x) for k, x in d.items()} or None for d in (obs, goal)
        )
        self.actions = torch.from_numpy(np.tanh(self.draw(*lead, AC_DIM)))
        self.keep("", {"actions": self.actions})
        folder.mkdir(parents=True, exist_ok=True)
        self.save(folder)
        self.outputs("expected")
        if self.algo_name == "bc":
            self.episode()
        self.train()
        self.outputs("expected_after")
        np.savez_compressed(folder / "io.npz", **self.arrays)
        self.expected["arrays"] = {
            name: f"{array.dtype}{list(array.shape)}"
            for name, array in self.arrays.items()
            if not name.startswith("batch") or name.startswith("batch0")
        }
        (folder / "expected.json").write_text(json.dumps(self.expected, indent=1))

    def save(self, folder: Path) -> None:
        (folder / "config.json").write_text(self.config.dump())
        content: dict[str, Any] = {
            "model": {"nets": {k: x.clone() for k, x in self.algo.nets.state_dict().items()}},
            "config": self.config.dump(),
            "algo_name": self.algo_name,
            "env_metadata": {"env_name": "none", "type": 1, "env_kwargs": {}},
            "shape_metadata": {
                "ac_dim": AC_DIM,
                "all_shapes": {k: list(s) for k, s in SHAPES.items()},
                "all_obs_keys": list(SHAPES),
                "use_images": False,
            },
        }
        if self.stats:
            content["obs_normalization_stats"] = {
                key: {"offset": value["mean"].tolist(), "scale": value["std"].tolist()}
                for key, value in self.stats.items()
            }
        torch.save(content, folder / "model.pth")

    def outputs(self, split: str) -> None:
        nets = self.algo.nets
        self.algo.set_eval()
        with torch.no_grad():
            if "critic" in nets:
                self.values(split)
            if self.algo_name == "bcq":
                self.policy(f"{split}/sampler/", nets["action_sampler"])
                self.proposals(split)
            elif self.algo_name == "td3_bc":
                self.keep(f"{split}/", {"action": nets["actor"](self.obs, self.goal)})
                if self.stats:
                    action = {"action_from_unnormalised_obs": self.policy_actions()}
                    self.keep(f"{split}/", action)
            else:
                net = nets["policy" if "policy" in nets else "actor"]
                self.policy(f"{split}/", net)
                if hasattr(net, "low_noise_eval"):
                    self.policy(f"{split}_eval/", net.eval())

    def values(self, split: str) -> None:
        nets = self.algo.nets
        for prefix, name in (("q", "critic"), ("q_target", "critic_target")):
            values = {
                f"{prefix}{i}": critic(self.obs, self.actions, self.goal)
                for i, critic in enumerate(nets[name])
            }
            self.keep(f"{split}/", values)
        if "vf" in nets:
            self.keep(f"{split}/", {"v": nets["vf"](self.obs, self.goal)})

    def policy(self, prefix: str, net: Any) -> None:
        """The parameters of its distribution, or of its VAE's; a sample."""
        is_eval = prefix.endswith("eval/")
        if hasattr(net, "_vae"):
            posterior = net.encode(self.actions, self.obs, self.goal)
            self.keep(f"{prefix}encoder_", posterior)
            if "z" not in self.arrays:
                self.keep("", {"z": torch.randn_like(next(iter(posterior.values())))})
            z = torch.from_numpy(self.arrays["z"])
            self.keep(prefix, {"action": net.decode(self.obs, self.goal, z=z)["action"]})
            if "sampler" not in prefix:
                self.sample(prefix, "sampled_action", net)
            return
        if not hasattr(net, "low_noise_eval"):
            self.keep(prefix, {"action": net(self.obs, self.goal)})
            return
        net.train(not is_eval)
        pi = net.forward_train(self.obs, self.goal)
        parts = pi.component_distribution.base_dist
        self.keep(prefix, {"mean": parts.loc, "scale": parts.scale})
        self.keep(prefix, {"logits": pi.mixture_distribution.logits})
        self.keep(prefix, {"log_prob": pi.log_prob(self.actions)})
        net.eval()
        if is_eval:
            self.sample(prefix, "action", net)

    def sample(self, prefix: str, name: str, net: Any) -> None:
        draws = Draws()
        with draws.recorded():
            self.keep(prefix, {name: net(self.obs, self.goal)})
        self.keep_draws(f"{prefix}noise/", draws)
        self.expected[f"{prefix.rstrip('/')}_noise"] = draws.meanings()

    def proposals(self, split: str) -> None:
        nets, draws = self.algo.nets, Draws()
        with (
            draws.recorded(),
            mock.patch.object(self.algo, "_sample_actions_for_value_maximization") as propose,
        ):
            original = type(self.algo)._sample_actions_for_value_maximization
            proposed = []

            def keep(**kwargs: Any) -> Tensor:
                proposed.append(original(self.algo, **kwargs))
                return proposed[0]

            propose.side_effect = keep
            value, action = self.algo._get_best_value(self.obs, self.goal)
        candidates = proposed[0].reshape(ROWS, -1, AC_DIM)
        outputs = {"candidates": candidates, "action": action, "state_value": value}
        for name in ("actor", "actor_target"):
            perturbed = nets[name](self.obs, self.actions, self.goal)
            outputs[name.replace("actor", "perturbed_action")] = perturbed
        self.keep(f"{split}/", outputs)
        self.keep_draws(f"{split}/candidate_noise/", draws)

    # -- episodes and training --------------------------------------------------------------------

    def rollout_policy(self) -> Any:
        from robomimic.algo import RolloutPolicy

        policy = RolloutPolicy(self.algo, obs_normalization_stats=self.stats)
        policy.start_episode()
        return policy

    def policy_actions(self) -> np.ndarray:
        def row(group: str, i: int) -> dict[str, np.ndarray] | None:
            keys = self.config.observation.modalities[group].low_dim
            return {key: self.arrays[f"{group}/{key}"][i] for key in keys} or None

        policy = self.rollout_policy()
        return np.stack([policy(row("obs", i), row("goal", i)) for i in range(ROWS)])

    def episode(self) -> None:
        obs, goal = self.observations(EPISODE), self.observations(group="goal")
        self.keep("rollout/obs/", obs)
        self.keep("rollout/goal/", goal)
        self.expected["rollout"] = "calls of RolloutPolicy after start_episode()"
        policy, actions, by_step = self.rollout_policy(), [], []
        for t in range(EPISODE):
            draws = Draws()
            with draws.recorded():
                frame = {k: x[t] for k, x in obs.items()}
                actions.append(policy(frame, dict(goal) or None))
            by_step.append(draws)
        self.keep("rollout/", {"action": np.stack(actions)})
        for i, values in enumerate(zip(*(draws.values for draws in by_step), strict=True)):
            self.keep("rollout/noise/", {str(i): np.stack(values)})
        self.expected["rollout_noise"] = by_step[0].meanings()

    def batch(self) -> dict[str, Any]:
        steps = self.config.train.seq_length
        batch: dict[str, Any] = {"obs": self.observations(BATCH, steps)}
        if "critic" in self.config.algo:
            batch["next_obs"] = self.observations(BATCH, steps)
            batch["rewards"] = np.float32(self.rng.random((BATCH, steps)))
            batch["dones"] = np.float32(self.rng.random((BATCH, steps)) < 0.2)
        batch["actions"] = np.tanh(self.draw(BATCH, steps, AC_DIM))
        if self.has_goal:
            batch["goal_obs"] = self.observations(BATCH, group="goal")
        return batch

    def train(self) -> None:
        from robomimic.utils.tensor_utils import to_tensor

        logs = []
        self.algo.set_train()
        for step in range(STEPS):
            batch = self.batch()
            for name, value in batch.items():
                values = value if isinstance(value, dict) else {"": value}
                self.keep(f"batch{step}/{name}" + "/" * isinstance(value, dict), values)
            batch = {k: self.normalized(x) if k.endswith("obs") else x for k, x in batch.items()}
            inputs = self.algo.process_batch_for_training(to_tensor(batch))
            draws = Draws()
            with draws.recorded():
                info = self.algo.train_on_batch(inputs, 1)
            logs.append({k: float(v) for k, v in self.algo.log_info(info).items()})
            self.keep_draws(f"batch{step}/noise/", draws)
            self.expected["train_noise"] = draws.meanings()
        key = "Loss" if "Loss" in logs[0] else "actor/loss"
        self.expected |= {
            "train_losses": [log[key] for log in logs],
            "train_loss_key": key,
            "train_logs": logs,
            "train_epoch": 1,
            "final_param_norms": {
                name: float(x.double().norm()) for name, x in self.algo.nets.state_dict().items()
            },
        }


def main() -> int:
    ROBOMIMIC.install()
    ROBOMIMIC.make_importable()
    folder, *parts = sys.argv[1:]
    for name, overrides in cases().items():
        if all(part in name for part in parts):
            Case(f"v030_{name}", overrides).record(Path(folder) / f"v030_{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
