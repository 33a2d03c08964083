"""Rules for the source: imports between rooms, also within functions, and private names."""

import ast
import functools
import graphlib
import pathlib
import re

import keras
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
    "absl": "experiments.options",
    "jinja2": "experiments.pages",
    "matplotlib.pyplot": "no module",
    "tensorflow_datasets": "pipelines",
    "scann": "keras_dml.retrieval",
    "keras_hub": "keras_dml.models",
    "mteb": "keras_dml.export",
    "lancedb": "experiments.searching",
    "qdrant_client": "experiments.searching",
    "psycopg": "experiments.searching",
    "pgvector": "experiments.searching",
    "pyarrow": "experiments.searching or pipelines.read_table",
    "ray": "experiments.scale",
    "mlflow": "experiments.training",
    "wandb": "experiments.training",
}


@functools.cache
def modules():
    """Return the path of each module by its name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(part for part in parts if part != "__init__")] = path
    return found


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


def nodes(tree, with_typing=True, with_functions=True):
    """Yield all nodes of a tree, or without those under `if TYPE_CHECKING` or in functions."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        for_types = isinstance(tree, ast.If) and child in tree.body
        for_types = for_types and ast.unparse(tree.test).endswith("TYPE_CHECKING")
        in_function = isinstance(child, ast.FunctionDef)
        if (with_typing or not for_types) and (with_functions or not in_function):
            yield from nodes(child, with_typing, with_functions)


def imports(path, **which):
    """Yield the names of the modules that a file imports.

    `from a import b` is a.b if that is a module of ours, else a. `importlib.import_module("a")`
    and `runpy.run_module("a")` count too.

    Args:
        path: the file.
        which: arguments of `nodes`.
    """
    for node in nodes(tree_of(path), **which):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                assert not node.level, f"{path} has a relative import"
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield inner if inner in modules() else node.module
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


def test_imports_follow_the_rules():
    found = []
    for module, path in modules().items():
        for imported in imports(path):
            rules = {
                "keras_dml knows neither pipelines nor experiments":
                    within(module, "keras_dml")
                    and imported.startswith(("pipelines", "experiments")),
                "pipelines knows only keras_dml._common, and for Keras the private parts of Keras":
                    within(module, "pipelines")
                    and imported.startswith(("keras_dml", "experiments"))
                    and not within(imported, "keras_dml._common")
                    and (module, imported)
                    != ("pipelines.keras_batches", "keras_dml._backend.private"),
                "keras_dml._common knows nothing of Keras":
                    within(module, "keras_dml._common")
                    and imported.startswith(("keras", "tensorflow", "jax", "torch"))
                    and not within(imported, "keras_dml._common")
                    and module != "keras_dml._common.extras",  # including functions
                "the losses are written with keras.ops":
                    within(module, "keras_dml.losses") and within(imported, "tensorflow"),
                "no room imports a command, no command another":
                    within(module, "experiments") and within(imported, "experiments")
                    and imported != "experiments" and imported != module and not room(imported),
                "a room imports the rooms below it":
                    bool(room(module)) and bool(room(imported))
                    and room(imported) not in {room(module), "recipes", *ROOMS[room(module)]},
            }  # fmt: skip
            for package, place in PLACES.items():
                inside = any(within(module, each) for each in place.split(" or "))
                rules[f"{package} belongs into {place}"] = within(imported, package) and not inside
            found += [f"{module}, {imported}: {rule}" for rule, broken in rules.items() if broken]
    assert not found, "\n".join(found)


def test_no_string_of_the_library_names_a_module_of_the_commands():
    named = re.compile(r"\bexperiments\b")
    found = [
        f"{module}:{node.lineno}: {node.value[:80]}"
        for module, path in modules().items()
        if within(module, "keras_dml")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if named.search(node.value)
    ]
    assert found == []


