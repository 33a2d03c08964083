import inspect
import warnings

import numpy as np
import pytest

from keras_dml import callbacks, losses, metrics
from keras_dml._common.deprecation import renamed_arguments
from keras_dml.export import export_saved_model

Z, LABELS = np.eye(4), [0, 0, 1, 1]


@renamed_arguments(old="new")
def doubled(new, other=1):
    """Return twice the value."""
    return 2 * new + other


def test_an_old_argument_works_and_warns_at_the_call():
    with pytest.warns(DeprecationWarning, match="argument old of doubled is called new") as caught:
        assert doubled(old=3) == 7
    assert caught[0].filename == __file__


def test_the_new_name_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert doubled(3) == doubled(new=3) == 7
    assert list(inspect.signature(doubled).parameters) == ["new", "other"]
    assert doubled.__doc__ == "Return twice the value."


def test_nearest_neighbors():
    with pytest.warns(DeprecationWarning, match="nearest_neighbours is called nearest_neighbors"):
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
    with pytest.warns(DeprecationWarning, match="distances of evaluate is called metric"):
        assert scores(distances=["l2"]) == scores(metric="l2") != scores()
    with pytest.warns(DeprecationWarning, match="distance of RetrievalEvaluation is called metric"):
        assert evaluation(distance="l2").metric == "l2"
    with pytest.warns(DeprecationWarning, match="distance is called metric"):
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
        (
            lambda: losses.CrossEntropyLoss(epsilon=0.3),
            losses.CrossEntropyLoss(label_smoothing=0.3),
        ),
        (lambda: losses.ProxyAnchorLoss(alpha=5), losses.ProxyAnchorLoss(scale=5)),
        (lambda: losses.TripletLoss(mining="hard"), losses.TripletLoss(triplets="hard")),
    ],
)
def test_former_arguments_of_losses(old, new):
    with pytest.warns(DeprecationWarning, match="is called"):
        loss = old()
    assert loss.get_config() == new.get_config()


def test_a_configuration_with_a_former_name_loads():
    config = {"class_name": "snca", "config": {"sigma": 0.3}}
    with pytest.warns(DeprecationWarning, match="sigma of SNCALoss is called temperature"):
        assert losses.get(config).temperature == 0.3
