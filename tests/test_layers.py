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
    "assembly": 6,
    "online": 7,
    "training": 8,
    "faces": 9,
    "studies": 9,
    "pipelines": 10,
    "tools": 11,
    "testing": 11,
    "__main__": 12,
}
# A layer's parts do not import each other, but those of the base, which has no cycle.


def part(module):
    return module.split(".")[1]


def is_for_editors(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imported(path):
    module = [*path.relative_to(PACKAGE.parent).with_suffix("").parts]
    tree = ast.parse(path.read_text())
    if path.name == "__init__.py":  # what a package exports lazily is said to editors
        tree.body = [node for node in tree.body if not is_for_editors(node)]
    for node in ast.walk(tree):
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
