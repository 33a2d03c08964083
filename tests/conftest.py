"""Quiet TensorFlow, and JAX that compiles cheaply, before any test imports them."""

import collections
import gc
import os
import random
import tempfile

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

if os.environ.get("KERAS_BACKEND") == "jax":
    # The tests compile thousands of small programs and run each once, so optimising them does not
    # pay; what is compiled again (another seed, other class ids) is found in a folder.
    compiled = tempfile.TemporaryDirectory(prefix="keras_dml_jax_")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", compiled.name)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")


def pytest_configure(config):
    """Graphs as they were written, in the quick tests: most run once, and are not worth it.

    The longer checks run them as TensorFlow optimises them.
    """
    collects_only = config.getoption("numprocesses", None)
    if "not slow" in config.option.markexpr and not collects_only:
        import tensorflow as tf

        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def pytest_collection_finish():
    """Python's collector need not walk TensorFlow's objects, and those of the tests, each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of many alike cases the quick tests take the first; the longer checks all others.

    Those are one set of arguments of each loss, and as many cases of a test as its mark
    `quick_cases(n)` says. On JAX, which compiles each test anew, `slow_on_jax` are longer checks.
    Of those that are slow the gate has the first, or as many as `gate_cases(n)` says; the thorough
    checks have all.
    """
    first, seen, in_gate = {}, collections.Counter(), collections.Counter()
    for item in items:
        test = (item.path, item.originalname)
        case = getattr(item, "callspec", None) and item.callspec.params.get("case")
        name = getattr(case, "name", None)
        later = name and first.setdefault((*test, name), case) is not case
        few = item.get_closest_marker("quick_cases")
        if few:
            seen[test] += 1
            later = later or seen[test] > few.args[0]
        on_jax = os.environ.get("KERAS_BACKEND") == "jax"
        if later or (on_jax and item.get_closest_marker("slow_on_jax")):
            item.add_marker(pytest.mark.slow)
        some = item.get_closest_marker("gate_cases")
        if item.get_closest_marker("slow") and not item.get_closest_marker("thorough"):
            in_gate[test] += 1
            if in_gate[test] > (some.args[0] if some else 1):
                item.add_marker(pytest.mark.thorough)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """What a test draws without a seed is the same whenever it runs, and after whatever.

    Keras' initializers draw their seeds from Python's; TensorFlow's own would clear its caches.
    """
    random.seed(0)
    np.random.seed(0)


@pytest.fixture(autouse=True)
def _dtype_policy_of_its_own():
    """A run that a test starts in this process sets the policy for all that follow: taken back."""
    from keras import config  # after the environment above

    before = config.dtype_policy()
    yield
    config.set_dtype_policy(before)
