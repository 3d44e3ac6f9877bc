"""Learning while acting, with the roles ``Model``, ``Algorithm``, ``Agent`` and ``Trainer``, and
the ``Environment`` of a config. Names are imported when first used."""

from typing import TYPE_CHECKING

from offrl import lazy

if TYPE_CHECKING:  # for editors
    from offrl.algos.shared.model import Model as Model
    from offrl.faces.agent import Agent as Agent
    from offrl.faces.algorithm import Algorithm as Algorithm
    from offrl.faces.environment import Environment as Environment
    from offrl.faces.four_roles import register_roles as register_roles
    from offrl.faces.logger import logger as logger
    from offrl.online.learner import Learner as Learner
    from offrl.online.trainer import Trainer as Trainer
    from offrl.pipelines.pipeline import Pipeline as Pipeline
    from offrl.pipelines.registers import Registers as Registers

__getattr__, __dir__, __all__ = lazy.exporting(
    __name__,
    {
        "offrl.algos.shared.model": "Model",
        "offrl.faces.algorithm": "Algorithm",
        "offrl.faces.agent": "Agent",
        "offrl.faces.environment": "Environment",
        "offrl.faces.four_roles": "register_roles",
        "offrl.faces.logger": "logger",
        "offrl.online.learner": "Learner",
        "offrl.online.trainer": "Trainer",
        "offrl.pipelines.pipeline": "Pipeline",
        "offrl.pipelines.registers": "Registers",
    },
)
