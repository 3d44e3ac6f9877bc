"""Normalisation by recorded statistics, ``(x - offset) / scale`` and back; formats of rotations."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from offrl.lazy import Tensor, torch

Stats = Mapping[str, Mapping[str, Any]]  # key -> {"scale": [1, D], "offset": [1, D]}


class Normalizer:
    """Normalises arrays by statistics ``{key: {"scale", "offset"}}``: ``(x - offset) / scale``. The
    statistics are tensors on one device. Keys without statistics pass unchanged."""

    def __init__(self, stats: Stats | None = None, device: Any = "cpu"):
        self.stats = {
            key: {n: torch.as_tensor(v, dtype=torch.float32, device=device) for n, v in s.items()}
            for key, s in (stats or {}).items()
        }

    def normalize(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Normalise values ``{key: [..., D]}``, key by key."""
        return {
            k: (v - self.stats[k]["offset"]) / self.stats[k]["scale"] if k in self.stats else v
            for k, v in values.items()
        }

    def unnormalize(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Undo ``normalize``."""
        return {
            k: v * self.stats[k]["scale"] + self.stats[k]["offset"] if k in self.stats else v
            for k, v in values.items()
        }

    def normalize_vector(self, vector: Any) -> Any:
        """Normalise ``[..., D]``, the keys' values joined in their order."""
        if not self.stats:
            return vector
        return (vector - self._joined("offset")) / self._joined("scale")

    def unnormalize_vector(self, vector: Any) -> Any:
        """Undo ``normalize_vector``."""
        if not self.stats:
            return vector
        return vector * self._joined("scale") + self._joined("offset")

    def _joined(self, name: str) -> Any:
        return torch.cat([s[name] for s in self.stats.values()], dim=-1)


# -- rotations ------------------------------------------------------------------------------------


def rot_6d_to_matrix(rotation: Tensor) -> Tensor:
    """Make the first two rows of a rotation matrix, ``[..., 6]``, orthonormal, and add the third:
    ``[..., 3, 3]`` (Zhou et al., 2019, arXiv:1812.07035). This representation is continuous."""
    first, second = rotation[..., :3], rotation[..., 3:]
    x = torch.nn.functional.normalize(first, dim=-1)
    y = torch.nn.functional.normalize(second - (x * second).sum(-1, keepdim=True) * x, dim=-1)
    return torch.stack([x, y, torch.linalg.cross(x, y)], dim=-2)


def axis_angle_to_rot_6d(rotation: np.ndarray) -> np.ndarray:
    """Turn axis times angle, ``[..., 3]`` in radians, into the first two rows of the matrix,
    ``[..., 6]``: ``cos(t) I + sin(t)/t K + (1 - cos(t))/t^2 v v^T`` (Rodrigues' formula)."""
    angle = np.linalg.norm(rotation, axis=-1)[..., None, None]
    x, y, z = np.moveaxis(rotation, -1, 0)
    zero = np.zeros_like(x)
    cross = np.stack([zero, -z, y, z, zero, -x], axis=-1).reshape(*x.shape, 2, 3)
    outer = rotation[..., :2, None] * rotation[..., None, :]
    sine, half = np.sinc(angle / np.pi), np.sinc(angle / (2 * np.pi))  # also without a rotation
    rows = np.cos(angle) * np.eye(3)[:2] + sine * cross + 0.5 * half**2 * outer
    return rows.reshape(*x.shape, 6)


def matrix_to_axis_angle(matrix: Tensor) -> Tensor:
    """Turn matrices ``[..., 3, 3]`` into axis times angle, ``[..., 3]`` in radians."""
    xx, xy, xz, yx, yy, yz, zx, zy, zz = matrix.flatten(-2).unbind(-1)
    # The quaternion (w, x, y, z), four times each product of two components; the row of the
    # largest component has the best digits.
    rows = [
        [1 + xx + yy + zz, zy - yz, xz - zx, yx - xy],
        [zy - yz, 1 + xx - yy - zz, xy + yx, xz + zx],
        [xz - zx, xy + yx, 1 - xx + yy - zz, yz + zy],
        [yx - xy, xz + zx, yz + zy, 1 - xx - yy + zz],
    ]
    products = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
    best = products.diagonal(dim1=-2, dim2=-1).argmax(-1)[..., None, None]
    row = products.gather(-2, best.expand(*best.shape[:-1], 4)).squeeze(-2)
    quaternion = torch.nn.functional.normalize(row, dim=-1)
    quaternion = torch.where(quaternion[..., :1] < 0, -quaternion, quaternion)
    sine = quaternion[..., 1:].norm(dim=-1, keepdim=True)
    angle = 2 * torch.atan2(sine, quaternion[..., :1])
    return quaternion[..., 1:] * torch.where(sine > 1e-7, angle / sine.clamp(min=1e-7), 2.0)


def matrix_to_euler(matrix: Tensor) -> Tensor:
    """Turn matrices ``R = Rx(a) Ry(b) Rz(c)`` into ``(a, b, c)``, ``[..., 3]`` in radians."""
    a = torch.atan2(-matrix[..., 1, 2], matrix[..., 2, 2])
    b = torch.asin(matrix[..., 0, 2].clamp(-1, 1))
    c = torch.atan2(-matrix[..., 0, 1], matrix[..., 0, 0])
    return torch.stack([a, b, c], dim=-1)


CONVERSIONS = {"rot_axis_angle": matrix_to_axis_angle, "rot_euler": matrix_to_euler}
