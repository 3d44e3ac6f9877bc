"""Flip the sign of every loss term in turn: each flip must fail a test.

    python tests/sign_flips.py [-m MARKS] [PART OF A TERM'S NAME ...]

The flips are made, one after the other, in a copy of the repository, where the tests named beside
each run; with ``-m "not thorough"``, only those of them that ``make test`` selects. Exits with 1 if
a flip survives, or if a line that is to be flipped is no longer there. Takes some minutes.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).parents[1]
GOLDEN = "tests/test_golden.py"
LEARNING, TERMS = "tests/algos/test_learning.py", "tests/algos/test_terms.py"
GOALS = "tests/algos/test_goal_learning.py"
GRADIENTS, RETURNS = "tests/algos/test_policy_gradient.py", "tests/algos/test_returns.py"
ONLINE = "tests/algos/test_online_targets.py"
FROM_DEMOS = "tests/online/test_from_demonstrations.py"
MODES = "tests/algos/test_modes.py"
DAGGER, IMITATION = "tests/online/test_dagger.py", "tests/online/test_imitation.py"
OUTPUT = "output.txt"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # forks have no others
SLOW_TO_IMPORT = ("cloudpickle", "gymnasium", "h5py", "hypothesis", "pydantic", "torch", "yaml")


@dataclass
class Flip:
    """A term: the file below ``offrl``, a line of it, the same flipped, and the tests' ``-k``."""

    term: str
    file: str
    line: str
    flipped: str
    tests: str
    only: str


