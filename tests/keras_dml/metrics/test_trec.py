"""TREC files, and the stored scores that ir-measures and ranx compute from them."""

import numpy as np
import pytest
from peers import trec

from keras_dml import metrics, relations
from keras_dml._common.errors import ArgumentError


@pytest.mark.parametrize("case", trec.CASES)
def test_ranking_scores_equal_ir_measures_and_ranx(case):
    with np.load(trec.FILE) as arrays:
        scores = metrics.ranking_scores(ks=trec.KS, **trec.arguments(case, arrays))
        assert list(scores) == trec.MEASURES
        for peer in ("ir-measures", "ranx"):
            golden = arrays[f"{case}/{peer}"]
            np.testing.assert_allclose(list(scores.values()), golden, rtol=1e-6, err_msg=peer)


def test_lines_of_the_files(tmp_path):
    run, qrels = tmp_path / "run.txt", tmp_path / "qrels.txt"
    z = np.array([[1, 0], [0.8, 0.6], [0, 1], [-1, 0]])
    metrics.write_trec(run, qrels, z, ["a", "a", "a", "b"], k=2, tag="ours")
    # Row 3 has no relevant item.
    assert run.read_text().splitlines() == [
        "0 Q0 1 1 -1 ours", "0 Q0 2 2 -2 ours", "1 Q0 0 1 -1 ours", "1 Q0 2 2 -2 ours",
        "2 Q0 1 1 -1 ours", "2 Q0 0 2 -2 ours",
    ]  # fmt: skip
    assert qrels.read_text().splitlines() == [
        "0 0 1 1", "0 0 2 1", "1 0 0 1", "1 0 2 1", "2 0 0 1", "2 0 1 1"
    ]  # fmt: skip


def test_wrong_arguments_leave_no_file(tmp_path):
    run, qrels = tmp_path / "run.txt", tmp_path / "qrels.txt"
    z = np.eye(3)
    with pytest.raises(ArgumentError, match="tag"):
        metrics.write_trec(run, qrels, z, [0, 0, 1], k=1, tag="two words")
    graded = relations.Graded(similarity="cosine", positive_above=0.1, negative_below=0.1)
    labels = np.array([[1, 0.0], [1, 1], [0.5, 1]])
    with pytest.raises(ArgumentError, match="whole numbers"):
        metrics.write_trec(run, qrels, z, labels, k=1, relation=graded)
    for same in (run, tmp_path / ".." / tmp_path.name / run.name):
        with pytest.raises(ArgumentError, match="^qrels_path must be another file than run_path"):
            metrics.write_trec(run, same, z, [0, 0, 1], k=1)
    assert list(tmp_path.iterdir()) == []


def test_only_positives_have_a_gain(tmp_path):
    """Row 1 is another product of the category, a neighbor without relevance."""
    run, qrels = tmp_path / "run.txt", tmp_path / "qrels.txt"
    paths = np.array([[0, 0], [0, 1], [0, 0], [1, 0]])
    metrics.write_trec(run, qrels, np.eye(4), paths, k=2, relation=relations.Hierarchy())
    assert qrels.read_text().splitlines() == ["0 0 2 2", "2 0 0 2"]
