"""Only one module uses private parts of Keras and TensorFlow, which an upgrade can move."""

import ast
import pathlib

import keras

from keras_dml._backend import private

ROOT = pathlib.Path(private.__file__).parents[2]
FOREIGN = {"keras", "ops", "tf", "tensorflow", "tfds", "absl", "flags"}


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
