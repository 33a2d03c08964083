"""Metric-learning losses of TensorFlow Addons 0.23 for Keras 3. Only the import line changes.

`import tensorflow_addons as tfa; tfa.losses.TripletSemiHardLoss()` becomes
`from keras_dml import addons; addons.TripletSemiHardLoss()`. Names, arguments, defaults, values,
and gradients equal the original for float32 embeddings. Half precision is computed in float32, and
the result has the input's dtype.

These losses differ from the original in the following cases:

- Where the original returns NaN, these losses return 0 with a zero gradient: without positive
  pairs, without negative pairs in the lifted loss, or for a row of multi-label targets without
  labels.
- Memory is O(n²). The triplet and lifted losses of the original need O(n³).
- If distances are exactly equal, a triplet loss has no derivative. The hard losses give all ties
  equal shares, and the semi-hard loss gives one of them the gradient. The shares of the original
  depend on the rest of the row.
- The soft triplet loss does not overflow.
- Distances of close pairs, and of collapsed batches, are exact. The original loses them in float32.

As in the original, all losses except the contrastive loss return one number for the batch without a
reduction over anchors, and under a distribution strategy each replica compares only its images. For
losses with a reduction and global batches, see `keras_dml.losses`. The losses are registered for
saving under the original's package name, `Addons`. Integer class ids are compared as integers, also
by the loss objects. NaN, and floats that are too large to be distinct, raise an error.
"""

from keras_dml._common.exports import public_names
from keras_dml.addons.classes import ContrastiveLoss as ContrastiveLoss
from keras_dml.addons.classes import LiftedStructLoss as LiftedStructLoss
from keras_dml.addons.classes import NpairsLoss as NpairsLoss
from keras_dml.addons.classes import NpairsMultilabelLoss as NpairsMultilabelLoss
from keras_dml.addons.classes import TripletHardLoss as TripletHardLoss
from keras_dml.addons.classes import TripletSemiHardLoss as TripletSemiHardLoss
from keras_dml.addons.functional import contrastive_loss as contrastive_loss
from keras_dml.addons.functional import lifted_struct_loss as lifted_struct_loss
from keras_dml.addons.functional import npairs_loss as npairs_loss
from keras_dml.addons.functional import npairs_multilabel_loss as npairs_multilabel_loss
from keras_dml.addons.functional import triplet_hard_loss as triplet_hard_loss
from keras_dml.addons.functional import triplet_semihard_loss as triplet_semihard_loss

__all__ = public_names(__name__)
