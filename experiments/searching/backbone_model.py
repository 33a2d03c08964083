"""The SavedModel of a backbone that no run has trained."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from experiments.options import data
from experiments.options.errors import UsageError
from experiments.options.values import import_modules
from experiments.searching.index_options import IndexOptions
from keras_dml._files.atomic import replacing_folder
from keras_dml.export import export_saved_model
from keras_dml.models import feature_extractor

# TensorFlow ignores this folder of a SavedModel.
_FLAGS = pathlib.Path("assets.extra", "backbone.json")
_NAMES = ("backbone", "weights", "pooling", "image_size", "resize", "max_pixels")


def saved_backbone(path: pathlib.Path, options: IndexOptions) -> None:
    """Export the pooled features of a backbone as a SavedModel, unless the SavedModel exists.

    Args:
        path: The folder of the SavedModel. Its parent must exist.
        options: The options with the backbone.

    Raises:
        UsageError: The SavedModel has another backbone, weights, pooling, or image size.
    """
    flags: dict[str, Any] = {name: getattr(options, name) for name in _NAMES}
    if path.is_dir():
        found = json.loads((path / _FLAGS).read_text())
        for name, value in flags.items():
            if found[name] != value:
                raise UsageError(
                    f"{name} must be {found[name]} for the index in {path.parent}, but got "
                    f"{name}={value}. Use another --output_dir."
                )
        return
    import_modules(options.import_modules)
    model = feature_extractor(
        options.backbone or "",
        options.image_size,
        options.weights,
        pooling=options.pooling,
        trust_code=options.trust_code,
    )
    with replacing_folder(path, str(_FLAGS), "a backbone") as unfinished:
        export_saved_model(model, unfinished, data.evaluation_transform(options))
        (unfinished / _FLAGS).write_text(json.dumps(flags) + "\n")
