"""Text encoders from KerasHub, and the transform from a text to its tokens."""

import dataclasses
import os
from typing import Any

import keras
from keras import ops

from keras_dml._common.checks import check_whole
from keras_dml._common.errors import argument_error
from keras_dml._common.extras import needing
from keras_dml._common.types import Tensor
from keras_dml.models.hub import PREFIX, check_there, plain_name, refusing


def text_backbone(name: str, length: int = 64, random: bool = False) -> keras.Model:
    """Build a text encoder of KerasHub: tokens int32 `[n, 2, t]` to sentence vectors `[n, c]`.

    `TextTransform` makes the tokens. The vectors are pooled and normalized as the preset specifies.

    Args:
        name: `"hub:"` followed by a preset of a KerasHub `TextEmbedder`
            (`"hub:all_minilm_l6_v2_en"`), a handle, or a local folder of Keras or Hugging Face with
            a model that KerasHub can use as one, such as BERT.
        length: t, in tokens.
        random: Whether to use random weights instead of the preset's weights.

    Raises:
        MissingExtraError: KerasHub is not installed.
        ValueError: The preset or folder does not exist, is unreachable, or is not a text encoder,
            or `length` is below 1 or above the longest text of the encoder.

    Examples:

        backbone = text_backbone("hub:all-MiniLM-L6-v2")  # a folder of Hugging Face
        encoder = keras_dml.models.embedding_model(backbone, embedding_size=128)
    """
    length = check_whole("length", length, least=1)
    encoder = _from_preset("TextEmbedder", name, preprocessor=None, load_weights=not random)
    longest = getattr(encoder.backbone, "max_sequence_length", None) or length
    if length > longest:
        raise argument_error("length", f"at most {longest}, the longest text of {name}", length)
    tokens = keras.Input((2, length), dtype="int32", name="tokens")
    ids = tokens[:, 0]
    given = {
        "token_ids": ids,
        "padding_mask": tokens[:, 1],
        "segment_ids": ops.zeros_like(ids),
    }
    unused = getattr(encoder.backbone, "pooled_dense", None)
    if unused is not None:
        # Of BERT. Keras would warn that it has no gradient.
        unused.trainable = False
    # A plain model, because files of a KerasHub task need its preprocessing.
    plain = keras.Model(encoder.input, encoder.output, name="encoder")
    return keras.Model(
        tokens, plain({key: given[key] for key in encoder.input}), name=plain_name(name)
    )


@dataclasses.dataclass(frozen=True)
class TextTransform:
    """A transform for the functions of `pipelines`: a text to its tokens, int32 `[2, length]`.

    The first row has the ids, and the second row has 1 for a token and 0 for padding. Longer texts
    are cut off.

    Args:
        name: The encoder, as for `text_backbone`.
        length: Number of tokens.

    Raises:
        MissingExtraError: KerasHub, TensorFlow, or tensorflow-text is not installed.
        ValueError: As for `text_backbone`.

    Examples:

        transform = keras_dml.models.TextTransform("hub:all-MiniLM-L6-v2")
        texts = pipelines.ImageTable.from_encoded([b"a green apple", b"milk"], [0, 1])
        tokens = pipelines.evaluation_batches(texts, transform)
    """

    name: str
    length: int = 64
    _tokenize: Any = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        length = check_whole("length", self.length, least=1)
        tokenize = _from_preset("TextEmbedderPreprocessor", self.name, sequence_length=length)
        object.__setattr__(self, "_tokenize", tokenize)

    def __call__(self, text: Tensor, seed: Tensor | None = None) -> Tensor:
        """Return the tokens of a UTF-8 string. A seed has no effect."""
        import tensorflow as tf

        found = self._tokenize(text)
        tokens = tf.stack([found["token_ids"], tf.cast(found["padding_mask"], tf.int32)])
        return tf.ensure_shape(tokens, [2, self.length])


def _from_preset(kind: str, name: str, **arguments: Any) -> Any:
    """Return a KerasHub object of a preset."""
    preset = os.path.expanduser(name.removeprefix(PREFIX))
    with needing("hub", f"backbone {name}"):
        import keras_hub
    check_there(keras_hub, name, preset)
    with refusing(keras_hub, name, preset):
        return getattr(keras_hub.models, kind).from_preset(preset, **arguments)
