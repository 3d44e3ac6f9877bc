"""No import runs upwards or sideways through the layers."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "offrl"
LAYERS = {
    "aliases": 0,
    "beside_ray": 0,
    "cluster": 0,
    "config": 0,
    "intervals": 0,
    "language": 0,
    "lazy": 0,
    "links": 0,
    "memory": 0,
    "modules": 0,
    "normalize": 0,
    "outputs": 0,
    "parallel": 0,
    "processes": 0,
    "registry": 0,
    "robomimic": 0,
    "seeding": 0,
    "specs": 0,
    "tree": 0,
    "video": 0,
    "acting": 1,  # algorithm and environment are duck-typed
    "kernels": 1,
    "data": 2,
    "envs": 2,
    "models": 2,
    "algos": 3,
    "edits": 3,
    "evaluation": 4,
    "reports": 4,
    "checkpoint": 5,
    "rollout": 5,  # names of old
    "online": 6,
    "assembly": 7,  # to be below online, when the start of a training has moved there
    "training": 8,
    "tools": 9,
    "testing": 9,
    "__main__": 10,
}
# A layer's parts do not import each other, but those of the base, which has no cycle.


def part(module):
    return module.split(".")[1]


def imported(path):
    module = [*path.relative_to(PACKAGE.parent).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(module[: -node.level]) + "." if node.level else ""
            source = (base + (node.module or "")).rstrip(".")
            yield source
            if source == "offrl":
                yield from (f"offrl.{alias.name}" for alias in node.names)


def test_imports_run_downwards():
    upwards = []
    for path in sorted(PACKAGE.rglob("*.py")):
        own = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if own == "__init__":
            continue  # exports lazily
        for module in imported(path):
            if not module.startswith("offrl.") or part(module) in (own, "__version__"):
                continue
            other = part(module)
            if other not in LAYERS or not (
                LAYERS[other] < LAYERS[own] or LAYERS[other] == LAYERS[own] == 0
            ):
                upwards.append(f"{path.relative_to(PACKAGE)} imports {module}")
    assert not upwards


def test_the_base_layer_has_no_cycle():
    graph: dict = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if LAYERS.get(name) == 0:
            needs = {part(m) for m in imported(path) if m.startswith("offrl.")} - {name}
            graph[name] = graph.get(name, set()) | needs
    while graph:
        leaves = [name for name, needs in graph.items() if not needs & graph.keys()]
        assert leaves, f"cycle among {sorted(graph)}"
        for name in leaves:
            del graph[name]
