import numpy as np
import pytest

from keras_dml import callbacks, losses, metrics
from keras_dml.export import export_saved_model

CrossEntropyLoss = losses.CrossEntropyLoss
Z, LABELS = np.eye(4), [0, 0, 1, 1]


def test_nearest_neighbors():
    with pytest.warns(DeprecationWarning, match="nearest_neighbours is deprecated"):
        old = metrics.nearest_neighbours
    assert old is metrics.nearest_neighbors
    assert "nearest_neighbours" not in metrics.__all__
    with pytest.raises(AttributeError, match="no attribute 'nearest_rows'"):
        metrics.nearest_rows  # noqa: B018


def scores(**arguments):
    return metrics.evaluate(Z, LABELS, clustering=False, **arguments)


def evaluation(**arguments):
    return callbacks.RetrievalEvaluation((Z, LABELS), **arguments)


def test_former_arguments_of_functions(tmp_path):
    with pytest.warns(DeprecationWarning, match="distances of evaluate is deprecated. Use metric"):
        assert scores(distances=["l2"]) == scores(metric="l2") != scores()
    with pytest.warns(DeprecationWarning, match="distance of RetrievalEvaluation is"):
        assert evaluation(distance="l2").metric == "l2"
    with pytest.warns(DeprecationWarning, match="distance is deprecated. Use metric"):
        assert evaluation(metric="l2").distance == "l2"
    with (
        pytest.warns(DeprecationWarning, match="neighbours of export_saved_model"),
        pytest.raises(ValueError, match="model must be"),
    ):
        export_saved_model(None, tmp_path / "model", abs, neighbours=3)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (lambda: losses.SNCALoss(sigma=0.3), losses.SNCALoss(temperature=0.3)),
        (lambda: CrossEntropyLoss(epsilon=0.3), CrossEntropyLoss(label_smoothing=0.3)),
        (lambda: losses.ProxyAnchorLoss(alpha=5), losses.ProxyAnchorLoss(scale=5)),
        (lambda: losses.TripletLoss(mining="hard"), losses.TripletLoss(triplets="hard")),
    ],
)
def test_former_arguments_of_losses(old, new):
    with pytest.warns(DeprecationWarning, match="is deprecated") as caught:
        loss = old()
    assert loss.get_config() == new.get_config()
    assert caught[0].filename == __file__  # the user's line


def test_a_configuration_with_a_former_name_loads():
    config = {"class_name": "snca", "config": {"sigma": 0.3}}
    with pytest.warns(DeprecationWarning, match="sigma of SNCALoss is deprecated. Use temperature"):
        assert losses.get(config).temperature == 0.3
