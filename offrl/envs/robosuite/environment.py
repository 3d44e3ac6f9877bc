"""robosuite tasks (Zhu et al., 2020, arXiv:2009.12293) as gymnasium environments."""

import functools
import logging
import os
import re
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from offrl.acting.episode import REACHED
from offrl.envs.experts import DemonstratedGoals
from offrl.envs.gymnasium import ResetValues, StepValues
from offrl.envs.playback import is_image
from offrl.envs.rendering import working_backend
from offrl.envs.robosuite.fast import choose_forms
from offrl.envs.robosuite.versions import EARLIER_OBJECTS, kwargs_for_installed, lay_out_as_earlier
from offrl.envs.tasks import maybe_metaworlds
from offrl.processes import changed_environ
from offrl.registry import ENVS, did_you_mean
from offrl.robomimic.configs import FAST

CAMERA = "agentview"
FRAME_SIZE = 384  # pixels; a multiple of 16 for video encoders
MARK = np.array([0.0, 1.0, 0.2, 0.6], dtype=np.float32)  # red, green, blue, opacity


@ENVS.register("robosuite")
class RobosuiteEnv(DemonstratedGoals):
    """A robosuite task with robomimic's observation names.

    The same seed gives the same initial state to the last bit. Only images need a renderer.

    Steps take less than half of robosuite's time, resets at most two thirds, with the same bits
    (``offrl.envs.robosuite.fast``); robosuite's own code runs where these do not apply.
    ``env_kwargs: {"offrl_fast": false}`` or ``OFFRL_FAST_SIM=0`` switches them off.
    """

    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def __init__(self, env_name: str, env_kwargs: dict[str, Any]):
        robosuite = _import_robosuite()
        _check_task(env_name)
        self._given = env_name, env_kwargs
        env_kwargs = dict(env_kwargs)
        wanted = env_kwargs.pop(FAST, None)
        if not isinstance(wanted, (bool, type(None))):
            raise ValueError(f"env_kwargs.{FAST} is {wanted!r}; give true or false")
        self._assets_root = f"{Path(robosuite.__file__).parent.parent}/"
        self._args = {"env_name": env_name, "env_version": robosuite.__version__, "type": 1}
        self._args["env_kwargs"] = env_kwargs
        # Windows never open here; offscreen contexts only where images are observations.
        options = {"use_camera_obs": False, **env_kwargs, "has_renderer": False}
        options["has_offscreen_renderer"] = bool(options["use_camera_obs"])
        is_earlier = options.pop(EARLIER_OBJECTS, False)
        try:
            self._env = robosuite.make(env_name, **options)
        except ValueError as error:
            said = re.search(r"observable (\w+)_(?:image|depth)\w* is invalid", str(error))
            if said is None:
                raise
            raise ValueError(
                f"{env_name} has no camera {said[1]!r} (env_kwargs.camera_names); most tasks have "
                "frontview, birdview, agentview, sideview, robot0_robotview and robot0_eye_in_hand"
            ) from None
        if is_earlier:
            lay_out_as_earlier(self._env)
        self._step, self._scenes, self._sensors = choose_forms(self._env, wanted)
        self._renderer: Any = None
        self._marks: list[np.ndarray] = []
        self._model_text: str | None = None  # this episode's model, cached on request
        limits = (limit.astype(np.float32) for limit in self._env.action_spec)
        self.action_space = gymnasium.spaces.Box(*limits, dtype=np.float32)
        bounds: dict[str, Any] = {"u": (0, 255), "b": (0, 1)}
        spaces: dict[str, gymnasium.Space] = {}
        for key, value in self._observe().items():
            low, high = bounds.get(value.dtype.kind, (-np.inf, np.inf))
            spaces[key] = gymnasium.spaces.Box(low, high, value.shape, value.dtype)
        self._sensed, self.observation_space = {*spaces}, gymnasium.spaces.Dict(spaces)

    @staticmethod
    def kwargs_of(env_args: Mapping[str, Any]) -> dict[str, Any]:
        """Translate the arguments of ``env_args``, also of 1.2 to 1.4, for this version."""
        _check_task(env_args["env_name"], is_liberos="bddl_file" in env_args)
        return kwargs_for_installed(env_args)

    @property
    def base_env(self) -> Any:
        """robosuite's own environment."""
        return self._env

    def observe_only(self, keys: Sequence[str] | None) -> None:
        """Compute only the observations ``keys`` from the next reset on. ``None`` or empty: all."""
        self._sensors.ask(keys if {*(keys or ())} <= self._sensed else None)

    def reset(self, *, seed: int | None = None, options: Any = None) -> ResetValues:
        super().reset(seed=seed)
        if seed is not None:
            # robosuite draws from several generators; replacing all by one new generator makes the
            # initial state a function of the seed, also where `hard_reset` rebuilds the model.
            self._env.rng = np.random.default_rng(seed)
            samplers = [getattr(self._env, "placement_initializer", None)]
            while samplers:  # samplers of positions may be nested
                if (sampler := samplers.pop()) is not None:
                    sampler.rng = self._env.rng
                    samplers += getattr(sampler, "samplers", {}).values()
        self._sensors.before_reset()
        self._scenes.reset()
        self._sensors.look_again()
        self._sensors.after_reset()
        self._begin_episode()
        return self._observe(self._env._get_observations()), {}

    def step(self, action: Any) -> StepValues:
        self._scenes.focus()
        raw, reward, done, info = self._step(action)
        info = {**info, "success": self.is_success()["task"]}
        return self._observe(raw), float(reward), False, bool(done), info

    def is_success(self) -> dict[str, bool]:
        success = self._env._check_success()
        return success if isinstance(success, dict) else {"task": bool(success)}

    def get_state(self) -> dict[str, Any]:
        """Return ``model``, MJCF text with paths from ``robosuite/`` on, and ``states`` ``[S]``."""
        if self._model_text is None:
            self._model_text = self._scenes.written().replace(self._assets_root, "")
        flat = np.array(self._env.sim.get_state().flatten())
        return {"model": self._model_text, "states": flat}

    def reset_to(self, state: dict[str, Any]) -> dict[str, np.ndarray]:
        """Set a state of ``get_state``; without ``model``, in this scene. All robots are 1.5's."""
        self._seed = None  # it does not lead to this state
        if "model" in state:
            self._sensors.before_reset()
            self._scenes.load(state["model"])
            self._sensors.after_reset()
            self._env.sim.reset()
            self._begin_episode()
        self._scenes.focus()
        flat = np.asarray(state["states"], dtype=np.float64)
        size = len(self._env.sim.get_state().flatten())
        if flat.shape != (size,):
            raise ValueError(
                f"{self._args['env_name']}: a state of shape {list(flat.shape)}, where the scene "
                f"has [{size}]; it was recorded in another one (robots, objects, simulator)"
            )
        self._env.sim.set_state_from_flattened(flat)
        self._env.sim.forward()
        # Controllers pull towards their initial state: restart them here.
        for robot in self._env.robots:
            for controller in robot.part_controllers.values():
                controller.update_initial_joints(self._env.sim.data.qpos[controller.qpos_index])
        # Sensors sample once per control step; observing again without this shifts their phase.
        for sensor in self._env._observables.values():
            sensor.reset()
        self._sensors.look_again()
        return self._observe()

    @functools.cached_property
    def goals(self) -> Any:
        """The poses that arms' actions aim at (``offrl.envs.robosuite.goals.ArmGoals``)."""
        from offrl.envs.robosuite.goals import ArmGoals

        return ArmGoals(self._env)

    def stand_still(self, last: np.ndarray | None) -> np.ndarray:
        """Return an action ``[A]`` after the ``last`` one that keeps arms and grippers as they are.
        Arms whose actions do not aim at poses repeat the last one."""
        try:
            goals = self.goals
        except ValueError:
            return np.zeros(self._env.action_dim) if last is None else last
        return goals.stand_still(last)

    def serialize(self) -> dict[str, Any]:
        return self._args

    def get_reward(self) -> float:
        """Compute the task's reward in the present state."""
        return float(self._env.reward(None))

    def mark(self, positions: Sequence[np.ndarray]) -> None:
        """Show spheres at ``positions`` ``[3]`` (metres, in the world's frame) in rendered images
        until the episode ends, instead of earlier ones. A point within a sphere has reached the
        position. Simulation and observations do not change."""
        self._marks = [np.array(position, dtype=np.float64) for position in positions]

    def render(self, camera: str = CAMERA, size: int | tuple[int, int] = FRAME_SIZE) -> np.ndarray:
        """Render an image ``[size, size, 3]`` (uint8), or ``[H, W, 3]`` where ``size`` is
        ``(H, W)``. This needs a rendering library, see ``offrl doctor``."""
        import mujoco

        model, data = self._env.sim.model._model, self._env.sim.data._data
        if camera not in self._env.sim.model.camera_names:
            known = ", ".join(self._env.sim.model.camera_names)
            raise ValueError(f"{self._args['env_name']} has no camera {camera!r}; it has {known}")
        height, width = size if isinstance(size, tuple) else (size, size)
        renderer = self._renderer
        if renderer is None or (renderer.height, renderer.width) != (height, width):
            self._close_renderer()
            area = model.vis.global_
            before = area.offwidth, area.offheight
            area.offwidth, area.offheight = max(width, before[0]), max(height, before[1])
            self._renderer = mujoco.Renderer(model, height, width)
            area.offwidth, area.offheight = before
        visible = mujoco.MjvOption()
        visible.geomgroup[0] = 0  # collision geometry
        self._renderer.update_scene(data, camera=camera, scene_option=visible)
        scene, kind = self._renderer.scene, mujoco.mjtGeom.mjGEOM_SPHERE
        for position in self._marks:
            sphere, radius = scene.geoms[scene.ngeom], np.full(3, REACHED)
            mujoco.mjv_initGeom(sphere, kind, radius, position, np.eye(3).ravel(), MARK)
            sphere.emission = 0.6  # visible without light
            scene.ngeom += 1
        return self._renderer.render().copy()

    def close(self) -> None:
        self._close_renderer()
        self._scenes.close()
        self._env.close()
        super().close()

    def _begin_episode(self) -> None:
        self._model_text, self._marks = None, []
        if self._renderer is not None and self._renderer.model is not self._env.sim.model._model:
            self._close_renderer()

    def _close_renderer(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _observe(self, raw: dict[str, Any] | None = None) -> dict[str, np.ndarray]:
        """Return observations by robomimic's names: each robot's sensors, and ``object``."""
        if raw is None:
            raw = self._env._get_observations(force_update=True)
        robots = tuple(robot.robot_model.naming_prefix for robot in self._env.robots)
        sensed = {k: v for k, v in raw.items() if k.startswith(robots) and not is_image(k)}
        obs = {k: np.array(v) for k, v in sensed.items() if not k.endswith("proprio-state")}
        # OpenGL's images are upside down.
        obs |= {k: np.array(v[::-1]) for k, v in raw.items() if is_image(k)}
        if "object-state" in raw:
            obs["object"] = np.array(raw["object-state"])
        return {key: obs[key] for key in self._sensors.alone or obs}


def _import_robosuite() -> Any:
    """Import robosuite quietly, also without a rendering library."""
    if "robosuite" in sys.modules:
        return sys.modules["robosuite"]
    stub = types.ModuleType("cv2")
    try:
        import cv2  # noqa: F401
    except ImportError:
        # OpenCV needs libGL to be imported; robosuite needs it only for windows on a screen.
        sys.modules["cv2"] = stub
    # mujoco chooses a back end on import, which fails if that is missing.
    backend = os.environ.get("MUJOCO_GL") or working_backend() or "disabled"
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with changed_environ({"MUJOCO_GL": backend}):
            import mujoco  # noqa: F401 (before robosuite, which overwrites MUJOCO_GL)
            import robosuite
    except ImportError as error:
        raise ImportError(
            f"robosuite is not usable here ({error}): pip install robosuite==1.5.2 'mujoco<3.10'"
        ) from error
    finally:
        logging.disable(disabled)
        if sys.modules["cv2"] is stub:
            del sys.modules["cv2"]
    logging.getLogger("robosuite_logs").setLevel(logging.ERROR)
    return robosuite


def tasks() -> list[str]:
    """List the names of all tasks."""
    return sorted(_import_robosuite().ALL_ENVIRONMENTS)


def _check_task(name: str, is_liberos: bool = False) -> None:
    """Raise ``ValueError`` if robosuite has no such task."""
    known = tasks()
    if name in known:
        return
    if is_liberos or name.lower().startswith("libero_"):
        raise ValueError(f"{name} is a task of LIBERO's, which neither robosuite nor offrl has")
    hint = maybe_metaworlds(name) or did_you_mean(name, known)
    raise ValueError(f"robosuite has no task {name!r}; it has {', '.join(known)}.{hint}")
