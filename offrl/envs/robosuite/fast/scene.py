"""robosuite's resets without repeated compilation, with the bits of ``env.reset``; and sensors, of
which only those asked for, and those that they read, are computed.

A hard reset writes and compiles two models, the robot's alone (which nothing reads) and the
scene's. Here a text is compiled once. If two hard resets wrote the same scene without random draws
for it, as where only placements differ, the next ones do not even write it. Each episode begins
with the model as it was compiled.

It repeats code of robosuite 1.5.2, for that version only. Import it after robosuite.
"""

import functools
import logging
import os
import re
import threading
from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import mujoco
import numpy as np
import robosuite
from robosuite.environments.base import MujocoEnv
from robosuite.models.robots.robot_model import RobotModel
from robosuite.utils.binding_utils import MjSim
from robosuite.utils.observables import NO_CORRUPTION, NO_DELAY, NO_FILTER, Observable

from offrl.envs import say_once
from offrl.envs.robosuite.versions import is_earlier, model_for_installed

OBJECT = "object"  # the observation, and the modality of its sensors
IMAGE = "image"
REPEATED = ["reset", "reset_from_xml_string", "edit_model_xml", "close"]  # methods of MujocoEnv
REPEATED += ["_initialize_sim", "_reset_observables"]
LARGE = 2**20  # bytes; meshes, textures and their trees, which robosuite never changes
VISUAL = ("headlight", "map", "quality", "rgba", "scale")  # "global_" belongs to renderers
_PATCHING = threading.RLock()  # held while attributes of robosuite's classes are replaced
_FILE = re.compile(r' file="([^"]*)"')
_BODY = re.compile(r'<body name="([^"]*)"')


class Sensors:
    """Chooses the sensors that an environment computes, without changing their bits: a sensor reads
    others only through a cache, where these reads are observed. If any sensor is corrupted,
    filtered or delayed on purpose, all are computed."""

    def __init__(self, env: Any, may_leave_out: bool):
        self.env, self._may_leave_out = env, may_leave_out
        self.asked: tuple[str, ...] = ()  # observations for coming episodes; empty: all
        self.alone: tuple[str, ...] = ()  # for this episode
        self._left_out: list[Any] = []

    def ask(self, keys: Sequence[str] | None) -> None:
        """Set the observations that coming episodes need; ``None`` or empty: all."""
        self.asked = tuple(keys or ()) if self._may_leave_out else ()

    def before_reset(self) -> None:
        """Let resets compute all sensors but cameras, as they may change which reads which."""
        for sensor in self._left_out:
            sensor._enabled = True
        self._left_out = []
        self.alone = self.asked if are_exact(self.env) else ()
        if self.alone:
            seen = {*self.alone, *(key.replace("_depth", "_image") for key in self.alone)}
            self._leave_out(s for s in self._enabled(images=True) if s.name not in seen)

    def look_again(self) -> None:
        """Compute the sensors once more: some, such as a can's position relative to the hand, read
        the last values of others, which are missing after a reset, or of another state."""
        for sensor in self._enabled():
            sensor.update(timestep=0.0, obs_cache=self.env._obs_cache, force=True)

    def after_reset(self) -> None:
        if self.alone:
            asked, sensors = set(self.alone), self._enabled()
            if OBJECT in asked:
                asked |= {sensor.name for sensor in sensors if sensor.modality == OBJECT}
            needed = self._with_what_they_read(asked)
            self._leave_out(sensor for sensor in sensors if sensor.name not in needed)

    def _enabled(self, images: bool = False) -> list[Any]:
        """Return the enabled cameras, or all other enabled sensors."""
        sensors = self.env._observables.values()
        return [s for s in sensors if s._enabled and (s.modality == IMAGE) == images]

    def _leave_out(self, sensors: Iterable[Any]) -> None:
        for sensor in sensors:
            sensor._enabled = False
            self._left_out.append(sensor)

    def _with_what_they_read(self, names: set[str]) -> set[str]:
        """Add to names of sensors those that these read, recursively."""
        read: dict[str, set[str]] = {}
        writers: dict[str, set[str]] = {}
        for sensor in self._enabled():
            cache = _WatchedCache(self.env._obs_cache)
            sensor._sensor(cache)
            read[sensor.name] = cache.read
            for key in cache.written:
                writers.setdefault(key, set()).add(sensor.name)
        needed, new = set(names), set(names)
        while new:
            keys = {key for name in new for key in read.get(name, ())}
            new = keys.union(*(writers.get(key, ()) for key in keys)) - needed
            needed |= new
        return needed


def are_exact(env: Any) -> bool:
    """Say whether all sensors are exact and immediate."""
    plain = NO_CORRUPTION, NO_FILTER, NO_DELAY
    return all((s._corrupter, s._filter, s._delayer) == plain for s in env._observables.values())


