"""Transformer blocks: layer-wise learning rates and rematerialization."""

import re

import keras

from keras_dml._backend import private
from keras_dml._backend.cloning import all_layers
from keras_dml._common.checks import check_number
from keras_dml._common.errors import ArgumentError, argument_error

_NUMBERED = re.compile(r"\d+$")


def transformer_blocks(backbone: keras.Model) -> list[keras.Layer]:
    """Find the blocks of a transformer, in order from first to last.

    A block is a layer whose name ends in a number and that contains an attention layer (a layer
    whose class name contains `Attention`). If there are several groups of such layers with the same
    class and the same name up to the number, the largest group is returned.

    Examples:
        >>> blocks = transformer_blocks(backbone)
        >>> blocks[0].trainable = False

    Args:
        backbone: A built `keras.Model`, such as ViT, DeiT, DINOv2, DINOv3, or SigLIP of keras-hub.

    Raises:
        ValueError: The backbone has no such blocks.
    """
    kinds: dict[tuple[type, str], list[keras.Layer]] = {}
    for layer in all_layers(backbone):
        if isinstance(layer, keras.Model) or not _NUMBERED.search(layer.name):
            continue
        within = [one for one in all_layers(layer) if one is not layer]
        if any("Attention" in type(one).__name__ for one in within):
            kind = type(layer), _NUMBERED.sub("", layer.name)
            kinds.setdefault(kind, []).append(layer)
    blocks = max(kinds.values(), key=len, default=[])
    if not blocks:
        wanted = "a transformer with numbered blocks that contain an attention layer"
        raise argument_error("backbone", wanted, backbone.name)
    return sorted(blocks, key=lambda block: int(_NUMBERED.findall(block.name)[0]))


def layer_multipliers(backbone: keras.Model, decay: float) -> dict[str, float]:
    """Return learning-rate multipliers that decrease from the last block to the first.

    With L blocks, the multiplier at depth k is decay^(L + 1 − k). Layers before the blocks
    (patches, positions, class token) have depth 0, block i has depth i, and layers after the blocks
    have depth L + 1.

    Args:
        backbone: As in `transformer_blocks`.
        decay: Above 0, at most 1.

    Returns:
        Dictionary for `keras_dml.optimizers`: path of each trainable variable -> multiplier.

    Raises:
        ValueError: The backbone has no blocks, `decay` is out of range, or variables share a path.

    Reference: Bao et al., "BEiT", ICLR 2022, appendix; Clark et al., "ELECTRA", ICLR 2020.

    Examples:

        slower = keras_dml.models.layer_multipliers(backbone, 0.75)
        optimizer = keras_dml.optimizers.LayerwiseAdamW(1e-4, learning_rate_multipliers=slower)
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
    # Depth of variables outside the blocks: 0 before the first block, `last` after it.
    behind = 0
    # Variables are in order of creation, which is the order of computation.
    for variable in backbone.variables:
        depth = depths.get(id(variable))
        if depth is not None:
            behind = last
        if not variable.trainable:
            continue
        if variable.path in multipliers:
            raise ArgumentError(
                f"backbone must have variables with different paths, but got {variable.path} "
                "twice. The learning rates are assigned by path."
            )
        multipliers[variable.path] = decay ** (last - (behind if depth is None else depth))
    return multipliers


def rematerialize_blocks(backbone: keras.Model) -> None:
    """Keep only the inputs of each transformer block for the backward pass, in place.

    The backward pass recomputes the activations within a block, as a `keras.RematScope` around each
    block does. Training stores the inputs of all blocks and the activations of one block, and takes
    about a third more time. The gradients are the same.

    Examples:
        >>> rematerialize_blocks(backbone)

    Args:
        backbone: As in `transformer_blocks`.

    Raises:
        ValueError: The backbone has no blocks, or a block draws random numbers or updates
            statistics, which recomputing would repeat.

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
                f"backbone must have blocks without dropout and batch norm, but got {repeated[0]}. "
                "Recomputing a block would change these."
            )
    for block in blocks:
        private.rematerialize(block)
