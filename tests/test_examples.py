"""Every public class and function has `Examples` in its docstring, and all of them run."""

import ast
import doctest
import importlib
import inspect
import re
import sys
import textwrap

import numpy as np
import pytest
from hub_presets import text_preset

import keras_dml

MODULES = (
    "pipelines",
    *(f"keras_dml.{name}" for name in keras_dml.__all__),
)
# They compute with NumPy, or little.
AT_ONCE = ("keras_dml.retrieval", "keras_dml.optimizers", "keras_dml.relations")
# They train, compile, or export, and take seconds each.
LONG = {
    "keras_dml.callbacks.RefreshHardClasses",
    "keras_dml.callbacks.RetrievalEvaluation",
    "keras_dml.callbacks.StopAtNaN",
    "keras_dml.export.MTEBEncoder",
    "keras_dml.export.check_export",
    "keras_dml.export.export_saved_model",
    "keras_dml.metrics.InformationBound",
    "keras_dml.metrics.mutual_information_bound",
    "keras_dml.models.BackwardCompatible",
    "keras_dml.models.CachedGradients",
    "keras_dml.models.CrossBatchMemory",
}


def public(module):
    """Return name -> class or function of a module's public names."""
    of_it = importlib.import_module(module)
    every = {f"{module}.{name}": getattr(of_it, name) for name in of_it.__all__}
    return {
        name: value
        for name, value in every.items()
        if inspect.isclass(value) or inspect.isfunction(value)
    }


EVERY = {name: value for module in MODULES for name, value in public(module).items()}


def example_of(value):
    """Return the code of the docstring's `Examples`, dedented, or None if it has no examples."""
    lines = (inspect.getdoc(value) or "").splitlines()
    if "Examples:" not in lines:
        return None
    rest = lines[lines.index("Examples:") + 1 :]
    end = next((n for n, line in enumerate(rest) if re.match(r"\S", line)), len(rest))
    return textwrap.dedent("\n".join(rest[:end])).strip("\n") + "\n"


def statements(code):
    """Return the statements as `doctest.Example`; code without prompts expects no output."""
    if ">>>" in code:
        return doctest.DocTestParser().get_examples(code)
    return [doctest.Example(ast.unparse(statement), "") for statement in ast.parse(code).body]


class Checker(doctest.OutputChecker):
    """Accepts any output of a statement whose documentation shows no output."""

    def check_output(self, want, got, optionflags):
        return not want or super().check_output(want, got, optionflags)


@pytest.fixture(scope="module")
def given():
    """Names that an example may use because the reader has defined them by then."""
    import keras
    import tensorflow as tf
    from tiny_transformer import tiny_transformer

    import pipelines

    rng = np.random.default_rng(0)
    inputs = keras.Input((16, 16, 3))
    pooled = keras.layers.GlobalAveragePooling2D()(inputs)
    embedding = keras.Model(inputs, keras.layers.Dense(128)(pooled))
    images = rng.uniform(0, 255, (16, 16, 16, 3)).astype("float32")
    labels = np.arange(16) // 4
    embeddings = rng.normal(size=(16, 128)).astype("float32")
    return {
        "np": np, "keras": keras, "keras_dml": keras_dml, "pipelines": pipelines,
        "embedding": embedding, "model": embedding, "backbone": tiny_transformer(),
        "images": images, "labels": labels, "embeddings": embeddings, "queries": embeddings[:2],
        "batches": tf.data.Dataset.from_tensors((images, labels)),
        "sampler": pipelines.RandomSampler(6, 4),
    }  # fmt: skip


def run(name, given):
    """Run an example in the namespace of its module; return what fails."""
    value = EVERY[name]
    names = {**vars(sys.modules[inspect.unwrap(value).__module__]), **given}
    test = doctest.DocTest(statements(example_of(value)), names, name, None, 0, "")
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    failures = []
    doctest.DocTestRunner(Checker(), False, flags).run(test, out=failures.append)
    return "".join(failures)


def test_every_public_class_and_function_has_an_example():
    assert len(EVERY) > 100 and set(EVERY) >= LONG
    lacking = [name for name, value in EVERY.items() if not example_of(value)]
    assert lacking == []
    assert [name for name, value in EVERY.items() if "+SKIP" in example_of(value)] == []


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(module, marks=[] if module in AT_ONCE else pytest.mark.slow)
        for module in MODULES
    ],
)
def test_examples_run(module, given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if module == "keras_dml.models":
        text_preset(tmp_path / "all-MiniLM-L6-v2", longest=64)
    assert "".join(run(name, given) for name in public(module) if name not in LONG) == ""


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(LONG))
def test_long_examples_run(name, given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name == "keras_dml.export.MTEBEncoder":
        pytest.importorskip("mteb")
    assert run(name, given) == ""
