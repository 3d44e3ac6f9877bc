"""Atari games of the Arcade Learning Environment (Bellemare et al., 2013, arXiv:1207.4708), with
the preprocessing of Mnih et al. (2015, doi:10.1038/nature14236)."""

from typing import Any

import gymnasium
from gymnasium.wrappers import AtariPreprocessing

from offrl.envs.gymnasium import GymnasiumEnv
from offrl.lazy import needed
from offrl.registry import ENVS

LONGEST = 108_000  # frames of a game, half an hour


@ENVS.register("atari")
class AtariEnv(GymnasiumEnv):
    """A game by its name, e.g. ``ALE/Pong-v5``.

    The observation ``image`` ``[84, 84, 1]`` is the grey pixelwise maximum of the last two frames.
    ``train.frame_stack`` stacks frames, and ``train.online.clip_rewards`` clips rewards to -1, 0
    and 1. Each action is repeated for four frames (no sticky actions). An episode begins with 1 to
    30 no-op frames; it is a whole game, of 30 minutes at most.

    ``env_kwargs`` are those of the game, and ``noop_max`` (30), ``frame_skip`` (4) and
    ``terminal_on_life_loss``, with which each life is an episode in a new game.
    """

    kind = "atari"
    plain_name = "image"

    def _make(self, env_name: str, **env_kwargs: Any) -> gymnasium.Env:
        options: dict[str, Any] = {"noop_max": 30, "frame_skip": 4, "terminal_on_life_loss": False}
        options |= {name: env_kwargs.pop(name) for name in options.keys() & env_kwargs.keys()}
        ale_py = needed("ale_py", "atari", "the Arcade Learning Environment is missing")
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        gymnasium.register_envs(ale_py)
        own = {"frameskip": 1, "repeat_action_probability": 0.0, "obs_type": "grayscale"}
        own |= {"max_episode_steps": LONGEST}
        game = super()._make(env_name, **own | env_kwargs)
        return AtariPreprocessing(game, **options, grayscale_newaxis=True)
