"""Rotations against the matrices that they stand for."""

import numpy as np
import pytest
import torch
from conftest import write_demos

from offrl import RolloutPolicy, Trainer
from offrl.normalize import matrix_to_axis_angle, matrix_to_euler, rot_6d_to_matrix


def turn(axis, angle):
    """Rotation about coordinate axis ``axis``."""
    return torch.matrix_exp(cross(torch.eye(3)[axis] * angle))


def cross(v):
    x, y, z = v
    return torch.tensor([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])


@pytest.mark.parametrize("seed", range(20))
def test_rotations_are_the_same_in_every_format(seed):
    generator = torch.Generator().manual_seed(seed)
    vector = torch.randn(3, generator=generator)
    vector *= float(torch.rand((), generator=generator)) * 3.1 / vector.norm()
    matrix = torch.matrix_exp(cross(vector))
    six = matrix[:2].flatten()
    torch.testing.assert_close(rot_6d_to_matrix(six), matrix, atol=1e-5, rtol=0)
    # Neither length nor angle between the two rows matters.
    spoilt = torch.cat([3 * six[:3], six[3:] + 0.5 * six[:3]])
    torch.testing.assert_close(rot_6d_to_matrix(spoilt), matrix, atol=1e-5, rtol=0)
    torch.testing.assert_close(matrix_to_axis_angle(matrix), vector, atol=1e-4, rtol=0)
    a, b, c = matrix_to_euler(matrix).tolist()
    torch.testing.assert_close(turn(0, a) @ turn(1, b) @ turn(2, c), matrix, atol=1e-4, rtol=0)


def test_no_rotation_and_half_a_turn():
    assert torch.equal(matrix_to_axis_angle(torch.eye(3)), torch.zeros(3))
    half = matrix_to_axis_angle(torch.diag(torch.tensor([1.0, -1.0, -1.0])))
    torch.testing.assert_close(half.abs(), torch.tensor([torch.pi, 0.0, 0.0]))


@pytest.mark.parametrize("convert", ["rot_axis_angle", "rot_euler"])
def test_a_policy_converts_rotations_when_it_acts(small_config, tmp_path, convert):
    path = tmp_path / "rotations.hdf5"
    write_demos(path)
    import h5py

    with h5py.File(path, "r+") as file:
        for demo in file["data"].values():
            demo["rotation"] = np.tile([1.0, 0, 0, 0, 1, 0], (len(demo["actions"]), 1))
    keys = ["actions", "rotation"]
    config = small_config(
        {
            "train": {
                "data": str(path),
                "action_keys": keys,
                "dataset_keys": keys,
                "action_config": {
                    "actions": {"normalization": "min_max"},
                    "rotation": {"format": "rot_6d", "convert_at_runtime": convert},
                },
            }
        }
    )
    trainer = Trainer(config)
    assert trainer.dataset.ac_dim == 8
    list(trainer())
    policy = RolloutPolicy(trainer.algo)
    policy.start_episode()
    assert policy({"position": np.zeros(3), "speed": np.zeros(2)}).shape == (5,)
