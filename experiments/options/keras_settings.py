"""The settings of Keras that a command inherits: `KERAS_BACKEND` and `keras.json`."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib

from experiments.options.errors import UsageError
from keras_dml._common.errors import ArgumentError
from keras_dml._common.extras import check_backend


def check_keras_settings() -> None:
    """Check the settings that Keras reads when it is imported, without importing Keras.

    Raises:
        UsageError, ArgumentError: The commands do not work with a setting.
        MissingExtraError: The backend is not installed.
    """
    path = pathlib.Path(os.environ.get("KERAS_HOME", "~/.keras"), "keras.json").expanduser()
    settings = None
    with contextlib.suppress(OSError, ValueError):  # Keras uses its defaults
        settings = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(settings, dict):
        settings = {}
    layout = settings.get("image_data_format", "channels_last")
    if layout != "channels_last":
        raise UsageError(
            f"image_data_format must be channels_last, but got {layout} in {path}. Correct or "
            "delete the file."
        )
    chosen = os.environ.get("KERAS_BACKEND")
    try:
        check_backend(chosen or settings.get("backend", "tensorflow"))
    except ArgumentError as error:
        if chosen:
            raise
        raise UsageError(f"{error} The setting is in {path}.") from error
