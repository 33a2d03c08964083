"""Configure TensorFlow, JAX, and pytest before any test imports a backend."""

import collections
import gc
import os
import random
import tempfile

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

if os.environ.get("KERAS_BACKEND") == "jax":
    # The tests compile thousands of small programs and run each one once, so optimization does not
    # pay. A folder caches programs that are compiled repeatedly (other seeds or class ids).
    compiled = tempfile.TemporaryDirectory(prefix="keras_dml_jax_")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", compiled.name)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")


def pytest_configure(config):
    """Turn off TensorFlow's graph optimizer in the quick tests: most graphs run only once.

    The longer checks run graphs with the optimizer.
    """
    collects_only = config.getoption("numprocesses", None)
    on_tensorflow = os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow"
    if on_tensorflow and "not slow" in config.option.markexpr and not collects_only:
        import tensorflow as tf

        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def pytest_collection_finish():
    """Freeze all objects so far, so that the garbage collector skips TensorFlow and the tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark all but the first of many similar cases as slow or thorough.

    The quick tests run one set of arguments for each loss. If a test has the mark `quick_cases(n)`,
    they run its first n cases. On JAX, which compiles each test separately, tests marked
    `slow_on_jax` are slow. The gate runs the first slow case of a test, or the first n if it has
    the mark `gate_cases(n)`. The thorough checks run all cases.
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
    """Seed each test, so that unseeded draws do not depend on the order of the tests.

    Keras' initializers draw their seeds from `random`. Seeding TensorFlow would clear its caches.
    """
    random.seed(0)
    np.random.seed(0)


@pytest.fixture(autouse=True)
def _restored_dtype_policy():
    """Restore the dtype policy, which a run in this process may change."""
    from keras import config  # after the environment above

    before = config.dtype_policy()
    yield
    config.set_dtype_policy(before)
