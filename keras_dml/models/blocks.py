"""The blocks of a transformer: learning rates by depth, and less memory in the backward pass."""

import re

import keras

from keras_dml import private
from keras_dml.checks import check_number
from keras_dml.cloning import all_layers
from keras_dml.errors import ArgumentError

__all__ = ["layer_multipliers", "rematerialize_blocks", "transformer_blocks"]

_NUMBERED = re.compile(r"\d+$")


def transformer_blocks(backbone: keras.Model) -> list[keras.layers.Layer]:
    """The blocks of a transformer from the first to the last: layers that hold an attention.

    They are known by what they are: layers with a number at the end of their names and an attention
    layer (one whose class is called so) somewhere in them; of these the most numerous kind, that is
    of one class and one name but for the number.

    Examples:
        >>> blocks = transformer_blocks(backbone)
        >>> blocks[0].trainable = False

    Args:
        backbone: a built `keras.Model`; ViT, DeiT, DINOv2, DINOv3 and SigLIP of keras-hub are such.

    Raises:
        ValueError: there are none.
    """
    kinds: dict[tuple[type, str], list[keras.layers.Layer]] = {}
    for layer in all_layers(backbone):
        if isinstance(layer, keras.Model) or not _NUMBERED.search(layer.name):
            continue
        within = [one for one in all_layers(layer) if one is not layer]
        if any("Attention" in type(one).__name__ for one in within):
            kind = type(layer), _NUMBERED.sub("", layer.name)
            kinds.setdefault(kind, []).append(layer)
    blocks = max(kinds.values(), key=len, default=[])
    if not blocks:
        raise ArgumentError(
            "backbone must be a transformer: numbered blocks, layers that hold an attention. "
            f"Received: backbone={backbone.name!r}, in which there is none"
        )
    return sorted(blocks, key=lambda block: int(_NUMBERED.findall(block.name)[0]))


def layer_multipliers(backbone: keras.Model, decay: float) -> dict[str, float]:
    """`learning_rate_multipliers` that fall from a transformer's last block to its first.

    With L blocks, what comes before them (patches, positions, class token) has depth 0, block i the
    depth i, what comes behind L + 1: the multiplier of depth k is decay^(L + 1 − k).

    Args:
        backbone: as for `transformer_blocks`.
        decay: above 0, at most 1.

    Returns:
        For `keras_dml.optimizers`: path of each variable that trains -> multiplier.

    Raises:
        ValueError: no blocks, `decay` out of range, or variables that share a path.

    Reference: Bao et al., "BEiT", ICLR 2022, appendix; Clark et al., "ELECTRA", ICLR 2020.

    Examples:

        slower = keras_dml.models.layer_multipliers(backbone, 0.75)
        optimizer = keras_dml.optimizers.AdamW(1e-4, learning_rate_multipliers=slower)
    """
    decay = check_number("decay", decay, above=0, most=1)
    blocks = transformer_blocks(backbone)
    depths = {
        id(variable): depth
        for depth, block in enumerate(blocks, start=1)
        for variable in block.variables
    }
    last = len(blocks) + 1
    multipliers: dict[str, float] = {}
    behind = 0  # the depth of what is in no block: 0 before the first, `last` from then on
    # In the order in which they were made, which is that of the computation.
    for variable in backbone.variables:
        depth = depths.get(id(variable))
        if depth is not None:
            behind = last
        if not variable.trainable:
            continue
        if variable.path in multipliers:
            raise ArgumentError(
                "backbone must have variables of different paths, by which each gets its "
                f"learning rate. Received: two of {variable.path}"
            )
        multipliers[variable.path] = decay ** (last - (behind if depth is None else depth))
    return multipliers


def rematerialize_blocks(backbone: keras.Model) -> None:
    """Let each block of a transformer keep its inputs alone for the backward pass, in place.

    What lies within a block is computed anew there, as in a `keras.RematScope` around the block
    alone: memory for the activations of one block and the inputs of all, for about a third more
    time. The gradients are the same.

    Examples:
        >>> rematerialize_blocks(backbone)

    Args:
        backbone: as for `transformer_blocks`.

    Raises:
        ValueError: no blocks; a block that draws random numbers or learns statistics, which the
            second computation would do again.

    Reference: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
    """
    blocks = transformer_blocks(backbone)
    for block in blocks:
        repeated = [
            variable.path
            for variable in block.non_trainable_variables
            if "seed_generator" in variable.path or "moving_" in variable.path
        ]
        if repeated:
            raise ArgumentError(
                "backbone must have blocks without dropout and without batch norm to be "
                f"rematerialized: computed twice, they would change. Received: {repeated[0]}"
            )
    for block in blocks:
        private.rematerialize(block)