FLIPS = [
    Flip(
        "diffusion and flow, error",
        "algos/shared/denoising.py",
        "(predicted - target).square()",
        "-(predicted - target).square()",
        MODES,
        "unet",
    ),
    Flip(
        "act, error",
        "algos/act.py",
        "loss = l1 + self",
        "loss = -l1 + self",
        MODES,
        "act",
    ),
    Flip(
        "act, divergence",
        "algos/act.py",
        "l1 + self.algo_config.kl_weight * kl",
        "l1 - self.algo_config.kl_weight * kl",
        MODES,
        "act",
    ),
    Flip(
        "vq_bet, reconstruction",
        "algos/vq_bet.py",
        "loss = error + masked_mean(codebook",
        "loss = -error + masked_mean(codebook",
        MODES,
        "vq_bet",
    ),
    Flip(
        "vq_bet, codes",
        "algos/vq_bet.py",
        "loss = focal + config",
        "loss = -focal + config",
        MODES,
        "vq_bet",
    ),
    Flip(
        "vq_bet, offsets",
        "algos/vq_bet.py",
        "+ config.offset_weight * offset",
        "- config.offset_weight * offset",
        MODES,
        "vq_bet",
    ),
    Flip(
        "bc, likelihood",
        "models/heads.py",
        "return -self.log_prob(actions)",
        "return self.log_prob(actions)",
        GOLDEN,
        "bc_gmm",
    ),
    Flip(
        "bc, squared error",
        "algos/bc.py",
        "loss = sum(weighted[1:], weighted[0])",
        "loss = -sum(weighted[1:], weighted[0])",
        GOLDEN,
        "bc_goal",
    ),
    Flip(
        "dt, cloning",
        "algos/dt.py",
        'loss = masked_mean(pi.loss(pi.LOSSES[0], batch["actions"]), batch["pad_mask"])',
        'loss = -masked_mean(pi.loss(pi.LOSSES[0], batch["actions"]), batch["pad_mask"])',
        "tests/algos/test_dt.py",
        "asking",
    ),
    Flip(
        "fqe, target",
        "algos/shared/td.py",
        'return batch["rewards"] + batch["discounts"] * value',
        'return batch["rewards"] - batch["discounts"] * value',
        "tests/evaluation/test_proxies.py",
        "fitted",
    ),
    Flip(
        "vae, divergence",
        "models/vae.py",
        "return 0.5 * (mean.square() + logvar.exp() - logvar - 1).sum(-1)",
        "return -0.5 * (mean.square() + logvar.exp() - logvar - 1).sum(-1)",
        GOLDEN,
        "bc_vae",
    ),
    Flip(
        "gl, regression",
        "algos/gl.py",
        "torch.stack([*errors.values()]).sum()",
        "-torch.stack([*errors.values()]).sum()",
        GOLDEN,
        "gl",
    ),
    Flip(
        "gl, reconstruction",
        "algos/bc.py",
        'return terms["reconstruction"] + config.kl_weight * terms["kl"], terms',
        'return config.kl_weight * terms["kl"] - terms["reconstruction"], terms',
        "tests/algos/test_gl.py",
        "draws_each",
    ),
    Flip(
        "gl, divergence",
        "algos/bc.py",
        'return terms["reconstruction"] + config.kl_weight * terms["kl"], terms',
        'return terms["reconstruction"] - config.kl_weight * terms["kl"], terms',
        "tests/algos/test_gl.py",
        "draws_each",
    ),
    Flip(
        "iris, best subgoal",
        "algos/iris.py",
        "best = values.view(-1, num).argmax(1)",
        "best = values.view(-1, num).argmin(1)",
        "tests/algos/test_hierarchies.py",
        "highest_value",
    ),
    Flip(
        "td error",
        "algos/shared/td.py",
        "return each.mean((1, 2))",
        "return -each.mean((1, 2))",
        LEARNING,
        "iql",
    ),
    Flip(
        "bcq, sampler",
        "algos/bc.py",
        'return terms["reconstruction"] + config.kl_weight * terms["kl"], terms',
        'return config.kl_weight * terms["kl"] - terms["reconstruction"], terms',
        GOLDEN,
        "bcq",
    ),
    Flip(
        "bcq, perturbation",
        "algos/bcq.py",
        'return -self.nets["critic"].first(obs,',
        'return self.nets["critic"].first(obs,',
        GOLDEN,
        "bcq",
    ),
    Flip(
        "bcq, target",
        "algos/shared/td.py",
        "value = self.pessimistic(next_q).amax(1, keepdim=True)",
        "value = -self.pessimistic(next_q).amax(1, keepdim=True)",
        LEARNING,
        "bcq",
    ),
    Flip(
        "iql, expectile",
        "algos/iql.py",
        "torch.where(error > 0, expectile, 1 - expectile)",
        "torch.where(error < 0, expectile, 1 - expectile)",
        LEARNING,
        "iql",
    ),
    Flip(
        "iql, actor",
        "algos/iql.py",
        "pi_loss = -(weight * log_pi).mean()",
        "pi_loss = (weight * log_pi).mean()",
        GOLDEN,
        "iql",
    ),
    Flip(
        "iql, advantage",
        "algos/iql.py",
        "advantage = q - v.detach()",
        "advantage = v.detach() - q",
        LEARNING,
        "iql",
    ),
    Flip(
        "xql, value",
        "algos/xql.py",
        "gumbel_loss(error / self",
        "gumbel_loss(-error / self",
        LEARNING,
        "xql",
    ),
    Flip(
        "xql, linear part",
        "algos/xql.py",
        "- z * (-largest).exp()",
        "+ z * (-largest).exp()",
        TERMS,
        "gumbel",
    ),
    Flip(
        "edac, similarity",
        "algos/edac.py",
        "losses = losses + self.algo_config.eta",
        "losses = losses - self.algo_config.eta",
        TERMS,
        "edac",
    ),
    Flip(
        "rebrac, critic's penalty",
        "algos/rebrac.py",
        "return super().next_value(batch, next_actions) - penalty",
        "return super().next_value(batch, next_actions) + penalty",
        TERMS,
        "rebrac",
    ),
    Flip(
        "rebrac, cloning",
        "algos/rebrac.py",
        "return self.algo_config.actor.bc_coef * (actions",
        "return -self.algo_config.actor.bc_coef * (actions",
        TERMS,
        "rebrac",
    ),
    Flip(
        "cal_ql, calibration",
        "algos/cal_ql.py",
        "torch.maximum(policy",
        "torch.minimum(policy",
        TERMS,
        "cal_ql",
    ),
    Flip(
        "td3_bc, value",
        "algos/td3_bc.py",
        'self.cloning(actions, batch["actions"]) - self.algo_config.alpha * value',
        'self.cloning(actions, batch["actions"]) + self.algo_config.alpha * value',
        LEARNING,
        "td3_bc",
    ),
    Flip(
        "td3_bc, cloning",
        "algos/td3_bc.py",
        'self.cloning(actions, batch["actions"]) - self.algo_config.alpha * value',
        '-self.cloning(actions, batch["actions"]) - self.algo_config.alpha * value',
        GOLDEN,
        "td3_bc",
    ),
    Flip(
        "sac, policy's value",
        "algos/sac_n.py",
        "return (alpha * log_pi - q).mean(), log_pi",
        "return (alpha * log_pi + q).mean(), log_pi",
        LEARNING,
        "sac_n",
    ),
    Flip(
        "sac, policy's entropy",
        "algos/sac_n.py",
        "return (alpha * log_pi - q).mean(), log_pi",
        "return (-alpha * log_pi - q).mean(), log_pi",
        GOLDEN,
        "cql",
    ),
    Flip(
        "sac, entropy's weight",
        "algos/sac_n.py",
        'surplus = -(log_pi.detach() + self.target_entropy(batch["obs"]))',
        'surplus = log_pi.detach() + self.target_entropy(batch["obs"])',
        GOLDEN,
        "cql",
    ),
    Flip(
        "cql, gap",
        "algos/cql.py",
        "gap = config.min_q_weight * (soft_maximum - q_data.mean((1, 2)))",
        "gap = -config.min_q_weight * (soft_maximum - q_data.mean((1, 2)))",
        GOLDEN,
        "cql",
    ),
    Flip(
        "awac, actor",
        "algos/awac.py",
        'pi_loss = -(weight * pi.log_prob(batch["actions"])).mean()',
        'pi_loss = (weight * pi.log_prob(batch["actions"])).mean()',
        LEARNING,
        "awac",
    ),
    Flip(
        "awac, advantage",
        "algos/awac.py",
        "return q.detach().amin(0) - v",
        "return v - q.detach().amin(0)",
        LEARNING,
        "awac",
    ),
    Flip(
        "crr, advantage",
        "algos/crr.py",
        "return (advantage > 0).float()",
        "return (advantage < 0).float()",
        LEARNING,
        "crr",
    ),
    Flip(
        "plas, sampler",
        "algos/bc.py",
        'return terms["reconstruction"] + config.kl_weight * terms["kl"], terms',
        'return config.kl_weight * terms["kl"] - terms["reconstruction"], terms',
        LEARNING,
        "plas",
    ),
    Flip(
        "plas, actor",
        "algos/plas.py",
        'pi_loss = -self.nets["critic"].first(',
        'pi_loss = self.nets["critic"].first(',
        LEARNING,
        "plas",
    ),
    Flip(
        "categorical, likelihood",
        "models/heads.py",
        "return (self.log_probs * actions).sum(-1)",
        "return -(self.log_probs * actions).sum(-1)",
        LEARNING,
        "discrete_cloning",
    ),
    Flip(
        "ddqn, target",
        "algos/shared/td.py",
        'return batch["rewards"] + batch["discounts"] * value',
        'return batch["rewards"] - batch["discounts"] * value',
        LEARNING,
        "ddqn",
    ),
    Flip(
        "ddqn, next action",
        "algos/shared/action_values.py",
        "best = scores.argmax(-1, keepdim=True)",
        "best = scores.argmin(-1, keepdim=True)",
        LEARNING,
        "ddqn",
    ),
    Flip(
        "td3, actor",
        "algos/td3.py",
        'return -self.nets["critic"].first(batch["obs"], actions).mean()',
        'return self.nets["critic"].first(batch["obs"], actions).mean()',
        ONLINE,
        "climbs",
    ),
    Flip(
        "td3, target",
        "algos/td3.py",
        'return batch["rewards"] + batch["discounts"] * self.next_value',
        'return batch["rewards"] - batch["discounts"] * self.next_value',
        ONLINE,
        "deterministic",
    ),
    Flip(
        "dqn, least of the critics",
        "algos/shared/td.py",
        "return q.amin(0) if weight == 1",
        "return q.amax(0) if weight == 1",
        ONLINE,
        "dqn_targets",
    ),
    Flip(
        "dqn, dueling",
        "models/critics.py",
        "return value + advantage - advantage.mean(2, keepdim=True)",
        "return value - advantage + advantage.mean(2, keepdim=True)",
        ONLINE,
        "dueling",
    ),
    Flip(
        "dqn, exploration",
        "algos/dqn.py",
        "explores = chance < self._share_of_random_actions(seen.num_steps)",
        "explores = chance > self._share_of_random_actions(seen.num_steps)",
        ONLINE,
        "by_chance",
    ),
    Flip(
        "c51, divergence",
        "algos/shared/distributional.py",
        "divergence = -(target * log_p).sum(-1) - entropy",
        "divergence = (target * log_p).sum(-1) + entropy",
        ONLINE,
        "errors_of_its_samples",
    ),
    Flip(
        "discrete_sac, expectation",
        "algos/discrete_sac.py",
        "log_pi = pi.logits[:, 0].log_softmax(-1)",
        "log_pi = (-pi.logits[:, 0]).log_softmax(-1)",
        ONLINE,
        "discrete_sac_expects",
    ),
    Flip(
        "forbidden actions",
        "algos/shared/masks.py",
        "scores.masked_fill(~mask, FORBIDDEN)",
        "scores.masked_fill(mask, FORBIDDEN)",
        ONLINE,
        "forbidden",
    ),
    Flip(
        "crr, exponential",
        "algos/crr.py",
        "(advantage / config.beta).exp()",
        "(-advantage / config.beta).exp()",
        TERMS,
        "crr",
    ),
    Flip(
        "sac, entropy in targets",
        "algos/sac_n.py",
        "else q - self.alpha * log_pi",
        "else q + self.alpha * log_pi",
        TERMS,
        "sac",
    ),
    Flip(
        "rlpd, target",
        "algos/rlpd.py",
        "return q[drawn].amin(0)",
        "return q[drawn].amax(0)",
        FROM_DEMOS,
        "least_of_two",
    ),
    Flip(
        "residual, base",
        "models/heads.py",
        "(self.base + self.scale * squashed)",
        "(self.scale * squashed - self.base)",
        FROM_DEMOS,
        "added_to_a_policy",
    ),
    Flip(
        "discrete_bcq, imitation",
        "algos/discrete_bcq.py",
        'nll = -pi.log_prob(batch["actions"]).mean()',
        'nll = pi.log_prob(batch["actions"]).mean()',
        LEARNING,
        "discrete_bcq",
    ),
    Flip(
        "discrete_bcq, logits",
        "algos/discrete_bcq.py",
        "loss = nll + self.algo_config.logit_weight",
        "loss = nll - self.algo_config.logit_weight",
        TERMS,
        "discrete_bcq",
    ),
    Flip(
        "discrete_bcq, threshold",
        "algos/discrete_bcq.py",
        "excluded = ratio < self.algo_config.threshold",
        "excluded = ratio > self.algo_config.threshold",
        LEARNING,
        "discrete_bcq",
    ),
    Flip(
        "discrete_cql, gap",
        "algos/discrete_cql.py",
        "return self.algo_config.alpha * gap",
        "return -self.algo_config.alpha * gap",
        LEARNING,
        "discrete_cql",
    ),
    Flip(
        "discrete_cql, td error",
        "algos/discrete_cql.py",
        "* gap + self.td_losses(q_data, target, weights)",
        "* gap - self.td_losses(q_data, target, weights)",
        LEARNING,
        "discrete_cql",
    ),
    Flip(
        "goals, rewards",
        "data/windows.py",
        'batch["rewards"] = (rows == starting).float() - 1',
        'batch["rewards"] = 1 - (rows == starting).float()',
        GOALS,
        "next_obs-iql",
    ),
    Flip(
        "hiql, value target",
        "algos/hiql.py",
        'target = batch["rewards"] + batch["discounts"] * later',
        'target = batch["rewards"] - batch["discounts"] * later',
        GOALS,
        "next_obs-hiql",
    ),
    Flip(
        "hiql, advantage of subgoals",
        "algos/hiql.py",
        'advantage = self.value(batch["waypoint_obs"], goal) - self.value(obs, goal)',
        'advantage = self.value(obs, goal) - self.value(batch["waypoint_obs"], goal)',
        GOALS,
        "next_obs-hiql",
    ),
    Flip(
        "hiql, likelihood of subgoals",
        "algos/hiql.py",
        "log_prob = -0.5 * (predicted - phi).square().sum(-1)",
        "log_prob = 0.5 * (predicted - phi).square().sum(-1)",
        GOALS,
        "next_obs-hiql",
    ),
    Flip(
        "hiql, advantage of actions",
        "algos/hiql.py",
        'advantage = self.value(batch["following_obs"], subgoal) - now',
        'advantage = now - self.value(batch["following_obs"], subgoal)',
        GOALS,
        "next_obs-hiql",
    ),
    Flip(
        "hiql, cloning",
        "algos/hiql.py",
        "return -(self.algo_config.adv.weights(advantage) * log_prob).mean(), advantage",
        "return (self.algo_config.adv.weights(advantage) * log_prob).mean(), advantage",
        GOALS,
        "next_obs-hiql",
    ),
    Flip(
        "gae, value of the next state",
        "algos/shared/returns.py",
        "deltas = rewards + gamma * _next_values(values, terminated) - values",
        "deltas = rewards - gamma * _next_values(values, terminated) - values",
        RETURNS,
        "gae",
    ),
    Flip(
        "gae, value",
        "algos/shared/returns.py",
        "deltas = rewards + gamma * _next_values(values, terminated) - values",
        "deltas = rewards + gamma * _next_values(values, terminated) + values",
        RETURNS,
        "gae",
    ),
    Flip(
        "vtrace, targets",
        "algos/shared/returns.py",
        "return values + corrections, advantages",
        "return values - corrections, advantages",
        RETURNS,
        "vtrace",
    ),
    Flip(
        "vtrace, advantages",
        "algos/shared/returns.py",
        "advantages = rho * (rewards + gamma * (next_values + later) - values)",
        "advantages = rho * (rewards + gamma * (next_values - later) - values)",
        RETURNS,
        "vtrace",
    ),
    Flip(
        "reinforce, actor",
        "algos/reinforce.py",
        "return self.descend(-gain, value_loss",
        "return self.descend(gain, value_loss",
        GRADIENTS,
        "likelier and (reinforce or a2c)",
    ),
    Flip(
        "reinforce, value",
        "algos/reinforce.py",
        '(values - found["returns"]).square()',
        '-(values - found["returns"]).square()',
        GRADIENTS,
        "values_move and (reinforce or a2c)",
    ),
    Flip(
        "ppo, actor",
        "algos/ppo.py",
        "actor_loss = -torch.min(ratio * advantages, clipped * advantages).mean()",
        "actor_loss = torch.min(ratio * advantages, clipped * advantages).mean()",
        GRADIENTS,
        "likelier and ppo",
    ),
    Flip(
        "ppo, lesser gain",
        "algos/ppo.py",
        "actor_loss = -torch.min(ratio * advantages, clipped * advantages).mean()",
        "actor_loss = -torch.max(ratio * advantages, clipped * advantages).mean()",
        GRADIENTS,
        "likely_enough",
    ),
    Flip(
        "ppo, ratio",
        "algos/ppo.py",
        'log_ratio = log_probs - batch["log_probs"]',
        'log_ratio = batch["log_probs"] - log_probs',
        GRADIENTS,
        "likelier and ppo",
    ),
    Flip(
        "ppo, value",
        "algos/ppo.py",
        'return (values - batch["returns"]).square().mean()',
        'return -(values - batch["returns"]).square().mean()',
        GRADIENTS,
        "values_move and ppo",
    ),
    Flip(
        "impala, actor",
        "algos/impala.py",
        "return self.descend(-gain, value_loss",
        "return self.descend(gain, value_loss",
        GRADIENTS,
        "likelier and impala",
    ),
    Flip(
        "impala, value",
        "algos/impala.py",
        "(targets - values).square()",
        "-(targets - values).square()",
        GRADIENTS,
        "values_move and impala",
    ),
    Flip(
        "impala, ratio",
        "algos/impala.py",
        'log_ratios = log_probs - batch["log_probs"]',
        'log_ratios = batch["log_probs"] - log_probs',
        GRADIENTS,
        "present_policy",
    ),
    Flip(
        "policy gradient, value",
        "algos/shared/policy_gradient.py",
        "loss = actor_loss + config.vf_coef * value_loss",
        "loss = actor_loss - config.vf_coef * value_loss",
        GRADIENTS,
        "values_move and ppo",
    ),
    Flip(
        "policy gradient, entropy",
        "algos/shared/policy_gradient.py",
        "loss = loss - config.ent_coef * entropy",
        "loss = loss + config.ent_coef * entropy",
        GRADIENTS,
        "entropys and ppo",
    ),
    Flip(
        "entropy of choices",
        "models/heads.py",
        "return -(self.log_probs.exp() * self.log_probs).sum(-1)",
        "return (self.log_probs.exp() * self.log_probs).sum(-1)",
        GRADIENTS,
        "entropys and ppo",
    ),
    Flip(
        "dagger, who acts",
        "online/apprentice.py",
        "is_led = torch.rand(len(raw)).numpy() < share",
        "is_led = torch.rand(len(raw)).numpy() >= share",
        DAGGER,
        "the_less_the_later",
    ),
    Flip(
        "dagger, who is learned from",
        "online/apprentice.py",
        "self.alg.learned_action(torch.from_numpy(shown))",
        "self.alg.learned_action(torch.from_numpy(taken))",
        DAGGER,
        "better_than_cloning",
    ),
    Flip(
        "sqil, rewards",
        "algos/sqil.py",
        'rewards = batch["is_demo"].expand(',
        'rewards = (1 - batch["is_demo"]).expand(',
        IMITATION,
        "test_sqil_returns",
    ),
    Flip(
        "discrete_sqil, rewards",
        "algos/sqil.py",
        'rewards = batch["is_demo"].expand(',
        'rewards = (1 - batch["is_demo"]).expand(',
        IMITATION,
        "discrete_sqil_balances",
    ),
    Flip(
        "gail, own steps",
        "algos/gail.py",
        "loss = softplus(logits).mean() + softplus(-demo_logits).mean()",
        "loss = softplus(-logits).mean() + softplus(-demo_logits).mean()",
        IMITATION,
        "gail_does",
    ),
    Flip(
        "gail, demonstrations",
        "algos/gail.py",
        "loss = softplus(logits).mean() + softplus(-demo_logits).mean()",
        "loss = softplus(logits).mean() + softplus(demo_logits).mean()",
        IMITATION,
        "gail_does",
    ),
    Flip(
        "gail, smoothness",
        "algos/gail.py",
        "total = loss + self.algo_config.discriminator.gradient_penalty * penalty",
        "total = loss - self.algo_config.discriminator.gradient_penalty * penalty",
        IMITATION,
        "smooth",
    ),
    Flip(
        "gail, rewards",
        "algos/gail.py",
        '"positive": lambda logits: torch.nn.functional.softplus(logits),',
        '"positive": lambda logits: -torch.nn.functional.softplus(logits),',
        IMITATION,
        "gail_does",
    ),
]

