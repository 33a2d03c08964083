"""An adapter of embedding models for MTEB, the Massive Text (and Image) Embedding Benchmark."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import keras
import numpy as np

from keras_dml._common.errors import ArgumentError, argument_error
from keras_dml._common.extras import TensorFlow, check_installed, needing
from keras_dml._common.progress import Bar
from keras_dml._common.types import Float32Array, StrPath
from keras_dml.export.load import fingerprint, load_saved_model
from keras_dml.export.saved_model import check_embedding_model, decoding_function

if TYPE_CHECKING:
    import tensorflow as tf

    EncoderLike: TypeAlias = (
        StrPath | tuple[StrPath | keras.Model, Callable[[tf.Tensor], tf.Tensor]]
    )
else:
    tf = TensorFlow("MTEBEncoder")


class MTEBEncoder:
    """An encoder of images, of texts, or of both, that `mteb.evaluate` scores.

    Each encoder is the folder of a SavedModel, or a pair `(model, preprocessing)` of a Keras model
    or the name of one, such as a `.keras` file, and its preprocessing, as in `export_saved_model`:

    - a SavedModel: `images="runs/folder-seed0/saved_model"`
    - a `.keras` file: `images=("best.keras", pipelines.EvaluationTransform(224))`
    - a text encoder: `texts=(encoder, models.TextTransform("hub:all_minilm_l6_v2_en"))`
    - a `DualEncoder`: both arguments, with embeddings of one length d

    MTEB compares embeddings by cosine similarity. The embedding of a document with an image and a
    text is the sum of the two, as for the CLIP models of MTEB. MTEB stores its results by the name
    and the revision of a model, and reuses them. The revision is the SHA-256 of the weights and of
    the preprocessing, so another model never gets them.

    Examples:
        >>> encoder = MTEBEncoder(images=(model, pipelines.EvaluationTransform(16)))
        >>> encoder.mteb_model_meta.modalities
        ['image']

    `mteb.evaluate(encoder, mteb.get_tasks(tasks=["CUB200I2IRetrieval"]))` then scores it.

    Args:
        images: Encoder of images, or None.
        texts: Encoder of texts, or None.
        name: ORGANIZATION/NAME in the results.

    Attributes:
        mteb_model_meta: MTEB's description of the model.

    Raises:
        MissingExtraError: mteb or TensorFlow is not installed.
        ValueError: Neither encoder is set, an encoder is not one of the forms, both have different
            d, or `name` is not ORGANIZATION/NAME. Also as in `export_saved_model` and
            `models.from_preset`.

    Reference: Muennighoff et al., "MTEB: Massive Text Embedding Benchmark", 2023.
    """

    def __init__(
        self,
        images: EncoderLike | None = None,
        texts: EncoderLike | None = None,
        name: str = "keras_dml/model",
    ) -> None:
        check_installed("tensorflow", "tensorflow", "MTEBEncoder")
        with needing("mteb", "MTEBEncoder"):
            from mteb.models.model_meta import ModelMeta, ScoringFunction
        organization, _, rest = str(name).partition("/")
        if not organization or not rest or "/" in rest:
            raise argument_error("name", "ORGANIZATION/NAME", name)
        given = {"image": images, "text": texts}
        loaded = {
            modality: _loaded(f"{modality}s", encoder)
            for modality, encoder in given.items()
            if encoder is not None
        }
        if not loaded:
            raise ArgumentError("images or texts must be an encoder, but got None for both.")
        sizes = {dimensions for _, dimensions, _ in loaded.values()}
        if len(sizes) > 1:
            raise ArgumentError(
                "images and texts must have embeddings of one length, but got lengths "
                f"{' and '.join(str(size) for _, size, _ in loaded.values())}."
            )
        self._embed = {modality: embed for modality, (embed, _, _) in loaded.items()}
        (self._dimensions,) = sizes
        self.mteb_model_meta = ModelMeta.create_empty(
            {
                "name": name,
                "revision": hashlib.sha256(
                    "".join(f"{key}{digest}" for key, (_, _, digest) in loaded.items()).encode()
                ).hexdigest(),
                "modalities": list(loaded),
                "embed_dim": self._dimensions,
                "similarity_fn_name": ScoringFunction.COSINE,
                "framework": ["TensorFlow"],
            }
        )

    def encode(self, inputs: Any, **options: Any) -> Float32Array:
        """Return the embeddings float32 `[n, d]` of a data loader of MTEB with n inputs.

        Args:
            inputs: Batches, dictionaries with lists of `image` (Pillow images), `text`, or both.
            **options: Other arguments of MTEB. `show_progress_bar=False` hides the bar.

        Raises:
            ValueError: The inputs have no modality of this encoder.
        """
        found = [np.zeros((0, self._dimensions), np.float32)]
        hidden = not options.get("show_progress_bar", True)
        with Bar("encoding", len(inputs.dataset), disable=hidden) as bar:
            for batch in inputs:
                found.append(self._embedded(batch))
                bar.update(len(found[-1]))
        return np.concatenate(found)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the cosine similarities `[n, m]` of embeddings `[n, d]` and `[m, d]`."""
        from mteb.similarity_functions import cos_sim

        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the cosine similarities `[n]` of the rows of embeddings `[n, d]` and `[n, d]`."""
        from mteb.similarity_functions import pairwise_cos_sim

        return pairwise_cos_sim(embeddings1, embeddings2)

    def _embedded(self, batch: dict[str, Any]) -> Float32Array:
        parts = [
            embed([_bytes(each) for each in batch[modality]])
            for modality, embed in self._embed.items()
            if modality in batch
        ]
        if not parts:
            wanted = " or ".join(self._embed)
            raise argument_error("inputs", f"batches with {wanted}", sorted(batch))
        return np.sum(parts, axis=0)


def _loaded(
    name: str, encoder: EncoderLike
) -> tuple[Callable[[Sequence[bytes]], Float32Array], int, str]:
    """Return a function from strings to embeddings, their length d, and a digest of the model."""
    if not isinstance(encoder, tuple):
        served = load_saved_model(encoder)
        if served.takes_text != (name == "texts"):
            other = "texts" if served.takes_text else "images"
            raise argument_error(name, f"a SavedModel of {name}", encoder, advice=f"Set {other}.")
        return served, served.dimensions, fingerprint(encoder)
    if len(encoder) != 2:
        raise argument_error(name, "a SavedModel or (model, preprocessing)", encoder)
    from keras_dml.models import from_preset

    model, preprocessing = encoder
    model = model if isinstance(model, keras.Model) else from_preset(model)
    check_embedding_model(model, preprocessing)
    decode = decoding_function(model, preprocessing)
    digest = hashlib.sha256(repr(preprocessing).encode() + model.to_json().encode())
    for weight in model.get_weights():
        digest.update(np.asarray(weight).tobytes())

    def embed(strings: Sequence[bytes]) -> Float32Array:
        found = model.predict_on_batch(decode(tf.constant(strings)).numpy())
        return np.asarray(found, np.float32)

    return embed, model.output_shape[1], digest.hexdigest()


def _bytes(value: Any) -> bytes:
    """Return a text in UTF-8, or a Pillow image as the bytes of a PNG file."""
    if isinstance(value, str):
        return value.encode()
    stream = io.BytesIO()
    value.convert("RGB").save(stream, "png", compress_level=1)
    return stream.getvalue()
