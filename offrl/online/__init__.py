"""Learning by acting, in four roles: ``Model``, ``Algorithm``, ``Agent`` and ``Trainer``; and the
``Environment`` of a config."""

from offrl.algos.shared.model import Model
from offrl.algos.shared.roles import Algorithm
from offrl.online.control import Agent
from offrl.online.environment import Environment
from offrl.online.learner import Learner
from offrl.online.logger import logger
from offrl.online.pipeline import Pipeline
from offrl.online.registers import Registers
from offrl.online.roles import register_roles
from offrl.online.trainer import Trainer

__all__ = [
    "Agent",
    "Algorithm",
    "Environment",
    "Learner",
    "Model",
    "Pipeline",
    "Registers",
    "Trainer",
    "logger",
    "register_roles",
]
