"""The section ``distributed`` of a config: who acts beside the process that learns."""

from pydantic import Field

from offrl.config.section import Count, Section


class DistributedConfig(Section):
    """Explorers, which act while a Learner learns."""

    address: str | None = None
    """The Ray to work on: local (one that is started on this machine and ends with the program),
    auto (the one that runs on this machine) or HOST:PORT (the head of a cluster of which this
    machine is a node). null: none, and explorers act in turn in this process."""
    explorers: int = Field(0, ge=0)
    """Number of explorers, each with train.online.num_envs environments and a copy of the policy.
    0: the training acts and learns in turn."""
    num_trajectories: Count = 1
    """Number of trajectories (train.online.collect_steps steps in each environment of an explorer)
    that algorithms which learn from the steps of the round join to a round."""
    trajectory_steps: Count = 50
    """Least number of steps that each environment makes in a trajectory of an algorithm with a
    replay. Updates are made in proportion."""
    max_staleness: Count | None = None
    """Number of versions of the weights that may follow those which made a trajectory until it is
    learned from, for algorithms that learn from the steps of the round. Older ones are refused, and
    counted in the log. null: ten for each explorer."""
