"""The base of algorithms that learn a policy from the steps that it has just taken."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import ceil
from typing import Any, ClassVar, Literal

from offrl import models
from offrl.algos.base import Obs, PolicyAlgo, Seen, ValueAlgo
from offrl.algos.shared.masks import ACTION_MASK, masked
from offrl.algos.shared.returns import ends_of, gae
from offrl.config import AlgoConfig, Count, NonNegative, OptimConfig, Section, Share
from offrl.config.algo import LearningRateConfig, while_acting
from offrl.config.section import options_of
from offrl.lazy import Tensor, torch
from offrl.tree import map_leaves


def one_optimizer(rate: float, kind: Any = "adam") -> dict[str, OptimConfig]:
    """Return the config of the optimizer of policy and value, with the usual epsilon."""
    learning_rate = LearningRateConfig(initial=rate)
    return {"policy": OptimConfig(optimizer_type=kind, epsilon=1e-5, learning_rate=learning_rate)}


def collecting(num_steps: int, **train: Any) -> dict[str, Any]:
    """Return defaults of other sections: rounds of ``num_steps`` steps in one environment."""
    return while_acting({"num_envs": 1, "collect_steps": num_steps}, max_grad_norm=0.5, **train)


class MemoryConfig(Section):
    """Memory of the episode so far, as long as it lasts."""

    enabled: bool = False
    """Let policy and value remember the episode so far in an RNN that they share."""
    hidden_dim: Count = 256
    """Size of the hidden state."""
    rnn_type: Literal["LSTM", "GRU"] = "LSTM"
    """Kind of recurrent layer."""
    num_layers: Count = 1
    """Number of recurrent layers."""


class PolicyGradientConfig(AlgoConfig):
    """Base of the sections ``algo`` of algorithms that learn from the steps of the round."""

    OPTIMIZERS = one_optimizer(3e-4)
    discount: Share = 0.99
    """Factor on a reward for each step that it lies ahead (gamma)."""
    vf_coef: NonNegative = 0.5
    """Weight of the error of the values in the loss."""
    ent_coef: NonNegative = 0.0
    """Weight of the policy's entropy, which keeps it from settling early."""
    policy_layer_dims: list[Count] = [64, 64]
    """Sizes of the policy's hidden layers, behind encoder and RNN."""
    value_layer_dims: list[Count] = [64, 64]
    """Sizes of the value's hidden layers, behind encoder and RNN."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Function behind each hidden layer."""
    orthogonal_init: bool = True
    """Start with orthogonal weights, small before actions, and no biases. If false, as PyTorch."""
    share_encoder: bool = False
    """Let the policy and the value see images through one encoder. If false, each has its own,
    unless there is an RNN."""
    log_std_init: float = 0.0
    """Logarithm of the standard deviation of real-valued actions at the start. It is learned, and
    the same in all states."""
    memory: MemoryConfig = MemoryConfig()
    """Memory of the earlier steps of an episode: an RNN."""


class GAEConfig(PolicyGradientConfig):
    """The section of algorithms that estimate each advantage once, by GAE."""

    gae_lambda: Share = 0.95
    """Weight in an advantage of rewards (1) against the value of the next state (0). Values between
    are a compromise of little variance and little bias (lambda)."""
    normalize_advantage: bool = True
    """Bring the advantages of a batch to mean 0 and standard deviation 1."""


