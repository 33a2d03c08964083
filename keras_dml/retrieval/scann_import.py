"""The import of ScaNN: its search on any backend, and its operations for TensorFlow 2.20."""

import importlib
import importlib.util
import platform
import sys
import threading
from types import ModuleType

from keras_dml._common.extras import MissingExtraError, needing

_LOCK = threading.Lock()


def import_scann() -> ModuleType:
    """Import `scann.scann_ops_pybind`, which needs only NumPy and protobuf.

    `import scann` also imports TensorFlow if it is installed, and then operations that load only
    with TensorFlow 2.20. This function imports neither, so it works next to any TensorFlow. A later
    `import scann` registers the operations as usual.

    Raises:
        MissingExtraError: ScaNN is not installed, has no wheel for this platform, or does not load.
    """
    package = None
    with needing("search", "ScannIndex"), _LOCK:
        if "scann" in sys.modules:
            importlib.import_module("scann")
        else:
            spec = importlib.util.find_spec("scann")
            if spec is None:
                _check_platform()
                raise ModuleNotFoundError("No module named 'scann'", name="scann")
            # The package without the imports of its `__init__`.
            package = sys.modules["scann"] = importlib.util.module_from_spec(spec)
        try:
            from scann.scann_ops.py import scann_ops_pybind
        except ImportError:
            raise
        except Exception as error:
            raise ImportError(f"ScaNN does not load: {error}", name="scann") from error
        finally:
            if package is not None:
                del sys.modules["scann"]
    return scann_ops_pybind


def import_operations() -> ModuleType:
    """Import `scann.scann_ops` and register its operations, for a tree inside a SavedModel.

    Raises:
        MissingExtraError: ScaNN or TensorFlow is not installed, or TensorFlow is not 2.20.
    """
    what = "a tree inside a SavedModel"
    with needing("search", what):
        import_scann()
    with needing("tensorflow", what):
        try:
            from scann.scann_ops.py import scann_ops
        except ModuleNotFoundError:
            raise
        # An undefined symbol is an error of TensorFlow.
        except Exception as error:
            tensorflow = importlib.import_module("tensorflow").__version__
            raise MissingExtraError(
                f"{what} needs TensorFlow 2.20, for which ScaNN's operations are built, but got "
                f"TensorFlow {tensorflow}: pip install 'tensorflow==2.20.*'",
                "scann",
                "search",
            ) from error
    return scann_ops


def _check_platform() -> None:
    """Raise an error on a platform without a wheel of ScaNN."""
    here = platform.system(), platform.machine()
    if here != ("Linux", "x86_64") or sys.version_info >= (3, 14):
        raise MissingExtraError(
            "ScannIndex needs scann, which has wheels only for Linux on x86-64 and Python up to "
            f"3.13, but this is {' on '.join(here)} and Python {platform.python_version()}",
            "scann",
            "search",
        )
