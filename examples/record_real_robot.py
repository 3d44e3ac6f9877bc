"""Record a robot and its camera at 10 Hz; keys end, label and discard episodes.

    python examples/record_real_robot.py --output robot.hdf5

Copy it, and put your robot in the place of ``Robot``: here a simulated arm stands in for it. If a
recording was cut off, run the same command again: it continues where it stopped.
"""

import argparse
import os
import select
import sys
import termios
import time
import tty
from contextlib import closing

import gymnasium
import numpy as np

from offrl.data.writer import DemoWriter
from offrl.envs.rendering import working_backend

HZ = 10
TOLERANCE = 0.01  # seconds that a step may begin late and nothing is said
KEYS = "s: success   f: failure   d: discard   q: finish (discards this one)"


class Robot:
    """A stand-in for yours: gymnasium's arm of two joints, and somebody who leads it to a target.

    ``home`` ends when the robot is ready; ``observe`` returns the newest readings, ``command`` what
    the operator (a leader arm, a space mouse, ...) asks for now; ``send`` does not wait.
    """

    def __init__(self):
        os.environ.setdefault("MUJOCO_GL", working_backend() or "egl")
        self.env = gymnasium.make("Reacher-v5", render_mode="rgb_array", width=96, height=96)

    def home(self):
        self.state, _ = self.env.reset()

    def observe(self):
        angles = np.arctan2(self.state[2:4], self.state[:2])
        return {
            "joints": angles,
            "joint_speeds": self.state[6:8],
            "target": self.state[4:6],
            "camera_image": self.env.render(),  # [H, W, 3], uint8
        }

    def command(self):
        """A spring from the fingertip to the target, through the transposed Jacobian."""
        first, second = np.arctan2(self.state[2:4], self.state[:2])
        upper = 0.1 * np.array([-np.sin(first), np.cos(first)])
        lower = 0.11 * np.array([-np.sin(first + second), np.cos(first + second)])
        pull = -self.state[8:10]
        torques = np.array([(upper + lower) @ pull, lower @ pull]) * 20 - 0.02 * self.state[6:8]
        return np.clip(torques, -1, 1)

    def send(self, action):
        self.state, *_ = self.env.step(action)

    def close(self):
        self.env.close()


class Keys:
    """Single keys from the terminal, without Enter and without waiting."""

    def __enter__(self):
        if not sys.stdin.isatty():
            raise ValueError("keys are read from a terminal; run this in one")
        self.before = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
        return self

    def __exit__(self, *_):
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self.before)

    def pressed(self, seconds=0.0):
        """The next key, if one comes within so many seconds; else an empty text."""
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return os.read(sys.stdin.fileno(), 1).decode(errors="ignore") if ready else ""

    def wait_for(self, wanted):
        while (key := self.pressed(1.0)) not in tuple(wanted):
            pass
        return key


def record_episode(robot, keys):
    """Record until a key ends it: the trajectory, the key, and how late a step began at worst."""
    rows, late = {}, []
    start = due = time.monotonic()
    while True:
        key = keys.pressed(max(0.0, due - time.monotonic()))
        if key and key in "sfdq":
            break
        if key:
            continue  # none of these: what is left of the wait is still waited for
        now = time.monotonic()
        late.append(now - due)
        obs, action = robot.observe(), robot.command()  # what was seen, and what was done then
        robot.send(action)
        step = {"actions": action, "seconds": now - start}
        for name, value in (step | {f"obs/{k}": v for k, v in obs.items()}).items():
            rows.setdefault(name, []).append(np.array(value))
        # Time that was lost is not made up for: steps in quick succession would not be 10 Hz.
        due = (now if late[-1] > TOLERANCE else due) + 1 / HZ
    missed = [seconds for seconds in late if seconds > TOLERANCE]
    if missed:
        print(
            f"  {len(missed)} of {len(late)} steps began late, by {1000 * max(missed):.0f} ms at "
            f"most: a camera or a robot does not keep up with {HZ} Hz"
        )
    return {name: np.stack(column) for name, column in rows.items()}, key, max(late, default=0)


def record(path):
    with (
        Keys() as keys,
        DemoWriter(path, compression="png", resume=True) as writer,
        closing(Robot()) as robot,
    ):
        print(f"{writer.num_demos} episodes are recorded; {path} is there when you finish")
        while True:
            robot.home()
            print(f"\nepisode {writer.num_demos}   space: start   q: finish")
            if keys.wait_for(" q") == "q":
                break
            print(f"recording   {KEYS}")
            trajectory, key, latest = record_episode(robot, keys)
            steps = len(trajectory.get("actions", ()))
            if key == "q":
                break
            if key == "d" or steps < 2:
                print(f"  discarded {steps} steps")
                continue
            succeeds = np.zeros(steps)
            succeeds[-1] = key == "s"
            trajectory |= {"rewards": succeeds, "dones": succeeds}
            name = writer.write(trajectory, success=key == "s", fps=HZ, latest_seconds=latest)
            print(f"  {name}: {steps} steps, {'success' if key == 's' else 'failure'}")
        if writer.num_demos > 1:
            writer.write_split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True)
    try:
        record(parser.parse_args().output)
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
