"""Evaluation without an environment: numbers from data that stand in for success, and may mislead.
They are the distance of the policy from the demonstrations' actions, its values and their
consistency, and the return that fitted Q evaluation predicts."""

from typing import Any

import torch
from torch import Tensor
from tqdm import trange

from offrl.algos.base import PlannerAlgo, ValueAlgo
from offrl.algos.fqe import FQE, FQEConfig
from offrl.config.build import complete_config
from offrl.data.sequence import SequenceDataset
from offrl.seeding import preserved_rng
from offrl.specs import ObsSpec
from offrl.tree import map_leaves

AT_ONCE = 256  # demonstrations; images of one step of each are in memory together


def proxies(
    algo: Any, data: SequenceDataset, held_out: SequenceDataset, fqe_steps: int = 0, seed: int = 0
) -> dict[str, float]:
    """Measure an algorithm on the data ``held_out``; with ``fqe_steps`` also by so many steps of
    fitted Q evaluation on ``data``. Both datasets consist of single steps."""
    check_measurable(algo, fqe_steps)
    algo.set_eval()
    algo.obs_spec.check_shapes(held_out.obs_shapes, "obs")
    with preserved_rng():
        torch.manual_seed(seed)
        seen = look_through(algo, held_out)
        logs = _differences(algo, held_out, seen)
        if fqe_steps:
            policy = seen["policy"] if data is held_out else look_through(algo, data)["policy"]
            fqe = fit_fqe(algo, data, policy, fqe_steps)
            batch, first = held_out.get_batch(held_out.first_rows), held_out.first_rows
            obs, goal = _for_values(algo, batch["obs"]), batch.get("goal_obs")
            with torch.no_grad():
                values = fqe.get_state_action_value(obs, seen["policy"][first], goal)
            logs["FQE_Initial_Value"] = float(values.mean())
    return logs


def check_measurable(algo: Any, fqe_steps: int) -> None:
    """Raise ``ValueError`` for an algorithm that ``proxies`` cannot measure."""
    name, key = algo.global_config.algo_name, "experiment.proxies"
    if isinstance(algo, PlannerAlgo):
        raise ValueError(f"{name}: it proposes subgoals, not actions; set {key}.enabled=false")
    if not callable(getattr(algo, "act", None)):
        raise ValueError(f"{name}: proxies need many actions at once; define act beside get_action")
    if fqe_steps and algo.global_config.train.goal_rewards:
        raise ValueError(
            f"{name}: it learns from train.goal_rewards, but fitted Q evaluation is of the data's "
            f"rewards; leave it out (--fqe-steps, {key}.fqe_steps=0)"
        )


@torch.no_grad()
def look_through(algo: Any, dataset: SequenceDataset) -> dict[str, Tensor]:
    """Ask an algorithm about every step of a dataset of single steps. Returns the ``policy``'s
    actions ``[N, A]`` and, if it estimates values of the data's rewards, ``values`` of states and
    ``q`` of the recorded actions, ``[N]`` each."""
    lengths = torch.as_tensor(dataset.lengths, device=dataset.device)
    found: dict[str, Tensor] = {}
    for demos in torch.arange(len(lengths), device=dataset.device).split(AT_ONCE):
        begins, state = dataset.first_rows[demos], None
        generators = [torch.Generator().manual_seed(i) for i in demos.tolist()]
        # Demonstrations run side by side, so that a policy keeps a memory of each.
        for step in range(int(lengths[demos].max())):
            batch = dataset.get_batch(begins + (lengths[demos] - 1).clamp(max=step))
            obs, goal, recorded = batch["obs"], batch.get("goal_obs"), batch["actions"][:, -1]
            actions, state = algo.act(obs, goal, state, generators)
            if algo.COUNTS_REWARDS:  # of the recorded action, not its own
                rewards = algo.to_device(batch["rewards"][:, -1]).view(-1, 1)
                state = algo.receive(state, algo.to_device(recorded), rewards)
            answers = {"policy": actions}
            if isinstance(algo, ValueAlgo) and not algo.global_config.train.goal_rewards:
                obs = _for_values(algo, obs)
                answers["values"] = algo.get_state_value(obs, goal)[:, 0]
                answers["q"] = algo.get_state_action_value(obs, recorded, goal)[:, 0]
            going_on = lengths[demos] > step
            rows = (begins + step)[going_on].to(algo.device)
            for name, answer in answers.items():
                if name not in found:
                    found[name] = answer.new_zeros(int(lengths.sum()), *answer.shape[1:])
                found[name][rows] = answer[going_on.to(algo.device)]
    return found


