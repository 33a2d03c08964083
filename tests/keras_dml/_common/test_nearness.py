import inspect
from typing import get_args

import pytest

from keras_dml import callbacks, metrics, retrieval
from keras_dml._common import types


def test_the_metrics_match_the_annotation():
    assert get_args(types.Metric) == types.METRICS == retrieval.METRICS


@pytest.mark.parametrize(
    "function",
    [
        callbacks.RetrievalEvaluation,
        metrics.nearest_neighbors,
        metrics.precision_at_r,
        metrics.recall_at_k,
        retrieval.ExactIndex,
        retrieval.ScannIndex,
        retrieval.build_index,
    ],
)
def test_the_parameter_is_called_metric_with_one_default(function):
    assert inspect.signature(function).parameters["metric"].default == types.METRICS[0]
