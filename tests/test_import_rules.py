"""Rules for imports between rooms, checked in the source, including imports within functions."""

import ast
import functools
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = ("keras_dml", "pipelines", "experiments")
# For each room of `experiments`: the rooms that it may import in addition to itself, keras_dml, and
# pipelines. All rooms may import the recipes. Commands (modules outside of rooms) may import all.
ROOMS = {
    "options": set(),
    "recipes": set(),
    "evaluation": {"options"},
    "pages": {"options", "evaluation"},
    "benchmarks": {"options", "evaluation", "training"},
    "training": {"options", "evaluation"},
    "searching": {"options", "evaluation", "pages"},
    "scale": {"options", "evaluation", "pages", "training", "searching"},
    "exporting": {"options", "evaluation", "pages", "training"},
    "tuning": {"options", "evaluation", "pages", "training"},
}
# Third-party packages that only one place, or one of several, may import.
PLACES = {
    "jinja2": "experiments.pages",
    "matplotlib.pyplot": "no module",
    "tensorflow_datasets": "pipelines",
    "scann": "keras_dml.retrieval",
    "keras_hub": "keras_dml.models",
    "lancedb": "experiments.searching",
    "qdrant_client": "experiments.searching",
    "psycopg": "experiments.searching",
    "pgvector": "experiments.searching",
    "pyarrow": "experiments.searching or pipelines.read_table",
    "ray": "experiments.scale",
    "mlflow": "experiments.training",
    "wandb": "experiments.training",
    "huggingface_hub": "experiments.exporting or keras_dml.models",
    "optuna": "experiments.tuning",
    "sqlalchemy": "experiments.tuning",
    "onnxruntime": "experiments.exporting",
    "openvino": "experiments.exporting",
    "ai_edge_litert": "experiments.exporting",
    "ai_edge_quantizer": "experiments.exporting",
    "litert_converter": "experiments.exporting",
}


def modules():
    """Yield the path and the name of each module."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield path, ".".join(part for part in parts if part != "__init__")


def is_module(name):
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


def nodes(tree, with_typing):
    """Yield all nodes of a tree, with those under `if TYPE_CHECKING` only if `with_typing`."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        guarded = isinstance(tree, ast.If) and child in tree.body
        if guarded and not with_typing and ast.unparse(tree.test).endswith("TYPE_CHECKING"):
            continue
        yield from nodes(child, with_typing)


def imports(path, module="", with_typing=True):
    """Yield the names of the modules that a file imports.

    `from a import b` is a.b if that is a module of ours, else a. `importlib.import_module("a")`
    and `runpy.run_module("a")` count too.

    Args:
        path: the file.
        module: its module name, the base of relative imports.
        with_typing: whether imports under `if TYPE_CHECKING` count.
    """
    for node in nodes(tree_of(path), with_typing):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                base = node.module or ""
                if node.level:
                    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
                    parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                    base = ".".join([*parents, *([base] if base else [])])
                for alias in node.names:
                    inner = f"{base}.{alias.name}"
                    yield inner if is_module(inner) else base
            case ast.Call(
                func=ast.Attribute(attr="import_module" | "run_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def within(name, package):
    return name == package or name.startswith(f"{package}.")


def room(name):
    """Return the room of a module in `experiments`; "" for a command and for the package."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else ""


@functools.cache
def violations():
    """Return (importer, imported module, broken rule) for each violation."""
    return list(_violations())


def _violations():
    for path, module in modules():
        for imported in imports(path, module):
            for rule, broken in (
                ("keras_dml knows neither pipelines nor experiments",
                 within(module, "keras_dml") and imported.startswith(("pipelines", "experiments"))),
                ("pipelines knows only keras_dml._common",
                 within(module, "pipelines") and imported.startswith(("keras_dml", "experiments"))
                 and not within(imported, "keras_dml._common")),
                ("keras_dml._common knows nothing of Keras",
                 within(module, "keras_dml._common")
                 and imported.startswith(("keras", "tensorflow", "jax", "torch"))
                 and not within(imported, "keras_dml._common")
                 and module != "keras_dml._common.extras"),  # including functions
                ("keras_dml.similarity is imported only by its users",
                 within(imported, "keras_dml.similarity")
                 and not within(module, "keras_dml.similarity") and module != "keras_dml"),
                ("the losses are written with keras.ops",
                 within(module, "keras_dml.losses") and within(imported, "tensorflow")),
                *(
                    (f"{package} belongs into {place}",
                     within(imported, package)
                     and not any(within(module, each) for each in place.split(" or ")))
                    for package, place in PLACES.items()
                ),
                ("no room imports a command, no command another",
                 within(module, "experiments") and within(imported, "experiments")
                 and imported != "experiments" and imported != module and not room(imported)),
                ("a room imports the rooms below it",
                 bool(room(module)) and bool(room(imported))
                 and room(imported) not in {room(module), "recipes", *ROOMS[room(module)]}),
            ):  # fmt: skip
                if broken:
                    yield module, imported, rule


def test_every_folder_of_experiments_is_a_room():
    folders = {path.parent.name for path in (ROOT / "experiments").glob("*/__init__.py")}
    assert folders == set(ROOMS)


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_follow_the_rules(package):
    found = [violation for violation in violations() if within(violation[0], package)]
    assert not found, "\n".join(f"{who} imports {whom}: {rule}" for who, whom, rule in found)


def cycles(edges):
    """Return sets of modules that import each other in a cycle, sorted; edges: name -> names."""

    def reached(start):
        seen, left = set(), [start]
        while left:
            new = edges.get(left.pop(), set()) - seen
            seen |= new
            left += new
        return seen

    reach = {name: reached(name) for name in edges}
    found = {frozenset({name} | {other for other in reach[name] if name in reach.get(other, ())})
             for name in edges}  # fmt: skip
    return sorted(sorted(names) for names in found if len(names) > 1)


def test_imports_have_no_cycles():
    # Includes imports within functions, which could hide a cycle.
    ours = {module for _, module in modules()}
    edges = {
        module: {other for other in imports(path, module, with_typing=False) if other in ours}
        for path, module in modules()
    }
    assert edges["keras_dml.retrieval.index"] >= {"keras_dml.retrieval.files"}
    assert cycles(edges) == []


@pytest.mark.parametrize("package", ["keras_dml", "pipelines"])
def test_a_chain_of_imports_has_at_most_seven_files(package):
    ours = {module: path for path, module in modules() if within(module, package)}

    @functools.cache
    def chain(module):
        """Return the longest chain of imports, without imports within functions."""
        names = [
            inner if (inner := f"{node.module}.{alias.name}") in ours else node.module
            for node in nodes_at_import(tree_of(ours[module]))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        ]
        inner = [chain(name) for name in names if name in ours and name != module]
        return [module, *max(inner, key=len, default=[])]

    longest = max(map(chain, ours), key=len)
    assert len(longest) <= 7, " imports ".join(longest)


def nodes_at_import(tree):
    """Yield the nodes of a file that run when it is imported."""
    for child in ast.iter_child_nodes(tree):
        yield child
        for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if isinstance(child, ast.If | ast.Try | ast.With) and not for_types:
            yield from nodes_at_import(child)
