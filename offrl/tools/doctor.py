"""Show versions, devices and whether videos can be made here.

example: offrl doctor
"""

import argparse
import os
import shutil
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    import torch

    from offrl.envs.rendering import BACKENDS, INSTALL_HINT, probe
    from offrl.training.run import provenance

    facts = provenance()
    packages = facts.pop("packages")
    for name, value in {**facts, **packages}.items():
        print(f"{name + ':':12}{value}")
    print(f"{'cores:':12}{os.cpu_count()}, torch uses {torch.get_num_threads()}")
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    print(f"{'GPUs:':12}{', '.join(gpus) or 'none; training runs on the CPU'}")
    print(f"{'C++:':12}{_compiler()}")
    problems = {backend: probe(backend) for backend in BACKENDS}
    for backend, problem in problems.items():
        print(f"{backend + ':':12}{'renders' if problem is None else f'does not work: {problem}'}")
    if all(problems.values()):
        print(
            "No rendering: everything but videos and image observations works.\n"
            f"To have them: {INSTALL_HINT}"
        )
    return 0


def _compiler() -> str:
    """Find the compiler that PyTorch would use, without importing all that uses it."""
    command = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    missing = f"no {command or 'compiler'}: train.engine=compile does not work on the CPU"
    return shutil.which(command.partition(" ")[0]) or f"{missing} (CXX names another compiler)"
