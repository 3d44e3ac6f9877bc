"""The section ``train`` of a config, as robomimic has it: data, batches, actions, rewards."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from offrl.config.online import OnlineConfig
from offrl.config.section import Bounds, Count, MustBe, Section, Share, Steps, without_effect
from offrl.images import Form
from offrl.registry import shown


class DatasetConfig(Section):
    path: str
    """File or folder of demonstrations, or minari:NAME for one of Minari's datasets."""
    filter_key: str | None = None
    """Train on the demonstrations under this filter key; of a LeRobot folder also on a range of
    episodes, "0:40". null: train.hdf5_filter_key."""
    demo_limit: Count | None = None
    """Number of demonstrations to use, from the first one on. null: all of them."""
    top_share: float | None = Field(None, gt=0, le=1)
    """Share of the demonstrations to use, the best by return: 0.1 is the best tenth. null: all."""
    weight: float = Field(1.0, gt=0)
    """Relative frequency with which samples of this dataset are drawn. See
    train.normalize_weights_by_ds_size."""
    eval: bool = True
    """Evaluate in the environment of this dataset, too."""
    key: str | None = None
    """Name of the environment in the logs. null: the name of its task."""
    lang: str | None = None
    """Instruction of the demonstrations, a sentence. null: lang_emb in the file, the tasks of a
    LeRobot folder, or none."""
    images: dict[str, Annotated[list[Form], Field(min_length=1)]] = {}
    """Form of images that are not stored as uint8 [H, W, C] or as depth maps [H, W, 1], by their
    keys: {"front_image": ["channels_first", "unit_floats"]}. Each entry of the list is one step of
    turning them as they are read. See the page on images."""


class ActionConfig(Section):
    normalization: Literal["min_max", "gaussian"] | None = None
    """Scale the actions for training, "min_max" to [-1, 1], "gaussian" to mean 0 and standard
    deviation 1. The policy undoes it. null: leave them as they are."""
    format: Literal["rot_6d", "rot_axis_angle", "rot_euler", "discrete"] | None = None
    """Meaning of the numbers. "rot_6d": a rotation in six numbers, turned into convert_at_runtime
    while acting. "discrete": an integer from 0 on. Others change nothing."""
    convert_at_runtime: Literal["rot_axis_angle", "rot_euler"] = "rot_axis_angle"
    """Form in which the environment takes a rotation of the format "rot_6d"."""
    num_actions: Count | None = None
    """Number of discrete actions. null: those up to the largest one in the data."""

    @model_validator(mode="after")
    def _agrees(self) -> "ActionConfig":
        is_discrete = self.format == "discrete"
        if is_discrete and self.normalization:
            raise ValueError("discrete actions are not normalised; set normalization to null")
        if self.num_actions and not is_discrete:
            raise ValueError('num_actions is of discrete actions; set format to "discrete"')
        return self


class RewardsConfig(Section):
    """``scale * normalised(clipped(r)) + shift``, in training."""

    clip: Bounds | None = None
    """Least and largest reward; others are set to these. null: no limits."""
    normalization: Literal["min_max", "gaussian", "return"] | None = None
    """ "min_max" maps rewards to [0, 1], "gaussian" to mean 0 and standard deviation 1; "return"
    divides them so that the returns of demonstrations are at most 1 apart. null: no change."""
    scale: float = Field(1.0, gt=0)
    """Factor on the normalised reward."""
    shift: float = 0.0
    """Added to the reward at the end."""


class GoalSharesConfig(Section):
    current: Share = 0.2
    """Share of goals that are the current observation."""
    future: Share = 0.5
    """Share of goals that are later observations of the same demonstration."""
    random: Share = 0.3
    """Share of goals that are observations of anywhere."""


class EMAConfig(Section):
    enabled: bool = False
    """Keep an exponential moving average of the trained weights, to act and validate with."""
    power: float | None = Field(0.75, gt=0, le=1)
    """Speed with which the average comes to remember more: in its n-th step it keeps the share 1 -
    (n - 1)^-power of itself, at most max_decay, and nothing in the first two. null: max_decay in
    all steps but the first, which takes the weights."""
    max_decay: float = Field(0.9999, ge=0, lt=1)
    """Largest share that the average keeps of itself in a step."""


