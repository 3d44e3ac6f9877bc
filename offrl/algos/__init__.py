# ruff: noqa: F401
"""Algorithms: networks, optimizers and one update rule each.

Classes that ``robomimic.algo`` exports are found here by the same names, imported when first used.
"""

from offrl import lazy
from offrl.algos.base import Algo, HierarchicalAlgo, PlannerAlgo, PolicyAlgo, ValueAlgo
from offrl.algos.factory import algo_factory, register_algo, register_algo_factory_func

_ROBOMIMIC = {
    "BC": "offrl.algos.bc",
    "BC_Gaussian": "offrl.algos.bc",
    "BC_GMM": "offrl.algos.bc",
    "BC_VAE": "offrl.algos.bc",
    "BC_RNN": "offrl.algos.bc",
    "BC_RNN_GMM": "offrl.algos.bc",
    "BC_Transformer": "offrl.algos.bc",
    "BC_Transformer_GMM": "offrl.algos.bc",
    "BCQ": "offrl.algos.bcq",
    "BCQ_Distributional": "offrl.algos.bcq",
    "BCQ_GMM": "offrl.algos.bcq",
    "CQL": "offrl.algos.cql",
    "DiffusionPolicyUNet": "offrl.algos.diffusion_policy",
    "GL": "offrl.algos.gl",
    "GL_VAE": "offrl.algos.gl",
    "HBC": "offrl.algos.hbc",
    "IRIS": "offrl.algos.iris",
    "ValuePlanner": "offrl.algos.iris",
    "IQL": "offrl.algos.iql",
    "TD3_BC": "offrl.algos.td3_bc",
}

__getattr__, __dir__ = lazy.exporting(__name__, _ROBOMIMIC)
