"""TensorFlow process of `by_tensorflow`: `python -m keras_dml.export FOLDER`."""

import importlib
import json
import pathlib
import sys
from typing import Any

import keras

from keras_dml._common.extras import TensorFlow
from keras_dml.export import export_saved_model
from keras_dml.export.by_tensorflow import INDEX, MODEL, PREPROCESSING, REFUSED, REST

tf = TensorFlow("export_saved_model")


def main(folder: pathlib.Path) -> int:
    """Export the contents of a folder. Return the exit code."""
    from keras_dml.retrieval import load_index

    rest: dict[str, Any] = json.loads((folder / REST).read_text())
    try:
        for name in rest["modules"]:
            importlib.import_module(name)
        loaded = tf.saved_model.load(str(folder / PREPROCESSING))
        kept = folder / INDEX
        export_saved_model(
            # The code in it is safe, because this user has just saved it.
            keras.saving.load_model(folder / MODEL, compile=False, safe_mode=False),
            rest["path"],
            lambda image: loaded.call(image),
            load_index(kept) if kept.exists() else None,
            rest["neighbors"],
            rest["threshold"],
        )
    except (ValueError, TypeError) as error:
        print(" ".join(str(error).split()))
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
