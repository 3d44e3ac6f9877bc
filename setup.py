import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

REPORT = ["rliable>=1.2", "pandas<3", "matplotlib>=3.7"]  # pandas 3 needs numpy 2
DIFFUSION = ["diffusers>=0.30"]  # its schedulers
RAY = ["ray[default]>=2.52", "pyarrow<25"]  # later pyarrows need numpy 2


class BuildWithConfigs(build_py):
    """Puts ``configs/`` into the package of a wheel. An editable installation reads the clone's."""

    def run(self) -> None:
        if self.editable_mode:
            return super().run()
        package = Path(self.build_lib, "offrl")
        # An earlier build may have left modules there that are gone from the clone.
        shutil.rmtree(package, ignore_errors=True)
        super().run()
        for config in Path("configs").rglob("*.json"):
            (package / config).parent.mkdir(exist_ok=True)
            shutil.copy(config, package / config)


setup(
    name="offrl",
    version="0.1.0",
    description="Train robot policies from demonstrations: imitation learning and offline RL.",
    long_description=open("README.md", encoding="utf-8").read(),
    long_description_content_type="text/markdown",
    license="MIT",
    license_files=["LICENSE"],
    author="the offrl authors",
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    # The default, written out so that an editable installation is a plain path: the folder of a
    # clone may be called offrl as well, and would otherwise hide the package from scripts in it.
    package_dir={"": "."},
    packages=find_packages(include=["offrl", "offrl.*"]),
    package_data={"offrl": ["py.typed"], "offrl.reports.view": ["assets/*"]},
    python_requires=">=3.10,<3.13",
    install_requires=[
        "torch>=2.6",
        "h5py>=3.8",
        "numpy>=1.24,<2",  # robosuite 1.5 needs numpy 1 through mink
        "tensorboard>=2.12",
        "robosuite==1.5.2",
        "opencv-python<4.12",  # newer ones need numpy 2; without this old pips search for ever
        "mujoco>=3.3,<3.10",  # robosuite 1.5.2 fails with 3.10: it compares enums as integers
        "tqdm>=4.60",
        "pydantic>=2.10",
        "gymnasium>=1.0",
        "pyyaml>=6.0",
        "imageio[ffmpeg]>=2.30",
    ],
    extras_require={
        "wandb": ["wandb>=0.16"],
        "plot": ["matplotlib>=3.7"],
        "report": REPORT,
        "tune": ["optuna>=4"],
        "language": ["transformers>=4.40"],
        "diffusion": DIFFUSION,
        "gymnasium": ["gymnasium[classic-control]>=1.0"],  # draws them
        "metaworld": ["metaworld==3.0.0"],  # later ones insist on mujoco 3.3.0
        "classic": ["pygame-ce>=2.1.3"],  # to film what gymnasium draws
        "box2d": ["gymnasium[box2d]>=1.0"],
        "atari": ["ale-py>=0.10"],
        "minari": ["minari[hdf5]>=0.5"],
        "lerobot": ["pyarrow>=15,<26", "av>=14"],  # later pyarrows need numpy 2
        "zarr": ["zarr>=2.18,<3"],  # later ones need Python 3.11
        "distributed": RAY,
        "docs": [
            "sphinx>=7.4",
            "myst-parser>=3",
            "furo>=2024.8.6",
            "sphinx-design>=0.6",
            "sphinx-copybutton>=0.5.2",
        ],
        "test": [
            "pytest>=9",
            "pytest-xdist>=3.5",
            "pytest-timeout>=2.2",
            "hypothesis>=6.90",
            "ruff>=0.5",
            "mypy>=1.8",
            "types-PyYAML",
            "transformers>=4.40",
            "gymnasium[classic-control]>=1.0",
            "metaworld==3.0.0",
            "gymnasium[box2d]>=1.0",
            "ale-py>=0.10",
            "minari[hdf5]>=0.5",
            "playwright>=1.40",  # drives a Chromium that is there; none is downloaded
            "python-xlib>=0.33; sys_platform == 'linux'",  # presses keys in windows
            "pyarrow>=15,<26",
            "av>=14",
            "zarr>=2.18,<3",
            "jsonschema>=4.18",
            "optuna>=4",
            *DIFFUSION,
            *RAY,
            *REPORT,
        ],
    },
    cmdclass={"build_py": BuildWithConfigs},
    entry_points={"console_scripts": ["offrl = offrl.__main__:main"]},
)