def _differences(algo: Any, dataset: SequenceDataset, seen: dict[str, Tensor]) -> dict[str, float]:
    actions = algo.to_device(dataset.values("actions"))
    logs = {"Action_Difference": (seen["policy"] - actions).square().sum(-1).mean()}
    if "q" in seen:
        q, values = seen["q"], seen["values"]
        rows, following, dones = _transitions(dataset)
        rewards = algo.to_device(dataset.values("rewards")).flatten()
        later = algo.algo_config.discount * (1 - dones.to(q)) * values[following]
        advantage = q - values
        logs |= {
            "TD_Error": (rewards[rows] + later - q[rows]).square().mean(),
            "Value_Mean": values.mean(),
            "Value_Std": values.std(correction=0),
            "Advantage_Mean": advantage.mean(),
            "Advantage_Std": advantage.std(correction=0),
            "Initial_Value": values[dataset.first_rows].mean(),
        }
    return {name: float(value) for name, value in logs.items()}


def _transitions(dataset: SequenceDataset) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows of all steps whose next state is known, the rows of these states, and whether
    the episode terminated there: all but last steps of demonstrations that did not terminate."""
    dones = dataset.values("dones").flatten()
    known = torch.ones_like(dones, dtype=torch.bool)
    last = dataset.first_rows - 1  # last rows of the previous demonstrations (the first: of all)
    known[last] = dones[last] > 0
    rows = known.nonzero().flatten()
    return rows, (rows + 1).clamp(max=len(dones) - 1), dones[rows]


def fit_fqe(algo: Any, dataset: SequenceDataset, policy: Tensor, num_steps: int) -> FQE:
    """Fit the value of a policy whose actions at all steps of the dataset are ``policy [N, A]``."""
    frames = {"train": {"frame_stack": algo.global_config.train.frame_stack}}
    config = complete_config("fqe", FQEConfig, frames)
    own: Any = config.algo
    own.discount = getattr(algo.algo_config, "discount", own.discount)
    spec = ObsSpec({group: algo.obs_spec.groups.get(group, {}) for group in FQE.GROUPS})
    fqe = FQE(config=config, obs_spec=spec, ac_dim=algo.ac_dim, device=algo.device)
    fqe.obs_normalizer = algo.obs_normalizer
    fqe.set_train()
    rows, following, _ = _transitions(dataset)
    if not len(rows):
        raise ValueError(
            f"{dataset.hdf5_path}: no transition whose next step is known, so that fitted Q "
            "evaluation has nothing to fit; leave it out (experiment.proxies.fqe_steps=0)"
        )
    for _ in trange(num_steps, desc="fitted Q", unit="step", leave=False, disable=None):
        chosen = torch.randint(len(rows), (config.train.batch_size,)).to(rows.device)
        batch, after = (dataset.get_batch(x[chosen]) for x in (rows, following))
        batch |= {"next_obs": after["obs"], "next_actions": policy[following[chosen], None]}
        fqe.train_on_batch(fqe.process_batch_for_training(batch), epoch=1)
    fqe.set_eval()
    return fqe


def _for_values(algo: Any, obs: Any) -> Any:
    """Leave the dimension of time out where values see one step."""
    has_time = algo.global_config.train.frame_stack > 1
    return obs if has_time else map_leaves(lambda x: x[:, 0], obs)
