"""Scripted demonstrators: functions from an observation to an action, without memory.

Memoryless experts make data that a memoryless policy can learn. ``offrl collect`` runs them,
and the goals of their tasks are where they get (``DemonstratedGoals``).

A new one is a function ``obs -> action`` in the file of its simulator, registered under the name
of its task, ``@demonstrator("Stack", horizon=200)``; a new simulator's is a file that is imported
here. A simulator that brings experts of its own, as Meta-World does, has ``expert_of(task)``.
``ExpertPolicy(expert)`` is the policy that ``EnvPool.run`` takes, also of your own function.
"""

from offrl.envs.experts.expert import (
    DemonstratedGoals,
    ExpertPolicy,
    demonstrator,
    scripted_expert,
)
from offrl.envs.experts.robosuite import lift  # which registers those of robosuite

__all__ = ["DemonstratedGoals", "ExpertPolicy", "demonstrator", "lift", "scripted_expert"]
