# ruff: noqa: F401
"""Algorithms: networks, optimizers and one update rule each.

Classes that ``robomimic.algo`` exports are found here by the same names, imported when first used.
"""

from importlib import import_module
from typing import Any

from offrl.algos.base import Algo, HierarchicalAlgo, PlannerAlgo, PolicyAlgo, ValueAlgo
from offrl.algos.factory import algo_factory, register_algo, register_algo_factory_func

_ROBOMIMIC = {
    "BC": "bc",
    "BC_Gaussian": "bc",
    "BC_GMM": "bc",
    "BC_VAE": "bc",
    "BC_RNN": "bc",
    "BC_RNN_GMM": "bc",
    "BC_Transformer": "bc",
    "BC_Transformer_GMM": "bc",
    "BCQ": "bcq",
    "BCQ_Distributional": "bcq",
    "BCQ_GMM": "bcq",
    "CQL": "cql",
    "DiffusionPolicyUNet": "diffusion_policy",
    "GL": "gl",
    "GL_VAE": "gl",
    "HBC": "hbc",
    "IRIS": "iris",
    "ValuePlanner": "iris",
    "IQL": "iql",
    "TD3_BC": "td3_bc",
}


def __getattr__(name: str) -> Any:
    if name not in _ROBOMIMIC:
        raise AttributeError(f"module 'offrl.algos' has no attribute {name!r}")
    return getattr(import_module(f"offrl.algos.{_ROBOMIMIC[name]}"), name)
