"""A recording of robomimic (``tests/golden/README.md`` describes the format), and what offrl
computes from the same weights and inputs, by the names that robomimic's outputs have there.
"""

import json
import re
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from unittest import mock

import numpy as np
import torch
from replay import Draw, Replay

from offrl import policy_from_checkpoint
from offrl.algos import HierarchicalAlgo, PlannerAlgo
from offrl.models.denoisers import Denoiser
from offrl.models.heads import EVAL_STD
from offrl.models.vae import VAE
from offrl.normalize import Normalizer
from offrl.robomimic.weights import weights_to_robomimic
from offrl.specs import with_goal
from offrl.tree import gather, map_leaves

NOISE = r"(\w+_)?noise/"
INPUTS = "obs|goal|target_subgoal|given_subgoal|seq_obs"
GIVEN = "z|actions|noise|timesteps|initial_noise|ddim_timesteps"  # without a name below them


def joined(model):
    """All weights; of an algorithm that is made of others as ``part:name``."""
    if "nets" in model:
        return model["nets"] | {f"ema:{key}": x for key, x in (model.get("ema") or {}).items()}
    return {f"{name}:{key}": x for name, part in model.items() for key, x in joined(part).items()}


def exported(algo):
    """The same, of an algorithm of offrl's."""
    if not hasattr(algo, "parts"):
        with algo.trained_weights():
            weights = weights_to_robomimic(algo.nets)
        if "ema" in algo.serialize():
            algo.set_eval()
            weights |= {f"ema:{key}": x for key, x in weights_to_robomimic(algo.nets).items()}
        return weights
    parts = algo.parts.items()
    return {f"{name}:{key}": x for name, part in parts for key, x in exported(part).items()}


def leaves(algo):
    """The algorithms that have networks of their own."""
    parts = getattr(algo, "parts", {}).values()
    return [leaf for part in parts for leaf in leaves(part)] or [algo]


