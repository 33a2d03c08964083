"""Names that were renamed work for one version with a warning, and then no longer."""

import numpy as np
import pytest

from keras_dml import callbacks, losses, metrics
from keras_dml.export import export_saved_model

Z, LABELS = np.eye(4), [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("call", "former"),
    [
        (lambda: metrics.nearest_neighbours, "nearest_neighbours"),
        (lambda: metrics.evaluate(Z, LABELS, distances=["l2"]), "distances"),
        (lambda: callbacks.RetrievalEvaluation((Z, LABELS), distance="l2"), "distance"),
        (lambda: callbacks.RetrievalEvaluation((Z, LABELS)).distance, "distance"),
        (lambda: export_saved_model(None, "model", abs, neighbours=3), "neighbours"),
        (lambda: losses.SNCALoss(sigma=0.3), "sigma"),
        (lambda: losses.CrossEntropyLoss(epsilon=0.3), "epsilon"),
        (lambda: losses.ProxyAnchorLoss(alpha=5), "alpha"),
        (lambda: losses.TripletLoss(mining="hard"), "mining"),
    ],
)
def test_the_names_that_version_0_2_deprecated_are_gone(call, former):
    with pytest.raises((TypeError, AttributeError, ValueError), match=former):
        call()


@pytest.mark.parametrize(
    ("former", "current"),
    [
        ("PrecisionAtR", "PrecisionScores"),
        ("Verification", "VerificationResult"),
        ("MutualInformationBound", "InformationBound"),
    ],
)
def test_a_former_name_of_a_result_is_the_same_class_with_a_warning(former, current):
    with pytest.warns(
        DeprecationWarning, match=f"metrics.{former} is .*metrics.{current}"
    ) as caught:
        assert getattr(metrics, former) is getattr(metrics, current)
    assert caught[0].filename == __file__
    assert former not in metrics.__all__
    assert current in metrics.__all__
