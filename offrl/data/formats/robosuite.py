"""The layout of robosuite's own recording script."""

import json
from typing import Any

import h5py

from offrl.data.formats.hdf5 import DemoFile, attributes_of_data, located
from offrl.data.storage import StoredArray

# Arguments of robosuite's recording script that ``env_info`` lacks.
RECORDED_WITH = {"ignore_done": True, "use_camera_obs": False, "control_freq": 20}
HEADLESS = {"has_renderer": False, "has_offscreen_renderer": False}
STATES = {"obs/states": "states"}


class RobosuiteRaw(DemoFile):
    """A file of robosuite's own recording script: demonstrations ``demo_1`` on with ``states``,
    ``actions`` and ``model_file``, and the attributes ``env`` and ``env_info`` of all of them.

    The states can be trained on as the observation ``states``; there are no others, unless other
    programs added them.
    """

    layout = "robosuite's own"

    @property
    def env_args(self) -> dict[str, Any]:
        with located(self.path, "the attributes env and env_info of data"):
            attributes = self._file["data"].attrs
            info = json.loads(attributes["env_info"])
            kwargs = {**RECORDED_WITH, **info, **HEADLESS}
            kwargs.pop("env_name", None)
            return {
                "env_name": str(attributes["env"]),
                "env_version": str(attributes.get("repository_version", "")),
                "type": 1,
                "env_kwargs": kwargs,
            }

    def has(self, demo: str, key: str) -> bool:
        return super().has(demo, STATES.get(key, key))

    def _open(self, demo: str, key: str) -> StoredArray:
        if key.startswith(("obs/", "next_obs/")) and not super().has(demo, "obs"):
            if key not in STATES:
                remedy = "make observations of its states with offrl images, or train on states"
                raise ValueError(f"{self.path}: data/{demo} has no {key!r}; {remedy}")
            key = STATES[key]
        return super()._open(demo, key)


def is_raw(file: h5py.File) -> bool:
    attributes = attributes_of_data(file)
    return "env_info" in attributes and "env_args" not in attributes
