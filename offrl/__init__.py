"""offrl: train robot policies from demonstrations, and deploy them.

Names are imported when first used, so that ``import offrl`` (and ``offrl --help``) needs no torch.
"""

from typing import TYPE_CHECKING

from offrl import lazy

if TYPE_CHECKING:  # for editors
    from offrl.acting.policy import RolloutPolicy
    from offrl.algos import algo_factory, register_algo, register_algo_factory_func
    from offrl.checkpoint import (
        config_from_checkpoint,
        env_from_checkpoint,
        maybe_dict_from_checkpoint,
        policy_from_checkpoint,
    )
    from offrl.config import config_factory
    from offrl.data.writer import DemoWriter
    from offrl.specs import register_obs_key
    from offrl.training import Trainer

__version__ = "0.1.0"

_EXPORTS = {
    "algo_factory": "offrl.algos",
    "register_algo": "offrl.algos",
    "register_algo_factory_func": "offrl.algos",
    "config_factory": "offrl.config",
    "policy_from_checkpoint": "offrl.checkpoint",
    "maybe_dict_from_checkpoint": "offrl.checkpoint",
    "config_from_checkpoint": "offrl.checkpoint",
    "env_from_checkpoint": "offrl.checkpoint",
    "RolloutPolicy": "offrl.acting.policy",
    "Trainer": "offrl.training",
    "DemoWriter": "offrl.data.writer",
    "register_obs_key": "offrl.specs",
}
__all__ = [
    "DemoWriter",
    "RolloutPolicy",
    "Trainer",
    "algo_factory",
    "config_factory",
    "config_from_checkpoint",
    "env_from_checkpoint",
    "maybe_dict_from_checkpoint",
    "policy_from_checkpoint",
    "register_algo",
    "register_algo_factory_func",
    "register_obs_key",
]

__getattr__, __dir__ = lazy.exporting(__name__, _EXPORTS)
