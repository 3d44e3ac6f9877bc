"""offrl: train robot policies from demonstrations, and deploy them.

Names are imported when first used, so that ``import offrl`` (and ``offrl --help``) needs no torch.
"""

from importlib import import_module
from typing import Any

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
__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'offrl' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)
