"""Scripted demonstrators: functions from an observation to an action, without memory.

Memoryless experts make data that a memoryless policy can learn. ``offrl collect`` runs them, and
the states that they reach are the goals of their tasks (``DemonstratedGoals``).

To add one, write a function ``obs -> action`` in the file of its simulator and register it under
the name of its task, ``@demonstrator("Stack", horizon=200)``; import a new simulator's file here. A
simulator with experts of its own, such as Meta-World, has ``expert_of(task)``.
``ExpertPolicy(expert)`` makes a policy for ``EnvPool.run``, also of your own function.
"""

from offrl.envs.experts.expert import DemonstratedGoals, ExpertPolicy, demonstrator, scripted_expert
from offrl.envs.experts.robosuite import lift  # which registers those of robosuite

__all__ = ["DemonstratedGoals", "ExpertPolicy", "demonstrator", "lift", "scripted_expert"]
