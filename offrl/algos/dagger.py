"""DAgger (Ross et al., 2011, arXiv:1011.0686): behavioural cloning of what an expert would do in
the states that the learner itself gets into.

In round ``i`` the expert acts with the probability ``beta_i``, else the learner; the action that is
stored with the state is always the expert's. Then the learner clones all rounds so far, and the
demonstrations in ``train.data``, if there are any. It is not trained anew in each round, but goes
on from its weights.
"""

import logging
from collections.abc import Callable

from offrl.algos.base import register_algo
from offrl.algos.bc import BC, BCConfig
from offrl.config.algo import while_acting
from offrl.config.section import Share
from offrl.lazy import Tensor

log = logging.getLogger(__name__)


class DAggerConfig(BCConfig):
    ALGO_NAME = "dagger"
    DEFAULTS = while_acting(
        {"collect_steps": 500, "num_updates": 500, "replay": {"demo_share": None}}
    )

    expert: str = "scripted"
    """Expert: "scripted", the demonstrator of the task, or the path of a checkpoint."""
    beta_decay: Share = 0.0
    """Share of the expert's actions among those that are taken, as a power of the number of earlier
    rounds: beta_i is beta_decay to the i - 1. 0: the expert acts in the first round alone."""


@register_algo(DAggerConfig)
class DAgger(BC):
    algo_config: DAggerConfig

    ASKS_EXPERT = True

    def expert_share(self, num_rounds: int) -> float:
        """Compute beta, the probability with which the expert acts, after ``num_rounds`` rounds."""
        return self.algo_config.beta_decay**num_rounds

    def inspect_data(self, values: Callable[..., Tensor]) -> None:
        log.warning(
            "dagger: without train.num_steps no expert is asked, and train.data is cloned as by bc"
        )
