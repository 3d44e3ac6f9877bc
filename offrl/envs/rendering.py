"""Finds the OpenGL back end that MuJoCo can render with on this machine."""

import os
import subprocess
from collections.abc import Mapping
from typing import Any

from offrl.processes import program

BACKENDS = ("egl", "osmesa")
INSTALL_HINT = "apt-get install libegl1 libgl1 libosmesa6 (or the like), then offrl doctor"

_PROBE = """
import mujoco
xml = "<mujoco><worldbody><geom size='1' rgba='1 0 0 1'/></worldbody></mujoco>"
model = mujoco.MjModel.from_xml_string(xml)
renderer = mujoco.Renderer(model, 16, 16)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer.update_scene(data)
assert renderer.render().any()
"""


def renders_observations(env_args: Mapping[str, Any]) -> bool:
    """Say whether an environment's observations hold images, so that it cannot do without."""
    env_kwargs = env_args.get("env_kwargs")
    return isinstance(env_kwargs, Mapping) and bool(env_kwargs.get("use_camera_obs"))


def complaints(script: str, **environ: str) -> list[str]:
    """Return the lines that Python code prints where it fails; none where it works. It runs in a
    process of its own, which libraries of graphics may take down."""
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60}
    try:
        result = subprocess.run(program(script), env=os.environ | environ, check=False, **options)
    except subprocess.TimeoutExpired:
        return ["hangs"]
    if result.returncode == 0:
        return []
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    return lines or [f"exit status {result.returncode}"]


def probe(backend: str) -> str | None:
    """Say why ``backend`` does not render; ``None`` if it does. (A process chooses one once.)"""
    return next(reversed(complaints(_PROBE, MUJOCO_GL=backend)), None)


def working_backend() -> str | None:
    """Find the back end that ``MUJOCO_GL`` names, or the first that works, or ``None``."""
    chosen = os.environ.get("MUJOCO_GL")
    candidates = (chosen,) if chosen in BACKENDS else () if chosen else BACKENDS
    return next((b for b in candidates if probe(b) is None), None)


def needed_backend(needs: str = "") -> str:
    """Find a ``working_backend()``. ``ValueError``, which says what ``needs`` it, if none works."""
    backend = working_backend()
    if backend is None:
        why = f"{needs}: " if needs else ""
        raise ValueError(f"{why}no rendering back end works here; {INSTALL_HINT}")
    return backend