class _WatchedCache(UserDict[str, Any]):
    """A copy of a cache that notes which keys are read and written."""

    def __init__(self, cache: Mapping[str, Any]):
        self.data = dict(cache)
        self.read: set[str] = set()
        self.written: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self.data[key]

    def __contains__(self, key: Any) -> bool:
        self.read.add(key)
        return key in self.data

    def __setitem__(self, key: str, value: Any) -> None:
        self.written.add(key)
        self.data[key] = value


class Scene:
    """A simulator, and the text that its model was compiled from.

    is_kept: keep a copy of the compiled model, to begin with it again. Textures are not copied:
        code that paints them during episodes needs robosuite's own resets.
    """

    def __init__(self, text: str, is_kept: bool):
        self.text, self.sim, self.is_kept = text, MjSim.from_xml_string(text), is_kept
        self._arrays: list[tuple[np.ndarray, np.ndarray]] = []
        self._numbers: list[tuple[Any, str, float]] = []
        model = self.sim.model._model
        visual = [getattr(model.vis, name) for name in VISUAL]
        for struct in (model, model.opt, model.stat, *visual) if is_kept else ():
            for name in dir(struct):
                value: Any = None if name.startswith("_") else getattr(struct, name)
                if isinstance(value, np.ndarray):
                    if value.nbytes < LARGE and value.flags.writeable:
                        self._arrays.append((value, value.copy()))
                elif isinstance(value, (int, float)) and struct is not model:
                    self._numbers.append((struct, name, value))

    def restart(self) -> None:
        """Restore model and data as they were when compiled, after robosuite's initialisation."""
        for array, compiled in self._arrays:
            array[...] = compiled
        for struct, name, number in self._numbers:
            setattr(struct, name, number)
        self.sim.reset()
        self.sim.forward()  # initialises the solver
        if self.sim._render_context_offscreen is not None:  # a new context is needed
            _focus(self.sim)
            self.sim.forward()