class PolicyGradient(PolicyAlgo, ValueAlgo):
    """A policy ``pi(a | s)`` and its value ``V(s)``, in one network ``policy`` with one optimizer.

    A round goes through ``process_batch_for_training`` once, whose result ``minibatches`` turns
    into what ``train_on_batch`` learns from. A batch is ``M`` steps: observations
    ``{key: [M, frames, ...]}``, actions ``[M, 1, A]``, and what ``estimates`` says of them: by
    default ``log_probs`` of the actions when they were taken, ``advantages``, ``returns`` and
    ``values``, ``[M]`` each. Where steps depend on others (``learns_segments``), a batch holds
    whole segments of ``n`` environments, row by row: observations and actions of ``n L`` rows, the
    ``mask`` ``[n L]`` of those in which a step was taken, ``starts`` ``[n, L]`` of episodes, and
    the ``state`` before the first row.
    """

    NEEDS = ("obs", "actions", "rewards")
    GROUPS = ("obs",)
    ACTIONS = ("real-valued", "discrete")
    ON_POLICY = True
    LOGS_GRADIENTS = False
    REST = (*PolicyAlgo.REST, "process_batch_for_training")
    #: The parts of a batch that hold steps alone, without the rows between episodes.
    OF_STEPS: ClassVar[tuple[str, ...]] = ("log_probs", "advantages", "returns", "values")

    algo_config: GAEConfig

    def _create_networks(self) -> None:
        config = self.algo_config
        gaussian = {"head": "free_gaussian", "log_std_init": config.log_std_init}
        head: dict[str, Any] = {"head": "categorical"} if self.is_discrete else gaussian
        self.nets["policy"] = models.ActorValue(
            self.obs_spec,
            self.ac_dim,
            config.policy_layer_dims,
            config.value_layer_dims,
            activation=config.activation,
            num_frames=self.num_frames,
            share_encoder=config.share_encoder,
            orthogonal=config.orthogonal_init,
            rnn=options_of(config.memory) if config.memory.enabled else None,
            **head,
        )

    def _optimized(self, name: str) -> "Iterable[torch.nn.Parameter]":
        from offrl.kernels.optim import EndToEnd

        own = super()._optimized(name)
        # Of its loss all of it is part. (cuDNN wants the weights of an RNN in an order of its own.)
        is_one = name == "policy" and not self.algo_config.memory.enabled
        return [EndToEnd.of(own)] if is_one else own

    def deserialize(self, state: Mapping[str, Any], load_optimizers: bool = True) -> None:
        """Load what ``serialize`` returned, also when parameters did not share one array."""
        from offrl.kernels.optim import joined

        if "policy" in state.get("optimizers", {}) and not self.algo_config.memory.enabled:
            own = joined(state["optimizers"]["policy"])
            state = {**state, "optimizers": {**state["optimizers"], "policy": own}}
        super().deserialize(state, load_optimizers)

    @property
    def learns_segments(self) -> bool:
        """True if the rows of a segment are learned from together, in their order."""
        return self.algo_config.memory.enabled

    def inspect_data(self, values: Callable[..., Tensor]) -> None:
        raise ValueError(
            f"train.data: {self.global_config.algo_name} learns only from steps that it takes "
            "itself; set train.num_steps to the number of these, and leave train.data out"
        )

    # -- a round ----------------------------------------------------------------------------------

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute what a round is learned by, with the policy that took its steps.

        batch: tensors of ``N`` environments and ``L`` rows: raw ``obs`` ``{key: [N, L, frames,
            ...]}``, ``actions`` ``[N, L, A]`` as ``act`` gave them, ``rewards``, ``terminated`` and
            ``mask``, all ``[N, L]``: in which rows a step was taken. What was observed after it is
            in the next row. ``state`` is what ``act`` had in the first row, or ``None``.
        """
        name = self.global_config.algo_name
        if "mask" not in batch or "terminated" not in batch:
            raise ValueError(
                f"{name}: learns from rounds of its own steps, with mask and terminated "
                f"[N, L]; the batch holds {', '.join(batch)}; set train.num_steps"
            )
        mask = batch["mask"].cpu()
        if mask[:, -1].any():
            raise ValueError(
                f"{name}: the last row of the mask holds a step, and what was observed after it is "
                "nowhere; add a row with that observation, which is not in the mask"
            )
        with torch.no_grad():
            obs = self.prepare_obs(map_leaves(lambda x: x.flatten(0, 1), batch["obs"]))
            actions = self.to_device(batch["actions"]).flatten(0, 1)[:, None]
            starts = torch.zeros_like(mask)
            starts[:, 1:] = mask[:, 1:] & ~mask[:, :-1]
            state = map_leaves(lambda x: x.to(self.device), batch.get("state"))
            starts = starts.to(self.device)
            rows: dict[str, Any] = {"obs": obs, "actions": actions}
            rows |= self.estimates(batch, mask, {**rows, "starts": starts, "state": state})
            flat = mask.flatten().to(self.device)
            if not self.learns_segments:
                taken = flat.nonzero()[:, 0]
                return map_leaves(lambda x: x.index_select(0, taken) if x.ndim else x, rows)
            segments = map_leaves(lambda x: x.unflatten(0, mask.shape) if x.ndim else x, rows)
            return {**segments, "mask": flat.view(mask.shape), "starts": starts, "state": state}

    def estimates(
        self, batch: Mapping[str, Any], mask: Tensor, rows: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Compute what updates need besides observations and actions, for all ``rows`` ``[N L]``:
        by default the estimates of the policy that took the steps. ``mask`` is ``[N, L]``."""
        pi, values = self.policy_and_values(rows)
        log_probs = pi.log_prob(rows["actions"])[:, 0]
        found = self.gae(values, batch["rewards"], batch["terminated"], mask)
        return {"log_probs": log_probs, "values": values, **found}

    def received(self, batch: Mapping[str, Any], mask: Tensor) -> dict[str, Tensor]:
        """Return ``rewards`` and ``terminated`` of a round, ``[N L]`` each; zero where there is no
        step, as a NaN there would spoil a mean despite the mask."""
        given = {key: batch[key].cpu() for key in ("rewards", "terminated")}
        return {k: x.masked_fill(~mask, 0).flatten().to(self.device) for k, x in given.items()}

    def gae(
        self, values: Tensor, rewards: Tensor, terminated: Tensor, mask: Tensor
    ) -> dict[str, Tensor]:
        """Compute generalised ``advantages`` and ``returns`` ``[N L]`` by values ``[N L]``, and how
        much of the returns these explain; the other arguments are ``[N, L]``."""
        config, taken = self.algo_config, mask.cpu().numpy()
        v = values.view(mask.shape).float().cpu().numpy()  # NumPy has no bfloat16
        advantages = gae(
            rewards.float().cpu().numpy(),
            v,
            terminated.cpu().numpy(),
            ends_of(taken),
            config.discount,
            config.gae_lambda,
        )
        error, spread = advantages[taken].var(), (advantages + v)[taken].var()
        found = torch.from_numpy(advantages).flatten().to(self.device)
        share = 1 - error / max(spread, 1e-8)
        explained = torch.tensor(share, dtype=torch.float32, device=self.device)
        return {"advantages": found, "returns": found + values, "explained_variance": explained}

    def learn(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Make all updates of a round. Returns the numbers for the log of the last one."""
        info: dict[str, Any] = {}
        for batch in self.minibatches(self.process_batch_for_training(data)):
            info = self.train_on_batch(batch, self.epoch or 1)
        return info

    def minibatches(self, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the batches that a processed round is learned in: one of all its steps."""
        yield self._batch(data)

    def shuffled(self, data: Mapping[str, Any], num_passes: int) -> Iterator[dict[str, Any]]:
        """Yield batches of ``train.batch_size`` steps at most, all of much the same size, in
        several passes. Each has an order of its own. Segments stay whole."""
        num, size = len(data["actions"]), self.global_config.train.batch_size
        if self.learns_segments:
            size = max(1, size // (data["actions"].shape[1] - 1))
        num_batches = ceil(num / size)
        for _ in range(num_passes):
            if num_batches == 1:
                yield self._batch(data)
                continue
            order = torch.randperm(num).to(self.device)
            for rows in order.tensor_split(num_batches):
                yield self._batch(
                    map_leaves(lambda x, rows=rows: x.index_select(0, rows) if x.ndim else x, data)
                )

    def _batch(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Make the batch of all of the data, in which segments ``[n, L, ...]`` are rows."""
        if not self.learns_segments:
            return dict(data)
        segments = {key: part for key, part in data.items() if key not in ("state", "starts")}
        rows = map_leaves(lambda x: x.flatten(0, 1) if x.ndim else x, segments)
        return {**data, **rows, **{key: rows[key][rows["mask"]] for key in self.OF_STEPS}}

    # -- updates ----------------------------------------------------------------------------------

    def policy_and_values(self, batch: Mapping[str, Any]) -> tuple[Any, Tensor]:
        """Compute the policy and the values of all rows of a batch, ``[R, 1, A]`` and ``[R]``."""
        pi, values, _ = self.nets["policy"](*self._inputs(batch))
        return self._allowed(pi, batch["obs"]), values

    def policy(self, batch: Mapping[str, Any]) -> Any:
        """Compute the policy of all rows of a batch, ``[R, 1, A]``."""
        pi, _ = self.nets["policy"].policy(*self._inputs(batch))
        return self._allowed(pi, batch["obs"])

    def _inputs(self, batch: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        starts = batch["starts"] if self.algo_config.memory.enabled else None
        return batch["obs"], batch.get("state"), starts

    def evaluate(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the logarithms of the probabilities of the actions, the entropies of the policy
        and the values, of all steps of a batch: ``[M]`` each."""
        pi, values = self.policy_and_values(batch)
        log_probs, entropy = pi.log_prob(batch["actions"])[:, 0], pi.entropy()[:, 0]
        if not self.learns_segments:
            return log_probs, entropy, values
        mask = batch["mask"]
        return log_probs[mask], entropy[mask], values[mask]

    def normalized(self, advantages: Tensor, mask: Tensor | None = None) -> Tensor:
        """Normalise advantages ``[M]`` over the (masked) steps, if asked for and two or more."""
        if not self.algo_config.normalize_advantage:
            return advantages
        steps = advantages if mask is None else advantages[mask]
        if len(steps) < 2:
            return advantages
        std, mean = torch.std_mean(steps)
        return (advantages - mean) / (std + 1e-8)

    def means(self, mask: Tensor, *of_rows: Tensor) -> list[Tensor]:
        """Take means over the steps in the mask ``[R]`` of what rows have, ``[R]`` each."""
        share = mask / mask.sum()
        return [share @ x for x in of_rows]

    def descend(
        self, actor_loss: Tensor, value_loss: Tensor, entropy: Tensor, batch: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Make one step of the optimizer down the weighted sum of the losses, and up the entropy.
        Returns numbers for the log."""
        config = self.algo_config
        loss = actor_loss + config.vf_coef * value_loss
        if config.ent_coef:
            loss = loss - config.ent_coef * entropy
        return {
            "loss": loss,
            "Actor/Loss": actor_loss,
            "Critic/Loss": value_loss,
            "Entropy": entropy,
            "Explained_Variance": batch.get("explained_variance"),
            "Policy_Grad_Norms": self.optimize("policy", loss),
        }

    def is_capturable(self) -> bool:
        """Say no to segments: what is learned of them depends on where episodes begin."""
        return super().is_capturable() and not self.learns_segments

    # -- acting -----------------------------------------------------------------------------------

    def _allowed(self, pi: Any, obs: Obs) -> Any:
        """Take the actions that are forbidden out of the policy."""
        if ACTION_MASK not in obs or not self.is_discrete:
            return pi
        return type(pi)(masked(pi.logits[:, 0], obs)[:, None])

    def act(self, seen: Seen) -> tuple[Tensor, Any]:
        """Draw a sample of the policy while it ``explores``, else take its likeliest action."""
        obs = seen.obs
        if self.explores and seen.generators is None and self._is_quick(obs):
            return torch.from_numpy(self.nets["policy"].quick_sample(self.prepare_obs(obs))), None
        pi, state = self.action_distribution(obs, seen.goal, seen.state)
        pi = pi.at(-1)
        return pi.sample(seen.generators) if self.explores else pi.mode(), state

    def _is_quick(self, obs: Obs) -> bool:
        """Say if all actions are allowed, and the network has a quick way to draw them, which no
        subclass has replaced by a distribution of its own."""
        is_own = type(self).action_distribution is PolicyGradient.action_distribution
        num = len(next(iter(obs.values())))
        return is_own and ACTION_MASK not in obs and self.nets["policy"].is_quick(num)

    def action_distribution(
        self, obs: Obs, goal: Obs | None = None, state: Any = None
    ) -> tuple[Any, Any]:
        seen = self.prepare_obs(obs)
        pi, state = self.nets["policy"].policy(seen, state)
        return self._allowed(pi, seen), state

    def raw_action(self, action: Tensor) -> Tensor:
        """Return the environment's actions; real-valued ones are clipped to [-1, 1] before the
        normalisation is undone. (The actions that are learned from have no bounds.)"""
        return super().raw_action(action if self.is_discrete else action.clamp(-1.0, 1.0))

    def get_state_value(self, obs_dict: Obs, goal_dict: Any = None) -> Tensor:
        """Estimate the value ``[B, 1]`` of states ``{key: [B, ...]}`` without a memory."""
        return self.nets["policy"](self.prepare_states(obs_dict))[1][:, None]
