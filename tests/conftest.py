"""Quiet TensorFlow, and JAX that compiles cheaply, before any test imports them."""

import os
import tempfile

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """On JAX, which compiles each test anew: of each loss one set of arguments, the rest slow."""
    if os.environ.get("KERAS_BACKEND") != "jax":
        return
    first = {}
    for item in items:
        case = getattr(item, "callspec", None) and item.callspec.params.get("case")
        name = getattr(case, "name", None)
        another = name and first.setdefault((item.path, item.originalname, name), case) is not case
        if another or item.get_closest_marker("slow_on_jax"):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _dtype_policy_of_its_own():
    """A run that a test starts in this process sets the policy for all that follow: taken back."""
    from keras import config  # after the environment above

    before = config.dtype_policy()
    yield
    config.set_dtype_policy(before)