# ``make test`` alone must find these.
THIRD = FLIPS[::3]


class Trials:
    """A copy of the repository, and a process that forks another for each call of pytest there.

    The process has imported what takes long, but nothing of offrl.
    """

    def __enter__(self) -> Trials:
        self.folder = Path(tempfile.mkdtemp())
        for name in ("offrl", "tests", "configs"):  # not what Python is about to rename
            ignored = shutil.ignore_patterns("*.pyc.*")
            shutil.copytree(ROOT / name, self.folder / name, ignore=ignored)
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(self.folder), **ONE_THREAD},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)  # with a test that does not end
        self.process.communicate()
        shutil.rmtree(self.folder)

    def passes(self, flip: Flip, marks: str = "") -> bool:
        """Whether its tests, of those with such ``marks``, pass in spite of the flip."""
        file = self.folder / "offrl" / flip.file
        text = file.read_text(encoding="utf-8")
        if text.count(flip.line) != 1:
            raise SystemExit(f"{flip.term}: {flip.file} has not one line {flip.line!r}")
        _write(file, text.replace(flip.line, flip.flipped))
        try:
            status = self._pytest(flip.tests, "-k", flip.only, "-m", marks)
        finally:
            _write(file, text)
        if status not in (0, 1, 5):  # 5: there is no such test
            raise SystemExit(f"{flip.term}: {(self.folder / OUTPUT).read_text()}")
        return status != 1

    def _pytest(self, *words: str) -> int:
        print(json.dumps(words), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())


