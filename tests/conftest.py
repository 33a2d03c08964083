"""Configure TensorFlow, JAX, and pytest before any test imports a backend."""

import gc
import os
import random
import tempfile

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Imports and collection create a million objects, and free almost none.
gc.disable()

# The tests on JAX, also those in other processes, compile thousands of small programs and run each
# one once, so optimization does not pay. A folder caches programs that are compiled repeatedly
# (other seeds or class ids).
compiled = tempfile.TemporaryDirectory(prefix="keras_dml_jax_")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", compiled.name)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if os.environ.get("KERAS_BACKEND") == "jax":
    os.environ.setdefault(
        "XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    )


def pytest_configure(config):
    """Turn off TensorFlow's graph optimizer in the gate's tests: most graphs run only once.

    Graphs run with the optimizer in the thorough tests, in tests that start processes, in the main
    job, and in the commands of the guides.
    """
    collects_only = config.getoption("numprocesses", None)
    on_tensorflow = os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow"
    in_gate = "not slow" in config.option.markexpr or "not thorough" in config.option.markexpr
    if on_tensorflow and in_gate and not collects_only:
        import tensorflow as tf

        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def pytest_collection_finish():
    """Freeze all objects so far, so that the garbage collector skips TensorFlow and the tests."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


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


@pytest.fixture(autouse=True)
def _without_notes_of_autograph(caplog):
    """Fail if AutoGraph prints that it could not convert a function: users read it as an error."""
    yield
    records = [record.getMessage() for record in caplog.get_records("call")]
    assert not [message for message in records if "AutoGraph could not" in message]
