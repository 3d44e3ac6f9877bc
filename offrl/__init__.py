"""offrl: train robot policies from demonstrations, and deploy them.

Names are imported when first used, so that ``import offrl`` (and ``offrl --help``) needs no torch.
"""

from typing import TYPE_CHECKING

from offrl import aliases, lazy  # noqa: F401 (earlier names)

if TYPE_CHECKING:  # for editors
    from offrl.acting.policy import RolloutPolicy as RolloutPolicy
    from offrl.algos import algo_factory as algo_factory
    from offrl.algos import register_algo as register_algo
    from offrl.algos import register_algo_factory_func as register_algo_factory_func
    from offrl.checkpoint import config_from_checkpoint as config_from_checkpoint
    from offrl.checkpoint import env_from_checkpoint as env_from_checkpoint
    from offrl.checkpoint import maybe_dict_from_checkpoint as maybe_dict_from_checkpoint
    from offrl.checkpoint import policy_from_checkpoint as policy_from_checkpoint
    from offrl.config import config_factory as config_factory
    from offrl.data.writer import DemoWriter as DemoWriter
    from offrl.specs import register_obs_key as register_obs_key
    from offrl.training import Trainer as Trainer

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.exporting(
    __name__,
    {
        "offrl.acting.policy": "RolloutPolicy",
        "offrl.algos": "algo_factory register_algo register_algo_factory_func",
        "offrl.checkpoint": "config_from_checkpoint env_from_checkpoint maybe_dict_from_checkpoint "
        "policy_from_checkpoint",
        "offrl.config": "config_factory",
        "offrl.data.writer": "DemoWriter",
        "offrl.specs": "register_obs_key",
        "offrl.training": "Trainer",
    },
)
