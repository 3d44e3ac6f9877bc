"""Scripted demonstrators: functions from an observation to an action, without memory.

Memoryless experts make data that a memoryless policy can learn. ``offrl collect`` runs them.

A new one is a function ``obs -> action`` in the file of its family of tasks, registered under the
name of its task, ``@EXPERTS.register("Stack")``; a new family is a file that is imported here.
Simulators that bring experts, as Meta-World does, have a function from a task's name to its expert.
``ExpertPolicy(expert)`` is the policy that ``EnvPool.run`` takes, also of a function of your own.
"""

from offrl.envs.experts.lift import lift
from offrl.envs.experts.metaworld import metaworld_expert
from offrl.envs.experts.policy import ExpertPolicy

__all__ = ["ExpertPolicy", "lift", "metaworld_expert"]
