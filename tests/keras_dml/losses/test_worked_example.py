"""Six images of three classes, calculated by hand: losses whose numbers no peer has."""

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


@pytest.mark.parametrize(
    ("name", "arguments", "tightness", "contrastive", "value"),
    [
        ("margin", {}, 0.026710, 0.229095, 0.255806),
        ("smooth_ap", {}, 1.401057, -1.284392, 0.116665),
        ("tcm", {}, 0.287813, 0.114370, 0.402183),
        ("recall_at_k", {}, 0.153198, 0.045352, 0.198550),
        ("recall_at_k", {"query_in_database": True}, 0.153198, 0.177647, 0.330845),
        ("proxy_nca", {"partition": "negatives"}, 3.024076, -12.474919, -9.450843),
        ("proxy_anchor", {"scale": 4.0}, 0.113847, 2.919638, 3.033485),
    ],
)
def test_value_and_parts(name, arguments, tightness, contrastive, value):
    loss, given = losses.get(name, dtype="float64", **arguments), Z
    if loss.kind == "proxies":
        head = models.ProxyHead(3, dtype="float64")
        head.build((None, 3))
        head.set_weights([np.array(PROXIES)])
        given = keras.ops.convert_to_numpy(head(Z))
    computed = [part.mean() for part in parts(loss, CLASS_IDS, given)]
    assert computed == pytest.approx([tightness, contrastive], abs=1e-6)
    assert value_and_gradient(loss, CLASS_IDS, given)[0] == pytest.approx(value, abs=1e-6)
