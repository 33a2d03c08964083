"""Six images of three classes, calculated by hand: the parts of each loss to six digits."""

import keras
import numpy as np
import pytest
from backend import parts, value_and_gradient

from keras_dml import losses, models

pytestmark = pytest.mark.any_backend

Z = np.array(
    [(1, 0, 0.5), (0.5, 1, 0), (0, 1, 1), (-1, 0.5, 1), (0.5, -1, 1), (1, 1, -0.5)], dtype=float
)
CLASS_IDS = np.array([0, 0, 1, 1, 2, 0])

PROXIES = [(1, 0.5, 0), (0, 1, 0.5), (0.5, -1, 0.5)]
TWO_CENTERS = [
    (1, 0.5, 0), (0.5, 1, -1), (0, 1, 0.5), (-1, 0, 1), (0.5, -1, 0.5), (0, -1, 1)
]  # fmt: skip
HARD, SOFT = ({"centers": 2, "pooling": pooling} for pooling in ("max", "soft"))
# Name, arguments, arguments of the head (None: a loss of embeddings), T, C, and the loss.
CASES = [
    ("supcon", {}, None, -6.311709, 7.769675, 1.457966),
    ("nt_xent", {}, None, -8.745527, 9.853679, 1.108152),
    ("circle", {}, None, 6.356885, 12.135489, 18.492374),
    ("margin", {}, None, 0.026710, 0.229095, 0.255806),
    ("margin", {"sampling": "all"}, None, 0.038324, 0.165799, 0.204123),
    ("smooth_ap", {}, None, 1.401057, -1.284392, 0.116665),
    ("smooth_ap", {"query_in_database": True}, None, 1.294679, -1.239121, 0.055559),
    ("tcm", {}, None, 0.287813, 0.114370, 0.402183),
    ("recall_at_k", {}, None, 0.153198, 0.045352, 0.198550),
    ("recall_at_k", {"query_in_database": True}, None, 0.153198, 0.177647, 0.330845),
    ("norm_softmax", {}, {}, -16.639915, 16.756533, 0.116617),
    ("cosface", {}, {}, -30.847729, 35.624087, 4.776358),
    ("arcface", {}, {}, -31.027110, 36.562150, 5.535040),
    ("arcface", {"margin": 1.6, "scale": 8.0}, {}, 4.286612, 2.527925, 6.814536),
    ("subcenter_arcface", {}, HARD, -36.671536, 42.206577, 5.535040),
    ("soft_triple", {}, SOFT, -17.451180, 17.625038, 0.173858),
    ("proxy_nca", {}, {}, 3.024076, -2.906725, 0.117351),
    ("proxy_nca", {"partition": "negatives"}, {}, 3.024076, -12.474919, -9.450843),
    ("proxy_anchor", {}, {}, 0.000000, 20.948822, 20.948822),
    ("proxy_anchor", {"scale": 4.0}, {}, 0.113847, 2.919638, 3.033485),
]


def head_over(**arguments):
    """Return a head over these six embeddings, with the example's proxies."""
    head = models.ProxyHead(3, dtype="float64", **arguments)
    head.build((None, 3))
    head.set_weights([np.array(PROXIES if head.centers == 1 else TWO_CENTERS)])
    return head


@pytest.mark.parametrize(
    ("name", "arguments", "of_head", "tightness", "contrastive", "value"), CASES
)
def test_parts_and_value(name, arguments, of_head, tightness, contrastive, value):
    given = Z if of_head is None else keras.ops.convert_to_numpy(head_over(**of_head)(Z))
    loss = losses.get(name, dtype="float64", **arguments)
    computed = [part.mean() for part in parts(loss, CLASS_IDS, given)]
    assert computed == pytest.approx([tightness, contrastive], abs=1e-6)
    assert value_and_gradient(loss, CLASS_IDS, given)[0] == pytest.approx(value, abs=1e-6)


def test_the_regularizer_of_centers():
    regularizer = models.CenterRegularizer(2)
    proxies = keras.ops.convert_to_tensor(np.array(TWO_CENTERS))
    assert float(regularizer(proxies)) == pytest.approx(0.086188, abs=1e-6)