class Scenes:
    """Repeats ``env.reset`` and ``env.reset_from_xml_string``, or with ``is_plain`` calls them."""

    def __init__(self, env: Any, is_plain: bool):
        self.env = env
        self.is_plain = is_plain
        self._own: Scene | None = None  # of the last hard reset
        self._given: Scene | None = None  # of the last loaded text
        self._given_text = ""  # as it was given
        self._translated = functools.lru_cache(maxsize=1)(self._translation)
        self._newest: Scene | None = None
        self._is_constant = False  # whether a hard reset would write the same scene
        self._drawn: Any = None  # the random state before this reset
        self._robot_model = functools.lru_cache(maxsize=4)(mujoco.MjModel.from_xml_string)
        env.set_xml_processor(self._remember_text)
        self._text = self._processed(env.model.get_xml())  # of the present model

    def reset(self) -> None:
        """Do what ``env.reset()`` does."""
        if self.is_plain or not self.env.hard_reset:
            self._plain_reset()
            return
        self._drawn = self.env.rng.bit_generator.state
        with self._replaced(_initialize_sim=self._initialize):
            self.env.reset()

    def load(self, text: str) -> None:
        """Do what ``env.reset()`` and ``env.reset_from_xml_string(env.edit_model_xml(text))`` do;
        do nothing with an earlier robosuite's model that cannot be translated."""
        env = self.env
        if is_earlier(text):
            text = self._translated(text)
            if not text:
                self.reset()
                return
        if self.is_plain or not env.hard_reset:
            self._plain_reset()
            env.reset_from_xml_string(env.edit_model_xml(text))
            return
        # The first reset only makes its random draws, in any simulator.
        unseen: dict[str, Any] = {"_initialize_sim": lambda: None}
        if are_exact(env):
            unseen["_get_observations"] = lambda force_update: {}
        with self._replaced(**unseen):
            env.reset()
        if self._given is None or self._given_text != text:
            edited = self._processed(env.edit_model_xml(text))
            self._given = self._compiled(edited, self._given)
            self._given_text = text
        self._begin(self._given)
        with self._replaced(deterministic_reset=True):
            env.reset()

    def _translation(self, text: str) -> str:
        """Translate a model of an earlier robosuite; return nothing, and warn, if that fails."""
        try:
            model = model_for_installed(text, self._text)
            mujoco.MjModel.from_xml_string(self.env.edit_model_xml(model))
        except ValueError as error:
            why = str(error).splitlines()[0]
            say_once(
                logging.WARNING,
                f"{type(self.env).__name__}: a model of an earlier robosuite fails ({why}); "
                "states are shown in a scene of this version, whose objects may differ in size",
            )
            return ""
        return model

    def written(self) -> str:
        """Return the MJCF text of the present model. MuJoCo writes the structure of the model that
        it compiled last, in any environment, with the values of the given model."""
        sim = self.env.sim
        text = sim.model.get_xml()
        scene = next((kept for kept in self._kept() if kept.sim is sim), None)
        is_newest = scene is self._newest
        if not is_newest or {*_BODY.findall(text)} != {*sim.model.body_names} - {"world"}:
            mujoco.MjModel.from_xml_string(self._text)
            self._newest = scene
            text = sim.model.get_xml()
        return text

    def focus(self) -> None:
        """Render in the present simulator's own context, not in that of another environment."""
        _focus(self.env.sim)

    def close(self) -> None:
        """Delete the scenes, and free their rendering contexts, before robosuite closes."""
        for sim in {self.env.sim, *(kept.sim for kept in self._kept())}:
            _close_camera(sim)
        self._own = self._given = self._newest = None
        self._is_constant = False

    @contextmanager
    def _replaced(self, **attributes: Any) -> Iterator[None]:
        """Replace the parts of resets that are skipped or done otherwise. Sensors are valid."""
        if self._is_constant:
            attributes["_load_model"] = lambda: None
        with (
            _PATCHING,
            _patched(self.env, **attributes),
            _patched(RobotModel, get_model=lambda model: self._robot_model(model.get_xml())),
            _patched(Observable, _check_sensor_validity=lambda sensor: None),
        ):
            yield

    def _initialize(self) -> None:
        env, last = self.env, self._own
        if last is None or not self._is_constant:
            text = self._processed(env.model.get_xml())
            is_drawn = env.rng.bit_generator.state != self._drawn
            is_known = last is not None and last.is_kept and last.text == text
            # robosuite's own scenes depend only on arguments and draws; others may depend on more.
            is_robosuites = type(env).__module__.startswith("robosuite.environments.")
            self._is_constant = is_known and not is_drawn and is_robosuites
            if last is None or not self._is_constant:
                last = self._own = self._compiled(text, last, is_kept=not is_drawn)
        self._begin(last)

    def _plain_reset(self) -> None:
        if self.env.hard_reset:  # makes another simulator
            _close_camera(self.env.sim)
        self.env.reset()

    def _begin(self, scene: Scene) -> None:
        if self.env.sim not in [kept.sim for kept in self._kept()]:  # the very first one
            _close_camera(self.env.sim)
        self.env.sim, self._text = scene.sim, scene.text
        scene.restart()
        self.env.initialize_time(self.env.control_freq)

    def _compiled(self, text: str, instead_of: Scene | None, is_kept: bool = True) -> Scene:
        if instead_of is not None:
            _close_camera(instead_of.sim)
        self._newest = Scene(text, is_kept)
        return self._newest

    def _kept(self) -> list[Scene]:
        return [scene for scene in (self._own, self._given) if scene is not None]

    def _processed(self, text: str) -> str:
        """Return the text that robosuite would compile. robosuite first corrects paths of assets,
        which is needless if all are in its own folder."""
        processes = self.env._xml_processors
        if processes[0] == self.env.edit_model_xml:
            root = f"{os.path.dirname(robosuite.__file__)}/"
            files = _FILE.findall(text)
            inside = [file.removeprefix(root).split("/") for file in files if file.startswith(root)]
            if len(inside) == len(files) and not any("robosuite" in path for path in inside):
                processes = processes[1:]
        return functools.reduce(lambda xml, process: process(xml), processes, text)

    def _remember_text(self, text: str) -> str:
        self._text = text
        return text


def _focus(sim: Any) -> None:
    if sim._render_context_offscreen is not None:
        sim._render_context_offscreen.gl_ctx.make_current()


def _close_camera(sim: Any) -> None:
    """Free a simulator's rendering resources in its own context. robosuite leaves this to the
    garbage collector, which may run in another context and spoil its pictures."""
    if sim is not None:  # a closed environment has none
        _focus(sim)
        sim._render_context_offscreen = None


def unsupported(env: Any) -> str | None:
    """Name the part of an environment's resets that ``Scenes`` cannot repeat, if any."""
    for name in REPEATED:
        if getattr(getattr(env, name), "__func__", None) is not getattr(MujocoEnv, name):
            return f"{type(env).__name__} has a {name} of its own"
    if env.has_renderer or env.renderer != "mjviewer":
        return "it renders to a screen"
    return None


@contextmanager
def _patched(owner: Any, **attributes: Any) -> Iterator[None]:
    """Replace attributes of an object or a class for the block."""
    own = {name: value for name, value in vars(owner).items() if name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in attributes:
            delattr(owner, name)
        for name, value in own.items():
            setattr(owner, name, value)