class TrainConfig(Section):
    """Data, batches, rewards, and the length of the training."""

    data: list[DatasetConfig] | None = None
    """Data to train on: a path, a map with a path, or a list of either. null: that of --dataset."""
    output_dir: str = "runs"
    """Folder for runs: OUTPUT_DIR/NAME/TIMESTAMP."""
    model_dest: str | None = None
    """Folder that gets each checkpoint that is kept as well, as agent-STEP-COMMIT.pth, the last one
    as agent-final-COMMIT.pth, and the config file as it was given, with the commit of your own
    repository in their names. null: none."""
    normalize_weights_by_ds_size: bool = False
    """Let the weight of a dataset be that of the whole, whatever its size, not of each sample."""
    num_data_workers: int | None = Field(None, ge=0)
    """Processes that read data ahead, where it is not held in memory. null: one for each core but
    one, at most four."""
    hdf5_cache_mode: Literal["auto", "all", "low_dim"] | None = "auto"
    """Data that is held in memory: "all", or with "low_dim" all but images. null: no observation;
    they are read from the file all the time. "auto": all if it fits (train.cache_gb), else as much
    as does. Batches are the same in every mode."""
    cache_gb: float | None = Field(None, gt=0)
    """Memory for data with hdf5_cache_mode "auto", in GB (10^9 bytes), of which each process that
    reads takes 0.125. null: half of what is free."""
    cache_dir: str | None = None
    """Folder for images as they are in memory, from which later trainings on the same data start at
    once, and which may be larger than memory. offrl cache --clear empties it. null: none."""
    hdf5_use_swmr: bool = True
    """Read a file also while another program is writing it."""
    hdf5_load_next_obs: bool = False
    """Load the observation after each step, too. By default true where an algorithm needs it."""
    hdf5_normalize_obs: bool = False
    """Normalise vector observations to mean 0 and standard deviation 1, also while acting."""
    hdf5_filter_key: str | None = None
    """Train on the demonstrations under this filter key, for example "train". null: all of them."""
    hdf5_validation_filter_key: str | None = None
    """Validate on the demonstrations under this filter key, for example "valid". null: on none."""
    seq_length: Steps = 1
    """Number of successive steps in a sample, from the current one on. Unless the config says it,
    the algorithm chooses: the horizon of an RNN, for example."""
    pad_seq_length: bool = True
    """Repeat a demonstration's last step to complete samples at its end. If false, omit them."""
    frame_stack: Steps = 1
    """Number of latest observations that the policy sees at once. Unless the config says it, the
    algorithm chooses: the context length of a Transformer, for example."""
    pad_frame_stack: bool = True
    """Repeat a demonstration's first step to complete samples at its start. If false, omit them."""
    dataset_keys: list[str] = ["actions", "rewards", "dones"]
    """Arrays to load besides observations. By default also those that the algorithm needs."""
    action_keys: Annotated[list[str], Field(min_length=1)] = ["actions"]
    """Keys of the file that together make the action, in this order."""
    action_config: dict[str, ActionConfig] = {"actions": ActionConfig()}
    """Form and normalisation of each action key."""
    rewards: RewardsConfig = RewardsConfig()
    """Rewards in training: scale * normalised(clipped(reward)) + shift."""
    goal_mode: Literal["last", "future_uniform", "future_geometric", "mixture"] | None = None
    """Goal of a sample. "last": the last observation of its demonstration. "future_uniform": any
    later one. "future_geometric": a later one, near ones more likely (train.goal_discount).
    "mixture": any observation (train.goal_shares). null: none."""
    goal_shares: GoalSharesConfig = GoalSharesConfig()
    """Shares of the kinds of goals, for goal_mode "mixture"."""
    goal_discount: float = Field(0.99, gt=0, lt=1)
    """Factor on a goal's probability for each step ahead ("future_geometric" and "mixture")."""
    goal_rewards: bool = False
    """Learn to reach goals, whatever rewards the data has: the reward is 0 where the observation is
    the goal, which ends the episode, and -1 in all others. Needs goal_mode "mixture"."""
    data_format: Annotated[
        str, MustBe("robomimic", "turn other data into HDF5 files of robomimic's layout")
    ] = without_effect("robomimic")
    cuda: bool = True
    """Train on a GPU if there is one."""
    batch_size: Count = 100
    """Number of samples in a batch."""
    accumulate: Count = 1
    """Number of batches whose gradients make a step together, as those of one batch of so many
    times the size would, with the memory of one. Layers that count batches see each of them."""
    engine: Literal["auto", "eager", "graph", "compile"] = "auto"
    """How steps are made, and chunks of actions predicted. "eager": one kernel after another.
    "graph": on a GPU, all kernels of a step or a chunk are captured once and start together; it has
    not run on one yet. "compile": PyTorch's compiler makes functions of a step, in up to minutes;
    it differs in the last bits. "auto": eager, and the config of the run says so."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Numbers that updates compute with. "bf16": networks in bfloat16 (autocast); their weights and
    optimizers stay in float32. "tf32": matrices in TensorFloat-32, on a GPU."""
    channels_last: bool = False
    """Store the channels of images last, for which convolutions on a GPU are made. It changes the
    last bits of results."""
    num_epochs: Count = 2000
    """Number of epochs of the whole training."""
    num_steps: Count | None = None
    """Number of steps in the environment of the whole training, which makes it online: the policy
    acts while it learns. null: it learns from train.data alone."""
    online: OnlineConfig = OnlineConfig()
    """Acting while the policy learns, if num_steps is set."""
    seed: int = Field(1, ge=0)
    """Seed of everything random in the training."""
    max_grad_norm: float | None = Field(None, gt=0)
    """Largest norm of a network's gradient; longer ones are shortened. null: no limit."""
    ema: EMAConfig = EMAConfig()
    """An average of the weights to act with."""
    mask_padded_steps: bool = True
    """Let padded steps count for nothing in a loss. If false, they count, as in robomimic."""

    @model_validator(mode="after")
    def _goals_agree(self) -> "TrainConfig":
        total = sum(self.goal_shares.to_dict().values())
        if self.goal_mode == "mixture" and abs(total - 1) > 1e-6:
            raise ValueError(
                f"train.goal_shares: current, future and random add up to {total:g}; let it be 1"
            )
        if not self.goal_rewards:
            return self
        if self.goal_mode != "mixture" or not self.goal_shares.current:
            raise ValueError(
                "train.goal_rewards: only a goal that is the current observation is a success; set "
                'train.goal_mode to "mixture", with a share of such (train.goal_shares.current)'
            )
        if self.rewards != RewardsConfig():
            raise ValueError(
                "train.rewards: changes the rewards of the data, but train.goal_rewards puts "
                "others in their place; leave one of them out"
            )
        return self

    @property
    def samples_per_step(self) -> int:
        """The number of samples that a step learns from."""
        return self.batch_size * self.accumulate

    @property
    def acts_discretely(self) -> bool:
        """Say whether actions are discrete."""
        config = self.action_config
        return any(key in config and config[key].format == "discrete" for key in self.action_keys)

    @field_validator("action_keys")
    @classmethod
    def _stand_once(cls, keys: list[str]) -> list[str]:
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise ValueError(f"{shown(twice[0])} is named twice")
        return keys

    @field_validator(
        "data",
        mode="before",
        json_schema_input_type=str | DatasetConfig | list[str | DatasetConfig] | None,
    )
    @classmethod
    def _path_to_list(cls, data: Any) -> Any:
        entries = [data] if isinstance(data, (str, Path, dict)) else data
        if not isinstance(entries, (list, tuple)):
            return entries
        return [{"path": str(e)} if isinstance(e, (str, Path)) else e for e in entries]
