"""robosuite's tasks: the environment, data of earlier versions, goals of arms, fast simulation."""

from offrl.envs.robosuite.environment import RobosuiteEnv, tasks

__all__ = ["RobosuiteEnv", "tasks"]
