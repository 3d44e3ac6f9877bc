"""Evaluates copies of a policy in a process of its own, while the training goes on."""

import logging
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from offrl import evaluation
from offrl.acting.policy import RolloutPolicy
from offrl.checkpoint import policy_from_checkpoint
from offrl.config import RolloutConfig
from offrl.envs import say_once
from offrl.envs.workers import EnvPool, EpisodeRequest, EpisodeResult
from offrl.envs.workers.pool import LogBuffer
from offrl.processes import Channel, Child, wait
from offrl.registry import modules_of_users
from offrl.seeding import seed_everything

Requests = Mapping[str, Sequence[EpisodeRequest]]  # by the environment's name


class Background:
    """Evaluates the policy of a checkpoint, one at a time, in a process that answers simulators of
    its own as the training's process does. It starts with the first evaluation.

    pools: The training's simulators by name; those of the process are made like them.
    rollout: The config of evaluations.
    instructions: The embedding of the instruction of each environment, or ``None``.
    device: The device of the training.
    """

    def __init__(
        self,
        pools: Mapping[str, EnvPool],
        rollout: RolloutConfig,
        instructions: Mapping[str, Any],
        device: torch.device,
    ):
        likes = {n: (p.env_args, p.num_workers, p.timeout, p.gl_backend) for n, p in pools.items()}
        level = logging.getLogger("offrl").getEffectiveLevel()
        modules = modules_of_users()
        if "__main__" in modules:
            raise ValueError(
                "experiment.rollout.in_background: its process cannot import what the script "
                "itself registers; register it in a module that the script imports"
            )
        self._arguments = likes, rollout, instructions, device, modules, level
        self._child: Child | None = None
        self._is_busy = False

    def begin(self, checkpoint: Path, requests: Requests) -> None:
        """Begin to run episodes; an evaluation that is under way is abandoned."""
        if self._is_busy:
            self.close()
        if self._child is None:
            remedy = "use fewer experiment.rollout.num_workers"
            self._child = Child("spawn", _serve, self._arguments, "evaluates", remedy)
        self._child.send((checkpoint, requests))
        self._is_busy = True

    def results(self, seconds: float) -> Mapping[str, list[EpisodeResult]] | None:
        """Wait for so long. Returns the results of all episodes by environment; ``None`` if some
        are missing. Raises what would end an evaluation in the training's process."""
        assert self._child is not None
        if not wait([self._child], seconds):
            return None
        try:
            answer = self._child.receive()
            if isinstance(answer, Exception):
                raise answer
        except BaseException:  # half a message may have been read
            self.close()
            raise
        self._is_busy = False
        notices, results = answer
        for notice in notices:
            say_once(*notice)
        return results

    def close(self) -> None:
        """End the process and its simulators."""
        if self._child is not None:
            self._child.close()
        self._child, self._is_busy = None, False


def _serve(
    channel: Channel,
    likes: Mapping[str, tuple[Any, ...]],
    rollout: RolloutConfig,
    instructions: Mapping[str, Any],
    device: torch.device,
    modules: Sequence[str],
    level: int,
) -> None:
    """Evaluate the checkpoints that the training names."""
    for module in modules:
        import_module(module)
    seed_everything(0)  # for the training's choice of kernels
    notices = LogBuffer(level)
    pools = {name: EnvPool(*like) for name, like in likes.items()}
    while True:
        checkpoint, requests = channel.receive()
        algo = policy_from_checkpoint(checkpoint, device=device)[0].policy
        results = {}
        for name, pool in pools.items():
            policy = RolloutPolicy(algo, instruction=instructions[name])
            policy = evaluation.with_latency(policy, rollout, pool.env_args)
            results[name] = [*evaluation.evaluate(policy, pool, requests[name])]
            if len(pools) > 1:
                pool.close()  # frees its simulators before the others run
        channel.send((notices.take(), results))
