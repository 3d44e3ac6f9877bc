# ruff: noqa: F401
"""Algorithms: networks, optimizers and one update rule each."""

from offrl.algos.base import Algo, HierarchicalAlgo, PlannerAlgo, PolicyAlgo, ValueAlgo
from offrl.algos.factory import algo_factory, register_algo, register_algo_factory_func