def _write(file: Path, text: str) -> None:
    """Python takes code of the same second and size for the same: what it has compiled goes."""
    file.write_text(text, encoding="utf-8")
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)


def _serve() -> None:
    """For each line, the words of a call of pytest, its exit status."""
    for name in SLOW_TO_IMPORT:
        importlib.import_module(name)
    for plugin in entry_points(group="pytest11"):
        plugin.load()
    import pytest

    assert not any(name.startswith("offrl") for name in sys.modules)
    gc.freeze()  # what is here already is not looked through in each process
    for line in sys.stdin:
        if child := os.fork():
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            continue
        files = (
            os.open(os.devnull, os.O_RDONLY),
            os.open(OUTPUT, os.O_CREAT | os.O_TRUNC | os.O_RDWR),
        )
        for number, file in enumerate((files[0], files[1], files[1])):
            os.dup2(file, number)
        status = pytest.main(["-qx", "--tb=line", "-p", "no:cacheprovider", *json.loads(line)])
        sys.stdout.flush()
        os._exit(status)


def main() -> int:
    parser = argparse.ArgumentParser(description="Each flip of a sign must fail a test.")
    parser.add_argument("-m", dest="marks", default="", help="only tests with these, as in pytest")
    parser.add_argument("parts", nargs="*", metavar="PART", help="of a term's name")
    args = parser.parse_args()
    chosen = [flip for flip in FLIPS if all(part in flip.term for part in args.parts)]
    if not chosen:
        raise SystemExit(f"no term has {' and '.join(args.parts)} in its name")
    unflipped = {(f.tests, f.only): replace(f, flipped=f.line) for f in chosen}.values()
    with Trials() as trials:
        broken = [
            flip.term
            for flip in tqdm(unflipped, disable=None)
            if not trials.passes(flip, args.marks)
        ]
        if broken:
            raise SystemExit(f"without any flip the tests fail of: {'; '.join(broken)}")
        alive = [
            flip.term for flip in tqdm(chosen, disable=None) if trials.passes(flip, args.marks)
        ]
    print(f"{len(chosen)} flips, {len(alive)} survive{': ' if alive else ''}{'; '.join(alive)}")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(_serve() if sys.argv[1:] == ["--serve"] else main())