class Recording:
    def __init__(self, folder):
        self.expected = json.loads((folder / "expected.json").read_text())
        self.config = json.loads((folder / "config.json").read_text())
        with np.load(folder / "io.npz") as arrays:
            self.arrays = {name: torch.tensor(array) for name, array in arrays.items()}
        path = folder / "model.pth"
        given = torch.load(path, weights_only=True) if path.exists() else self._rebuilt()
        self.weights = joined(given["model"])
        content = self._counted(given)
        self.policy, _ = policy_from_checkpoint(ckpt_dict=content, device="cpu")
        self.algo = self.policy.policy
        self.policy.batch_size = 1  # as robomimic's

    def _rebuilt(self):
        """A checkpoint that is too large to be stored."""
        recipe = self.expected["state_dict_recipe"].items()
        weights = {
            name: torch.from_numpy(
                np.random.RandomState(how["seed"]).standard_normal(how["shape"]).astype(np.float32)
                * np.float32(how["scale"])
                + np.float32(how["offset"])
            )
            for name, how in recipe
        }
        shapes = {key: list(x.shape[2:]) for key, x in self.nested("obs/").items()}
        identity = {"scale": [[1.0]], "offset": [[0.0]]}
        return {
            "model": {"nets": weights, "ema": weights},
            "config": json.dumps(self.config),
            "algo_name": self.expected["algo"],
            "action_normalization_stats": {"actions": identity},
            "shape_metadata": {"all_shapes": shapes, "ac_dim": self.arrays["actions"].shape[-1]},
        }

    def _counted(self, content):
        """Schedules count as many steps in an epoch as the recording's did."""
        config = json.loads(content["config"])
        optimizers = config["algo"].get("optim_params", {}).values()
        for num in filter(None, (x.get("num_train_batches") for x in optimizers)):
            config["experiment"]["epoch_every_n_steps"] = num
        return content | {"config": json.dumps(config)}

    # -- what is recorded -------------------------------------------------------------------------

    def under(self, prefix):
        """The arrays by their names without the prefix."""
        n = len(prefix)
        return {name[n:]: x for name, x in self.arrays.items() if name.startswith(prefix)}

    def nested(self, prefix):
        tree = {}
        for key, array in self.under(prefix).items():
            *groups, name = key.split("/")
            branch = tree
            for group in groups:
                branch = branch.setdefault(group, {})
            branch[name] = array
        return tree

    def outputs_under(self, prefix):
        """The names of outputs: all that is neither given nor drawn."""
        given = rf"{NOISE}|.+/{NOISE}|(raw_)?({INPUTS})(_normalized)?/|initial_noise$"
        return {name for name in self.under(prefix) if not re.match(given, name)}

    def draws(self, prefix, step=None):
        """The recorded random numbers, in their order; for a ``step`` of an episode either
        ``<step>/<index>`` or that row of each."""
        found = {}
        for name, values in self.under(prefix).items():
            if match := re.fullmatch(rf"({NOISE})(\d+/)?(\d+)", name):
                folder, _, at, index = match.groups()
                if at is None and step is not None:
                    values = values[step]
                if at in (None, f"{step}/"):
                    found[int(index)] = folder, values
        told = re.sub(r"batch\d+/", "train/", prefix).split("/")[0] + "_noise"
        draws = []
        for index, (folder, values) in sorted(found.items()):
            about = self.expected.get(folder[:-1], self.expected.get(told, []))
            about = next((noise for noise in about if noise["index"] == index), {})
            source, meaning = about.get("source", ""), about.get("meaning", "")
            if not re.search(r"ignore|unused|not used", meaning):
                draws.append(Draw.recorded(values, source, meaning))
        return draws

    # -- inputs -----------------------------------------------------------------------------------

    @property
    def obs(self):
        return self._with_time(self._normalized("obs"))

    @property
    def goal(self):
        return self._normalized("goal") or None

    def _normalized(self, group):
        """With the normalised in place of what was; images are processed here."""
        keys = self.algo.obs_spec.groups.get(group, {})
        normalized = self.nested(f"{group}_normalized/")
        vectors = {k: x for k, x in normalized.items() if len(keys[k].shape) == 1}
        return self.nested(f"{group}/") | vectors

    def _with_time(self, obs):
        """``[N, T, ...]``; recorded without time where there is none."""
        keys = self.algo.obs_spec.groups["obs"].items()
        return {k: obs[k] if obs[k].ndim > len(s.shape) + 1 else obs[k][:, None] for k, s in keys}

    @property
    def acts_with_low_noise(self):
        config = self.config["algo"]
        if config.get("actor", {}).get("net"):
            net = config["actor"]["net"]
            return (net["common"] | net[net["type"]]).get("low_noise_eval", True)
        config = config.get("action_sampler", config)
        head = "gmm" if config.get("gmm", {}).get("enabled") else "gaussian"
        return config.get(head, {}).get("low_noise_eval", True)

    # -- outputs ----------------------------------------------------------------------------------

    @contextmanager
    def unnormalized(self):
        """Inputs and outputs are what networks see and return."""
        algos = [self.algo, *leaves(self.algo)]
        before = [(algo.obs_normalizer, algo.action_normalizer) for algo in algos]
        for algo in algos:
            algo.obs_normalizer = algo.action_normalizer = Normalizer()
        try:
            yield
        finally:
            for algo, normalizers in zip(algos, before, strict=True):
                algo.obs_normalizer, algo.action_normalizer = normalizers

    @contextmanager
    def _closed_loop(self):
        """Every step of a window is given as the network sees it."""
        trunks = [net for net in self.algo.nets.modules() if getattr(net, "open_loop", False)]
        for trunk in trunks:
            trunk.open_loop = False
        try:
            yield
        finally:
            for trunk in trunks:
                trunk.open_loop = True

    def outputs(self, split):
        """What offrl knows of the names under ``split``: ``{name: values}``, or a distribution
        where robomimic's value is a sample of it."""
        names = self.outputs_under(f"{split}/")
        self.algo.set_eval()
        with torch.no_grad(), self.unnormalized(), self._closed_loop():
            known = self._values() | self._kind()(split)
            found = {name: known[name]() for name in names & known.keys()}
        if "network_action" in names and "action" in found:
            found["network_action"] = found["action"]
            found["action"] = self.algo.raw_action(found["action"].flatten(0, -2))
        for name in names & {"rollout_policy_action", "action_from_unnormalised_obs"}:
            found[name] = self._policy_actions()
        return found

    def _values(self):
        """Critics, their targets, values of states, targets of actors."""
        nets, obs, goal = self.algo.nets, self.obs, self.goal
        known = {}
        for prefix, net in (("q", "critic"), ("q_target", "critic_target")):
            for i in range(nets[net].num_critics if net in nets else 0):
                known[f"{prefix}{i}"] = lambda net=net, i=i: nets[net](obs, self._given(), goal)[i]
        if "critic" in nets:
            is_stacked = self.config["train"].get("frame_stack", 1) > 1
            now = obs if is_stacked else map_leaves(lambda x: x[:, 0], obs)
            known["v"] = known["state_value"] = lambda: self.algo.get_state_value(now, goal)
        if "actor_target" in nets:
            known["action_target"] = lambda: nets["actor_target"](obs, goal)[0].mode()
        return known

    def _given(self, name="actions"):
        given = self.arrays[name]
        return given if given.ndim == 3 else given[:, None]

    def _kind(self):
        if isinstance(self.algo, HierarchicalAlgo):
            return self._levels
        return self._subgoals if isinstance(self.algo, PlannerAlgo) else self._actions

    def _levels(self, split):
        """The planner's subgoals, and what the actor does with given ones."""
        planner, actor = self.algo.parts["planner"], self.algo.parts["actor"]

        def subgoal(key):
            with Replay(self.draws(f"{split}/")):
                now = map_leaves(lambda x: x[:, 0], self.obs)
                return planner.get_subgoal_predictions(now, self.goal)[key]

        def actions():
            obs = actor.prepare_obs(self.nested("seq_obs/"))
            goal = actor.prepare_obs(self.nested("given_subgoal/"), "goal")
            return actor.nets["policy"](obs, goal)[0].mode()

        keys = self.algo.obs_spec.keys("subgoal")
        known = {f"subgoal/{key}": lambda key=key: subgoal(key) for key in keys}
        return known | {"actor_action_seq": actions}

    def _subgoals(self, split):
        """Proposals; of a VAE also what it makes of the recorded subgoals and latents."""
        net = self.algo.nets["goal_network"]
        obs, goal = self.algo.prepare_obs(self.obs), self.algo.prepare_obs(self.goal, "goal")
        known = {}
        if isinstance(net, VAE):
            given = map_leaves(lambda x: x[:, None], self.nested("target_subgoal/"))
            known = self._vae(net, with_goal(obs, goal), f"{split}/", given)

        def subgoal(key):
            if "z" in self.arrays:
                return net.decoder(obs, given=self._given("z"))[0][key]
            with Replay(self.draws(f"{split}/")):
                now = map_leaves(lambda x: x[:, 0], self.obs)
                return self.algo.get_subgoal_predictions(now, self.goal)[key]

        keys = self.algo.obs_spec.keys("subgoal")
        return known | {f"subgoal/{key}": lambda key=key: subgoal(key) for key in keys}

    def _denoised(self, net, split):
        """Noise is added, predicted from what the recorded is added to, and removed."""
        schedule, arrays = self.algo.schedule, self.arrays
        obs = self.algo.prepare_obs(self.obs)
        noisy = schedule.add_noise(*(arrays[name] for name in ("actions", "noise", "timesteps")))

        def noise_pred():
            weights = nullcontext() if split.endswith("ema") else self.algo.trained_weights()
            with weights:
                return net(noisy, arrays["timesteps"], net.encoder(obs))

        def ddim_action():
            with Replay([Draw.recorded(arrays["initial_noise"], "torch.randn")]):
                chunk = self.algo.chunk(self.obs)
            assert torch.equal(self.algo.sampler.timesteps, arrays["ddim_timesteps"])
            return chunk[:, : self.algo.algo_config.horizon.action_horizon]

        return {
            "noisy_actions": lambda: noisy,
            "obs_cond": lambda: net.encoder(obs).flatten(1),
            "noise_pred": noise_pred,
            "ddim_action": ddim_action,
            "alphas_cumprod": lambda: schedule.alphas_cumprod,
        }

    def _actions(self, split):
        nets = self.algo.nets
        if "policy" in nets and isinstance(nets["policy"], Denoiser):
            return self._denoised(nets["policy"], split)
        if "action_sampler" not in nets:
            return self._policy(nets["policy" if "policy" in nets else "actor"], split, f"{split}/")
        sampler = self._policy(nets["action_sampler"], split, f"{split}/sampler/")
        sampler = {f"sampler/{name}": value for name, value in sampler.items()}
        return sampler | self._proposals(f"{split}/")

    def _policy(self, net, split, prefix):
        obs, goal = self.algo.prepare_obs(self.obs), self.algo.prepare_obs(self.goal, "goal")
        if isinstance(net, VAE):
            return self._vae(net, with_goal(obs, goal), prefix)
        pi, state = net(obs, goal)
        acting = pi.low_noise() if self.acts_with_low_noise else pi
        if split.endswith("eval") and self.acts_with_low_noise and hasattr(pi, "std"):
            # robomimic's Gaussian has a small deviation then, too, though it acts by its mean.
            pi = replace(pi, std=torch.full_like(pi.std, EVAL_STD))
        known = {"action": lambda: self._action(acting, prefix)}
        if hasattr(pi, "std"):
            known |= {"mean": lambda: pi.mean, "scale": lambda: pi.std}
            known["log_prob"] = lambda: pi.log_prob(self._given())
        if hasattr(pi, "logits"):
            known["logits"] = lambda: pi.logits
        for name in "hc" if isinstance(state, dict) else "":
            known[f"final_state_{name}"] = lambda name=name: state[name].transpose(0, 1)
        return known

    def _action(self, pi, prefix):
        """The algorithm's own; of a distribution over sequences, or within BCQ, a sample."""
        draws = self.draws(prefix)
        is_random = hasattr(pi, "logits") or not self.acts_with_low_noise
        if is_random and hasattr(pi, "std") and not draws:
            return pi
        is_policys = "sampler" not in prefix and self.arrays[f"{prefix}action"].ndim == 2
        with Replay(draws):
            return self.algo.act(self.obs, self.goal)[0] if is_policys else pi.sample()

    def _vae(self, net, obs, prefix, given=None):
        """The posterior of what was recorded; the decoder for the recorded latents, or for those
        that the recorded numbers draw from the prior."""
        given = self._given() if given is None else given
        known = {
            f"encoder_{name}": lambda name=name: net.posterior(obs, given=given)[0][name]
            for name in net.prior.posterior_shapes
        }
        if net.prior.learn:
            n = len(next(iter(obs.values())))
            prior = net.prior.parameters_for(obs)
            prior = {name: x.expand(n, *x.shape[1:]) for name, x in prior.items()}
            known |= {f"prior_{name}": lambda x=x: x for name, x in prior.items()}

        def action():
            if "z" in self.arrays:
                return net.decoder(obs, given=self._given("z"))[0].mode()
            return sampled_action()

        def sampled_action():
            with Replay(self.draws(prefix)):
                return net.sample(obs)[0]

        def kl_loss():
            posterior, _ = net.posterior(obs, given=given)
            z = self._given("z") if "z" in self.arrays else None
            prior = net.prior.parameters_for(obs)
            return net.prior.losses(posterior, z, prior, temperature=1.0)["kl"].mean()

        known |= {"action": action, "decoder_output": action, "kl_loss": kl_loss}
        return known | {"sampled_action": sampled_action}

    def _proposals(self, prefix):
        """BCQ: perturbed actions, proposals, and the choice between them."""
        algo, nets, obs, goal = self.algo, self.algo.nets, self.obs, self.goal
        known = {
            name: lambda net=net: nets[net](obs, self._given(), goal)
            for name, net in (
                ("perturbed_action", "actor"),
                ("perturbed_action_target", "actor_target"),
            )
        }
        draws = self.draws(prefix)
        if draws or "candidates" not in self.outputs_under(prefix):
            with (
                Replay(draws),
                mock.patch.object(nets["critic"], "first", wraps=nets["critic"].first) as first,
            ):
                value, action = algo.best_action(algo.prepare(obs, goal))
            candidates = first.call_args.args[1]
        else:
            candidates = self.arrays[f"{prefix}candidates"]
            value, best = nets["critic"].first(obs, candidates, goal).max(1, keepdim=True)
            action = candidates.take_along_dim(best[..., None], dim=1)
        known |= {"candidates": lambda: candidates}
        return known | {"action": lambda: action, "state_value": lambda: value}

    # -- episodes ---------------------------------------------------------------------------------

    def _policy_actions(self):
        """Of ``RolloutPolicy`` for raw observations: for each row, the last of its frames."""
        keys, actions = self.algo.obs_spec.groups["obs"], []
        for i in range(len(next(iter(self.nested("obs/").values())))):
            frames, goal = (
                {k: x[i] for k, x in self.nested(f"{group}/").items()} for group in ("obs", "goal")
            )
            frames = {k: x if x.ndim > len(keys[k].shape) else x[None] for k, x in frames.items()}
            actions.append(self._episode(frames, lambda t, goal=goal: goal)["action"][-1])
        return torch.stack(actions)

    def episode(self):
        """What offrl knows of the names under ``rollout/``: ``[T, ...]`` each, or a distribution as
        ``outputs``. Of a mixture without its random numbers: the distributions themselves."""
        names = self.outputs_under("rollout/")
        if "dist/mean" not in names or self.draws("rollout/", 0):
            groups = "raw_obs", "obs", "obs_normalized"
            obs = next(filter(None, (self.nested(f"rollout/{group}/") for group in groups)))
            found = self._episode(obs, self._goal_at, "rollout/")
        else:
            found = {}
        if "dist/mean" in names:
            pi = self._distributions()
            parts = {"dist/mean": pi.mean, "dist/scale": pi.std, "dist/logits": pi.logits}
            now = 0 if self.config["algo"]["transformer"].get("pred_future_acs") else -1
            found = parts | {"action": pi.at(now)} | found
        return {name: found[name] for name in names & found.keys()}

    def _goal_at(self, t):
        """Recorded for every step, or one for all."""
        goal = self.nested("rollout/goal/") or self.nested("goal/")
        steps = len(self.arrays["rollout/action"])
        keys = self.algo.obs_spec.groups.get("goal", {})
        rows = {k: x if x.ndim > len(keys[k].shape) else x[None] for k, x in goal.items()}
        return {k: x[t if len(x) == steps else 0] for k, x in rows.items()}

    def _episode(self, obs, goal_at, prefix=None):
        """Actions for observations ``{key: [T, ...]}``, with and without normalisation undone."""
        self.policy.start_episode()
        actions, network_actions, subgoals = [], [], []
        for t in range(len(next(iter(obs.values())))):
            frame, goal = (
                {k: x.numpy() for k, x in tree.items()}
                for tree in (
                    {k: x[t] for k, x in obs.items()},
                    goal_at(t),
                )
            )
            frame = {k: self._newest(k, x) for k, x in frame.items()}
            with (
                Replay(self._draws_of_step(prefix, t) if prefix else []),
                mock.patch.object(self.algo, "raw_action", wraps=self.algo.raw_action) as raw,
            ):
                actions.append(torch.from_numpy(self.policy(frame, goal or None)))
            network_actions.append(raw.call_args.args[0][0])
            state = self.policy._episodes[0].state
            if isinstance(self.algo, HierarchicalAlgo):
                subgoals.append({f"subgoal/{key}": x[0] for key, x in state["subgoal"].items()})
        found = {"action": torch.stack(actions), "network_action": torch.stack(network_actions)}
        return found | (gather(torch.stack, subgoals) if subgoals else {})

    def _newest(self, key, value):
        """Of stacked frames; others are one."""
        return value[-1] if value.ndim > len(self.algo.obs_spec.groups["obs"][key].shape) else value

    def _draws_of_step(self, prefix, t):
        """``initial_noise`` of the ``prefix`` is that of all chunks."""
        noise = self.arrays.get(f"{prefix}initial_noise")
        if noise is None:
            return self.draws(prefix, t)
        chunk, step = divmod(t, self.config["algo"]["horizon"]["action_horizon"])
        return [Draw.recorded(noise[chunk][None], "torch.randn")] if step == 0 else []

    def _distributions(self):
        """What each step's action was drawn from, ``[T, frames, ...]``."""
        obs = self.nested("rollout/obs/") or self.nested("rollout/obs_normalized/")
        obs, state, found = self._with_time(obs), None, []
        for t in range(len(self.arrays["rollout/action"])):
            frame = {k: x[t : t + 1] for k, x in obs.items()}
            goal = {k: x[None] for k, x in self._goal_at(t).items()} or None
            pi, state = self.algo.action_distribution(frame, goal, state)
            found.append(pi.low_noise() if self.acts_with_low_noise else pi)
        parts = (torch.cat([getattr(pi, f.name) for pi in found]) for f in fields(found[0]))
        return type(found[0])(*parts)
