"""--matryoshka: the loss over prefixes, and recall of each prefix."""

import pytest

from experiments.evaluation.evaluators import RetrievalScores
from experiments.options import UsageError
from keras_dml import losses


def test_loss_and_scores_have_the_prefixes_of_the_flag(objective):
    one = objective("--loss=snca", "--temperature=0.2", "--matryoshka=2,4,8", "--embedding_size=8")
    loss = one.loss()
    assert isinstance(loss, losses.MatryoshkaLoss)
    assert (loss.dims, loss.loss.temperature) == ((2, 4, 8), 0.2)
    (scores,) = [each for each in one.evaluators() if isinstance(each, RetrievalScores)]
    assert scores.prefixes == (2, 4)
    assert not isinstance(objective("--loss=snca").loss(), losses.MatryoshkaLoss)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--loss=snca", "--matryoshka=4,a"], "matryoshka must be whole numbers"),
        (["--loss=snca", "--matryoshka=8,4,8", "--embedding_size=8"], "must be increasing lengths"),
        (["--loss=snca", "--matryoshka=0,8", "--embedding_size=8"], "each at least 1"),
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
