"""Embedding models for serving: float32 copies and SavedModels. Needs TensorFlow."""

import os
import pathlib
import shutil

import keras
import tensorflow as tf

_OTHER_FLOATS = ("mixed_float16", "mixed_bfloat16", "float16", "bfloat16", "float64")


def _check_static_graph(model):
    if not isinstance(model, keras.Model) or not getattr(model, "inputs", None):
        raise ValueError(
            f"model must be a built functional or sequential Keras model. Received: model={model!r}"
        )


def _in_float32(config):
    """A layer's config with each floating-point dtype policy in it, however deep, float32."""
    if isinstance(config, dict):
        if str(config.get("class_name", "")).endswith("DTypePolicyMap"):
            return "float32"
        if str(config.get("class_name", "")).endswith("DTypePolicy"):
            name = config.get("config", {}).get("name")
            return "float32" if name in _OTHER_FLOATS else config
        return {
            key: "float32"
            if key == "dtype" and isinstance(value, str) and value in _OTHER_FLOATS
            else _in_float32(value)
            for key, value in config.items()
        }
    if isinstance(config, (list, tuple)):
        return type(config)(_in_float32(value) for value in config)
    return config


def _float32_layer(layer):
    if not isinstance(layer, keras.layers.Layer):
        return layer  # a keras.ops operation: no weights and no dtype policy
    return type(layer).from_config(_in_float32(layer.get_config()))


def float32_copy(model):
    """The same model, uncompiled, computing in float32 throughout.

    Mixed precision rounds embeddings to 8 or 11 bits; evaluation and serving want what the
    float32 weights say. Also frees a model of the distribution strategy that it was built under.

    Args:
        model: a built functional or sequential Keras model, nested ones included. Its layers
            need `get_config`; registration only inside wrapper layers.

    Returns:
        A functional model of the same name, layers and weight values, with variables of its own.
        A subclass's own `train_step` and the like are not carried over.

    Raises:
        ValueError: the model is subclassed or not built, so that its layers are not known.
    """
    _check_static_graph(model)
    # clone_model would copy the compilation too, and fail on losses that are not registered.
    if isinstance(model, keras.Sequential):  # has no structured input of its own
        inputs, outputs = model.inputs[0], model.outputs[0]
    else:
        inputs, outputs = model.input, model.output
    source = keras.Model(inputs, outputs, name=model.name)
    # Layers that make layers of their own in __init__ or build take the global policy for them.
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")
    try:
        copy = keras.models.clone_model(source, clone_function=_float32_layer, recursive=True)
    finally:
        keras.config.set_dtype_policy(policy)
    copy.set_weights(source.get_weights())
    return copy


def export_saved_model(model, path, preprocessing):
    """Writes a SavedModel that takes encoded images and returns embeddings.

    Its signature `serving_default` maps `images`, strings `[n]` (bytes of n ≥ 1 image files), to
    `{"embeddings": float32 [n, d]}`; `tf.saved_model.load` needs neither this package nor its
    layers. An image that `preprocessing` refuses raises its error (tf.io's: InvalidArgument) for
    that call alone. Written beside `path` under a temporary name and then renamed; a SavedModel
    already there is removed last.

    Args:
        model: a built functional or sequential embedding model: float32 images
            `[n, height, width, channels]` → `[n, d]`. For one in mixed precision pass
            `float32_copy(model)`.
        path: the folder to write; its parent must exist.
        preprocessing: TensorFlow function: one image's bytes (scalar string) → float32 image of
            the model's input shape.

    Raises:
        ValueError: the parent of `path` is missing, `path` exists and is no SavedModel, the
            model is not as above, or `preprocessing` gives another shape.
        TypeError: `preprocessing` is not callable.
    """
    target = pathlib.Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise ValueError(f"path must lie in an existing folder. Received: path={os.fspath(path)!r}")
    if target.exists() and not (target / "saved_model.pb").is_file():
        raise ValueError(
            "path must be new or hold a SavedModel, which is then replaced. "
            f"Received: path={os.fspath(path)!r}, which is something else"
        )
    if not callable(preprocessing):
        raise TypeError(
            "preprocessing must be a function from image bytes to an image. "
            f"Received: preprocessing={preprocessing!r}"
        )
    serving_default = _serving_function(model, preprocessing)
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(
        name="serving_default",
        fn=serving_default,
        input_signature=[tf.TensorSpec([None], tf.string, name="images")],
    )
    written = target.with_name(f".{target.name}.partial")
    aside = target.with_name(f".{target.name}.old")
    # What an export that was killed has left: the names are always the same, so it does not add up.
    shutil.rmtree(written, ignore_errors=True)
    if aside.exists() and target.exists():
        shutil.rmtree(aside)
    try:
        archive.write_out(str(written), verbose=False)
        _replace_folder(written, target, aside)
    finally:
        shutil.rmtree(written, ignore_errors=True)


def _serving_function(model, preprocessing):
    _check_static_graph(model)
    for name, shape, rank in (("in", model.input_shape, 4), ("out", model.output_shape, 2)):
        if not isinstance(shape, tuple) or len(shape) != rank:
            raise ValueError(
                "model must take one batch of images [n, height, width, channels] and return one "
                f"batch of embeddings [n, d]. Received: a model whose {name}put shape is {shape}"
            )
    image = tf.TensorSpec(model.input_shape[1:], tf.float32)
    # ExportArchive traces without AutoGraph, which preprocessing may need for its Python ifs.
    traced = tf.function(preprocessing, input_signature=[tf.TensorSpec([], tf.string)])
    returned = traced.get_concrete_function().structured_outputs
    if not isinstance(returned, tf.Tensor) or not image.is_compatible_with(returned):
        raise ValueError(
            f"preprocessing must return an image of the model's input, {image.dtype.name} of "
            f"shape {image.shape}. Received: a function that returns {returned}"
        )

    def serving_default(images):
        pixels = tf.map_fn(traced, images, fn_output_signature=image)
        embeddings = model(pixels, training=False)
        return {"embeddings": tf.cast(embeddings, tf.float32)}

    return serving_default


def _replace_folder(source, target, aside):
    """Renames source to target; a folder already there goes aside first and is removed last."""
    if not target.exists():
        os.rename(source, target)
        shutil.rmtree(aside, ignore_errors=True)
        return
    os.rename(target, aside)
    try:
        os.rename(source, target)
    except OSError:
        os.rename(aside, target)
        raise
    shutil.rmtree(aside)
