"""--matryoshka: the loss over prefixes, and recall of each prefix."""

from types import SimpleNamespace

import numpy as np
import pytest

from experiments.evaluation.evaluators import Finished, RetrievalScores
from experiments.options import UsageError
from keras_dml import losses, metrics


def test_loss_and_scores_have_the_prefixes_of_the_flag(objective):
    one = objective("--loss=snca", "--temperature=0.2", "--matryoshka=2,4,8", "--embedding_size=8")
    loss = one.loss()
    assert isinstance(loss, losses.MatryoshkaLoss)
    assert (loss.dims, loss.loss.temperature) == ((2, 4, 8), 0.2)
    (scores,) = [each for each in one.evaluators() if isinstance(each, RetrievalScores)]
    assert scores.prefixes == (2, 4)
    assert not isinstance(objective("--loss=snca").loss(), losses.MatryoshkaLoss)


def test_recall_of_prefixes():
    rng = np.random.default_rng(0)
    embeddings, labels = rng.normal(size=(30, 6)).astype("float32"), np.arange(30) % 5
    test = SimpleNamespace(labels=labels)
    data = SimpleNamespace(tables={"test": test}, test=test, catalog=None)
    run = SimpleNamespace(
        data=data, ks=[1, 2], options=SimpleNamespace(patience=0, neighbors="auto")
    )
    scores = RetrievalScores((2,))
    measured = dict(scores.measure(run, None, {"test": embeddings}))
    expected = metrics.recall_at_k(embeddings[:, :2], labels, ks=[1, 2])
    assert measured["test/recall@2/cosine/first 2"] == pytest.approx(expected[2])
    whole = metrics.recall_at_k(embeddings, labels, ks=[1, 2])
    assert measured["test/recall@1/cosine"] == pytest.approx(whole[1])
    findings = scores.finish(run, Finished(None, {"test": embeddings}, [], {}))
    assert findings.rows["first 2, cosine"]["recall@1"] == pytest.approx(expected[1])
    assert findings.result["scores"]["recall@1/cosine/first 2"] == pytest.approx(expected[1])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--loss=snca", "--matryoshka=4,a"], "matryoshka must be whole numbers"),
        (
            ["--loss=snca", "--matryoshka=4,8", "--embedding_size=16"],
            "must end with embedding_size",
        ),
        (["--loss=snca", "--matryoshka=8,4,8", "--embedding_size=8"], "must be increasing lengths"),
        (["--loss=snca", "--matryoshka=0,8", "--embedding_size=8"], "each at least 1"),
        (["--loss=arcface", "--matryoshka=4,8"], "loss must be one of .*matryoshka.*arcface"),
        (["--loss=rankmi", "--matryoshka=4,8"], "loss must be one of .*matryoshka.*rankmi"),
    ],
)
def test_invalid_prefixes(words, message, objective):
    with pytest.raises(ValueError, match=message):
        objective(*words).loss()


def test_prefixes_of_backbone_features_end_with_their_length(objective):
    one = objective("--loss=snca", "--matryoshka=4,8")
    one.check_dimensions(8)
    with pytest.raises(UsageError, match="matryoshka must end with 16.*4,8"):
        one.check_dimensions(16)
    objective("--loss=snca").check_dimensions(16)
