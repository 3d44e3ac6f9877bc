"""Scripted demonstrators: functions from an observation to an action, without memory.

Memoryless experts make data that a memoryless policy can learn. ``offrl collect`` runs them, and
those of Meta-World (``metaworld_expert``).
"""

from offrl.envs.experts.lift import lift
from offrl.envs.experts.policy import ExpertPolicy

__all__ = ["ExpertPolicy", "lift"]
