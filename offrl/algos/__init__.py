# ruff: noqa: F401
"""Algorithms: networks, optimizers and one update rule each.

This package exports the base classes of algorithms, and the classes that ``robomimic.algo`` exports
by the same names. A single algorithm is imported when it is first used.
"""

from offrl import lazy
from offrl.algos.base import (
    Algo,
    HierarchicalAlgo,
    PlannerAlgo,
    PolicyAlgo,
    Seen,
    ValueAlgo,
    check_rewards,
    masked_mean,
)
from offrl.algos.factory import algo_factory, register_algo, register_algo_factory_func

__getattr__, __dir__, _LATER = lazy.exporting(
    __name__,
    {
        "offrl.algos.bc": "BC BC_GMM BC_Gaussian BC_RNN BC_RNN_GMM BC_Transformer "
        "BC_Transformer_GMM BC_VAE",
        "offrl.algos.bcq": "BCQ BCQ_Distributional BCQ_GMM",
        "offrl.algos.cql": "CQL",
        "offrl.algos.diffusion_policy": "DiffusionPolicyUNet",
        "offrl.algos.gl": "GL GL_VAE",
        "offrl.algos.hbc": "HBC",
        "offrl.algos.iql": "IQL",
        "offrl.algos.iris": "IRIS ValuePlanner",
        "offrl.algos.shared.actor_critic": "ActorCritic",
        "offrl.algos.shared.chunks": "ChunkConfig ChunkPolicy HorizonConfig",
        "offrl.algos.shared.td": "TDLearner",
        "offrl.algos.td3_bc": "TD3_BC",
        "offrl.config.algo": "TDConfig",
    },
)
