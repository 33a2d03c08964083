"""Metric-learning losses of TensorFlow Addons 0.23, for Keras 3: change the import line, no more.

`import tensorflow_addons as tfa; tfa.losses.TripletSemiHardLoss()` becomes
`from keras_dml import addons; addons.TripletSemiHardLoss()`. Names, arguments, defaults, values and
gradients are the original's (for embeddings in float32; half precision is computed in float32 and
returned as it came). The one difference: where the original returns NaN, for want of a positive
pair (or, in the lifted loss, of a negative one; or of any label in a row of multi-label targets),
ours returns 0 with a zero gradient. Memory is O(n²), where the original's triplet and lifted losses
take O(n³). (Where distances are equal to the last bit a triplet loss has no derivative; there ours
gives equal shares to all that tie, the original shares that depend on the rest of the row. And the
soft triplet loss does not overflow.)

As in the original, all but the contrastive loss are one number for the whole batch, with no
reduction over anchors, and under a distribution strategy each replica compares its own images only;
for the opposite see `keras_dml.losses`. Registered for saving under the original's package name,
`Addons`. Class ids that come as integers are compared as integers, also by the loss objects; floats
too large to be told apart are refused, as are NaN. Distances of close pairs, and of batches that
have collapsed to a spot, are exact here. The original loses them in float32.
"""

from keras_dml.addons.classes import (
    ContrastiveLoss,
    LiftedStructLoss,
    NpairsLoss,
    NpairsMultilabelLoss,
    TripletHardLoss,
    TripletSemiHardLoss,
)
from keras_dml.addons.functional import (
    contrastive_loss,
    lifted_struct_loss,
    npairs_loss,
    npairs_multilabel_loss,
    triplet_hard_loss,
    triplet_semihard_loss,
)

__all__ = [
    "ContrastiveLoss",
    "LiftedStructLoss",
    "NpairsLoss",
    "NpairsMultilabelLoss",
    "TripletHardLoss",
    "TripletSemiHardLoss",
    "contrastive_loss",
    "lifted_struct_loss",
    "npairs_loss",
    "npairs_multilabel_loss",
    "triplet_hard_loss",
    "triplet_semihard_loss",
]
