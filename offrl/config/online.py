"""The section ``train.online`` of a config, by which a policy acts while it learns, and the section
``distributed``, which names who acts beside the process that learns."""

from pydantic import Field

from offrl.config.section import Count, FreeMap, Map, Section, Share, Steps

LONGEST_EPISODE = 100_000  # steps, in an environment without a time limit


class ReplayConfig(Section):
    """The steps that are kept, for algorithms that learn from earlier ones."""

    capacity: Count = 1_000_000
    """Number of observations that are kept, one for each step and one more for each end of an
    episode. The oldest make room for new ones."""
    prioritized: bool = False
    """Draw steps by how wrong their values were when last learned from (prioritised replay)."""
    priority_exponent: Share = 0.6
    """Weight of priorities (alpha). 0: all steps alike."""
    correction_exponent: Share = 0.4
    """Share of the bias of priorities that is corrected at the start (beta). It is 1 at the end."""
    demo_share: Share | None = 0.5
    """Share of each batch that is drawn from train.data, if any. null: its share of all steps."""
    hindsight_share: Share = 0.0
    """Share of the steps of a batch that were taken whose goal is replaced by one that was reached
    later in the episode (hindsight experience replay). The environment shows achieved_goal and
    desired_goal, and has gymnasium-robotics' compute_reward, for many goals at once."""
    saved: bool = True
    """Write the steps into last.pth, so that a resumed run goes on with the same bits. If false,
    checkpoints are smaller, and a resumed run begins with an empty replay: before it learns again
    it acts for as many steps as a new one (random_steps, warmup_steps), and its results differ from
    those of a run that was never interrupted."""


class WrapperConfig(Section):
    """A wrapper around an environment, with arguments."""

    wrapper: str
    """Import path of a gymnasium.Wrapper, for example gymnasium.wrappers.ReshapeObservation."""
    kwargs: FreeMap = Map()
    """Its arguments. Lists are given as tuples."""


class OnlineConfig(Section):
    """Rounds of acting and learning: ``num_envs`` times ``collect_steps`` steps, then updates."""

    num_envs: Count = 1
    """Number of environments that are acted in at once."""
    collect_steps: Count = 1
    """Number of steps that each environment makes in a round, before the updates."""
    num_updates: int | None = Field(1, ge=0)
    """Number of updates in a round. null: one for each step of an environment. Algorithms that
    learn only from the steps of the round say themselves how many."""
    random_steps: int = Field(0, ge=0)
    """Number of first steps, in which actions are random and nothing is learned. By default at most
    a third of num_steps. Algorithms that learn only from the steps of the round have none."""
    warmup_steps: int = Field(0, ge=0)
    """Number of first steps without learning: random_steps, and then those of the policy itself."""
    horizon: Steps | None = None
    """Number of steps after which an episode is cut off. null: the environment's own limit, or 500
    steps in tasks of robosuite and Meta-World, which have none."""
    terminate_on_success: bool = True
    """End an episode when the environment says that the task is solved."""
    solved_return: float | None = None
    """Mean return of the last episodes at which the task is solved and the training ends."""
    solved_episodes: Count = 100
    """Number of last episodes whose mean return solved_return is held against."""
    agent: str | None = None
    """An agent of your own (module.Name) that chooses the actions to learn from; the module enters
    it with offrl.online.Registers. Evaluations act by the policy. null: the algorithm explores."""
    agent_config: FreeMap = Map()
    """Arguments of that agent."""
    normalize_obs: bool = False
    """Normalise vector observations by the mean and standard deviation of all that were seen so
    far. In evaluation these stay as they are."""
    normalize_rewards: bool = False
    """Divide rewards by the standard deviation of the discounted returns so far."""
    clip_rewards: bool = False
    """Learn from the sign of each reward only, as usual for Atari."""
    timeout: float = Field(300.0, gt=0)
    """Seconds without an answer after which an environment in a process of its own counts as hung:
    it begins a new episode in a new process. An explorer on Ray is replaced."""
    wrappers: list[str | WrapperConfig] | None = None
    """gymnasium's wrappers, or your own, around each environment, the first one innermost: import
    paths, or {wrapper: path, kwargs: {...}} with arguments. null: those of experiment.ckpt_path."""
    replay: ReplayConfig = ReplayConfig()
    """Earlier steps that are kept."""


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
