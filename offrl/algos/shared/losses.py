"""What losses of many algorithms are made of."""

from offrl.lazy import Tensor


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mean of values ``[B, T]``; with a mask ``[B, T, 1]``, over the steps where it is one."""
    if mask is None:
        return values.mean()
    mask = mask.squeeze(-1)
    return (values * mask).sum() / mask.sum()


def check_rewards(rewards: Tensor, algo_name: str) -> None:
    """``ValueError`` where there is nothing in the rewards to learn from."""
    if not rewards.any():
        raise ValueError(
            f"the rewards are all zero or missing, and {algo_name} learns from nothing else; label "
            'the data ("rewards"), or clone it with bc'
        )