def test_no_class_of_the_library_has_an_attribute_that_only_commands_read():
    """A value of a class that the library declares, but only `experiments` looks up."""

    def read(package):
        ours = [path for module, path in modules().items() if within(module, package)]
        return {
            node.attr
            for path in ours
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        }

    only_commands = read("experiments") - read("keras_dml")
    found = []
    for module, path in modules().items():
        # Errors tell whoever catches them which argument is wrong.
        if not within(module, "keras_dml") or module == "keras_dml._common.errors":
            continue
        for owner in (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)):
            # Fields of tuples and data classes have no value in the class. They are for users.
            targets = [each.target for each in owner.body
                       if isinstance(each, ast.AnnAssign) and each.value]  # fmt: skip
            targets += [name for each in owner.body
                        if isinstance(each, ast.Assign) for name in each.targets]  # fmt: skip
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            found += [f"{module}: {owner.name}.{name}" for name in sorted(names & only_commands)]
    assert found == []


def test_imports_have_no_cycles():
    # Includes imports for types, and imports within functions, which could hide a cycle.
    edges = {
        module: {other for other in imports(path) if other in modules()}
        for module, path in modules().items()
    }
    graphlib.TopologicalSorter(edges).prepare()  # raises CycleError with the cycle


@pytest.mark.parametrize("package", ["keras_dml", "pipelines"])
def test_a_chain_of_imports_has_at_most_nine_files(package):
    ours = {module: path for module, path in modules().items() if within(module, package)}

    @functools.cache
    def chain(module):
        """Return the longest chain of imports, without imports within functions."""
        names = set(imports(ours[module], with_typing=False, with_functions=False))
        inner = [chain(name) for name in names if name in ours and name != module]
        return [module, *max(inner, key=len, default=[])]

    longest = max(map(chain, ours), key=len)
    assert len(longest) <= 9, " imports ".join(longest)


def test_losses_use_no_other_product_of_embeddings():
    """`_pairwise.arithmetic.matmul` is exact on a GPU that rounds products to TF32."""
    rooms = ("keras_dml.losses", "keras_dml.layers", "keras_dml.addons", "keras_dml._pairwise")
    others = {"matmul", "dot", "einsum", "tensordot", "vdot", "inner", "outer"}
    for module, path in modules().items():
        if (
            not any(within(module, r) for r in rooms)
            or module == "keras_dml._pairwise.arithmetic"
            or "_fused" in module
        ):
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "ops":
                assert node.attr not in others, f"{module}: ops.{node.attr}"


def private_uses(path):
    """Yield the lines that use private modules of Keras, or private names of other objects."""
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.ImportFrom(module=str(use)) | ast.alias(name=use) if "keras.src" in use:
                yield f"{path.name}:{node.lineno}: {use}"
            case ast.Attribute(attr=name) if name == "src" or re.match("_[^_]", name):
                use = ast.unparse(node)
                # The next test checks `self._x` and `super()._x`.
                if not use.startswith(("self.", "cls.", "super(")):
                    yield f"{path.name}:{node.lineno}: {use}"


# Not from Keras or TensorFlow: _exit of Python, _asdict and _replace of a NamedTuple.
ALLOWED = ("os._exit", "._asdict", "._replace")


def test_only_the_module_private_uses_private_names():
    paths = [path for path in modules().values() if path.name != "private.py"]
    found = [use for path in paths for use in private_uses(path)]
    assert [use for use in found if not use.endswith(ALLOWED)] == []


def test_no_class_overrides_or_reads_private_names_of_its_base():
    theirs = {}
    for base in (keras.Model, keras.layers.Layer, keras.losses.Loss, keras.metrics.Metric,
                 keras.optimizers.Optimizer, keras.callbacks.Callback):  # fmt: skip
        for one in base.__mro__:
            theirs |= dict.fromkeys(vars(one), one.__name__)
    found = []
    for name, path in modules().items():
        if not within(name, "keras_dml") or path.name == "private.py":
            continue
        for owner in ast.walk(tree_of(path)):
            if not isinstance(owner, ast.ClassDef):
                continue
            names = {one.attr for one in ast.walk(owner) if isinstance(one, ast.Attribute)}
            names |= {one.name for one in owner.body if isinstance(one, ast.FunctionDef)}
            found += [
                f"{path.name}: {owner.name}.{name} is {theirs[name]}'s"
                for name in names
                if name in theirs and name.startswith("_") and not name.startswith("__")
            ]
    assert found == []
