"""Private parts of Keras and TensorFlow that an upgrade can move, checked name by name."""

import ast
import importlib
import inspect
import pathlib
from typing import NamedTuple

import keras
import pytest

from keras_dml._backend import private

ROOT = pathlib.Path(private.__file__).parents[2]
FOREIGN = {"keras", "ops", "tf", "tensorflow", "tfds", "absl", "flags"}


class Needed(NamedTuple):
    """A private name and its use in this package.

    Attributes:
        name: Full name, including the package.
        parameters: Parameters of the function, at least the used ones. None if it is not a
            function.
        of_instance: Whether only instances have the attribute.
    """

    name: str
    parameters: tuple[str, ...] | None = None
    of_instance: bool = False


NEEDED = (
    Needed("keras.src.models.functional.Functional", ("inputs", "outputs", "name")),
    Needed("keras.src.backend.common.stateless_scope.in_stateless_scope", ()),
    Needed("keras.Model._make_function", ("self", "step_function")),
    Needed("keras.Model._maybe_symbolic_build", ("self", "iterator", "data_batch")),
    Needed("keras.Model._distribute_strategy", of_instance=True),
    Needed("keras.optimizers.Optimizer._get_variable_index", ("self", "variable")),
    Needed("keras.optimizers.Optimizer._clip_gradients", ("self", "grads")),
    Needed("keras.optimizers.Optimizer._all_reduce_sum_gradients", ("self", "grads_and_vars")),
    Needed("keras.layers.Layer._flatten_layers", ("self",)),
    Needed("keras.layers.Lambda._output_shape", of_instance=True),
    Needed("keras.layers.Layer._remat_mode", of_instance=True),
    Needed(
        "tensorflow.__internal__.distribute.interim.maybe_merge_call",
        ("fn", "strategy", "args", "kwargs"),
    ),
)


def _value(needed):
    """Return the object for a name of `NEEDED`."""
    owner, _, attribute = needed.name.rpartition(".")
    if needed.of_instance:
        made = {
            "keras.Model": keras.Model,
            "keras.layers.Lambda": lambda: keras.layers.Lambda(abs),
            "keras.layers.Layer": keras.layers.Layer,
        }
        return getattr(made[owner](), attribute)
    words = needed.name.split(".")
    for end in range(len(words), 0, -1):
        try:
            value = importlib.import_module(".".join(words[:end]))
        except ImportError:
            continue
        for word in words[end:]:
            value = getattr(value, word)
        return value
    raise ImportError(needed.name)


@pytest.mark.parametrize("needed", NEEDED, ids=lambda needed: needed.name)
def test_private_names_exist(needed):
    versions = f"Keras {keras.__version__}"
    try:
        value = _value(needed)
    except (AttributeError, ImportError) as error:
        pytest.fail(
            f"{needed.name}, which _backend/private.py needs, is gone from {versions}: {error}"
        )
    if needed.parameters is None:
        return
    parameters = inspect.signature(value).parameters
    if "Functional" in needed.name:  # its class accepts any arguments
        parameters = inspect.signature(value.__init__).parameters
    lacking = [name for name in needed.parameters if name not in parameters]
    assert not lacking, f"{needed.name} of {versions} takes no {', '.join(lacking)}: {parameters}"


def _private_uses(path):
    """Return the lines that use private names of objects from Keras or TensorFlow."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("keras.src"):
            yield f"{path}:{node.lineno}: {node.module}"
        if isinstance(node, ast.Import) and any("keras.src" in one.name for one in node.names):
            yield f"{path}:{node.lineno}: keras.src"
        if not isinstance(node, ast.Attribute):
            continue
        words, value = [node.attr], node.value
        while isinstance(value, ast.Attribute):
            words, value = [value.attr, *words], value.value
        if not isinstance(value, ast.Name):
            continue
        of_theirs = value.id in FOREIGN and any(
            (word.startswith("_") and word != "__version__") or word == "src" for word in words
        )
        # On any object except `self`: the next test checks `self._x` and `super()._x`.
        of_others = (
            value.id not in ("self", "cls") and words[0].startswith("_") and words[0][1] != "_"
        )
        if of_theirs or of_others:
            yield f"{path}:{node.lineno}: {value.id}.{'.'.join(words)}"


# Not from Keras or TensorFlow: _exit of Python and C, _asdict and _replace of a NamedTuple.
PUBLIC = ("os._exit", "libc._exit", "._asdict", "._replace", "sys._getframe")


def test_only_the_module_private_uses_private_names():
    paths = [path for name in ("keras_dml", "pipelines", "experiments")
             for path in (ROOT / name).rglob("*.py")]  # fmt: skip
    found = [use for path in paths if path.name != "private.py" for use in _private_uses(path)]
    assert [use for use in found if not use.endswith(PUBLIC)] == []


def test_no_class_overrides_or_reads_private_names_of_its_base():
    theirs = {}
    for base in (keras.Model, keras.layers.Layer, keras.losses.Loss, keras.metrics.Metric,
                 keras.optimizers.Optimizer, keras.callbacks.Callback):  # fmt: skip
        for one in base.__mro__:
            theirs |= dict.fromkeys(vars(one), one.__name__)
    found = []
    for path in (ROOT / "keras_dml").rglob("*.py"):
        if path.name == "private.py":
            continue
        for owner in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
