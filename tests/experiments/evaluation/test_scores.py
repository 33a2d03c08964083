"""The registry of scores: a new entry appears everywhere."""

import json

import numpy as np
import pytest
from retrieval_sets import clusters
from tiny_run import TINY, command_of, finished_run, history

from experiments import compare
from experiments.evaluation import scores
from experiments.evaluation.evaluators import widest_classes
from experiments.evaluation.labeled_embeddings import EmbeddedSet
from experiments.evaluation.scores import ROWS, Embeddings, Score
from keras_dml import metrics

evaluate = command_of("evaluate")
# The scores of `metrics.information`.
INFORMATION = {score.name for score in scores.SCORES.values() if not score.compute} - {ROWS}


@pytest.fixture
def spread(monkeypatch):
    """A registered score with an unusual name, format, and direction."""
    score = Score(
        name="spread",
        label="Spread",
        explanation="Spread is the mean distance of the embeddings from their mean.",
        compute=lambda embeddings, distance: 0.125 if distance == "l2" else 0.25,
        format="{:.3f} m".format,
        scale=1,
        higher_is_better=False,
    )
    monkeypatch.setitem(scores.SCORES, "spread", score)
    return score


def embedded(z, labels):
    return Embeddings(EmbeddedSet(z, labels), (1,), None)


@pytest.fixture
def mine(tmp_path):
    """A file with the embeddings of five classes."""
    z, labels = clusters(5, 8, 3, scale=2.0)
    np.savez(tmp_path / "mine.npz", embeddings=z, labels=labels)
    return tmp_path / "mine.npz"


def test_a_new_score_and_the_information_are_in_the_files_of_an_evaluation(
    spread, mine, tmp_path, capsys
):
    assert evaluate(f"--embeddings={mine}") == 0
    printed, folder = capsys.readouterr().out, tmp_path / "mine-evaluation"
    found = json.loads((folder / "evaluation.json").read_text())["scores"]
    page = (folder / "evaluation.html").read_text()
    assert "Spread" in printed and "0.250 m" in printed and "0.125 m" in printed
    assert found["spread/cosine"] == 0.25 and found["spread/l2"] == 0.125
    assert spread.explanation in page and '<th scope="col">Spread</th>' in page
    assert "<td>0.125 m</td>" in page

    assert "Mutual information, nearest neighbors (nats): " in printed
    assert "Images of the entropies and of the information: 40" in printed
    names = [name for name in INFORMATION if not scores.SCORES[name].fitted]
    with np.load(mine) as saved:
        z, labels = saved["embeddings"].astype("float32"), saved["labels"]
    expected = metrics.information(z, labels, names)
    assert {name: found[name] for name in names} == pytest.approx(expected)
    assert not [name for name in found if "probe" in name]
    assert "Entropy index H(Z), all pairs (nats)" in page
    classes = "Widest classes (entropy within the class, nats): "
    assert classes in printed and "Widest classes" in page


@pytest.mark.slow
def test_a_new_score_is_in_the_files_of_a_run(spread, photos, tmp_path, capsys, monkeypatch):
    # The child processes of `compare` lack the score, so run in this process.
    def run(recipe, folder, forwarded):
        if not (folder / "result.json").is_file():
            finished_run(folder, photos, *forwarded)

    monkeypatch.setattr(compare, "run_recipe", run)
    recipe = tmp_path / "tiny.flags"
    recipe.write_text("\n".join([*TINY, f"--data_dir={photos}"]))
    output = tmp_path / "out"
    words = [f"--recipes={recipe}", "--loss=contrastive", f"--output_dir={output}"]
    assert command_of("compare")(*words) == 0
    said = capsys.readouterr().out
    page = (output / "comparison.html").read_text()
    assert "Spread, cosine" in page and "<h2>Spread over epochs</h2>" in page

    folder = output / "tiny"
    assert [row["test/spread/l2"] for row in history(folder)] == [0.125, 0.125]
    result = json.loads((folder / "result.json").read_text())
    assert result["rows"]["embedding, cosine"]["spread"] == 0.25
    report = (folder / "report.html").read_text()
    assert '<th scope="col">Spread</th>' in report and spread.explanation in report
    assert "<h2>Spread on the test images</h2>" in report
    for text in (result["table"], (folder / "model_card.md").read_text(), said):
        assert "Spread" in text and "0.250 m" in text


@pytest.mark.slow
def test_fitted_scores_of_information_need_a_flag(mine, capsys):
    words = [f"--embeddings={mine}", "--information", "--noclustering"]
    assert evaluate(*words) == 0
    assert "lower bound by a linear probe (nats): " in capsys.readouterr().out
    evaluation = mine.parent / "mine-evaluation" / "evaluation.json"
    found = json.loads(evaluation.read_text())["scores"]
    assert found.keys() >= INFORMATION


def test_widest_classes_are_sorted_by_name_and_entropy():
    widths = np.repeat([1.0, 4.0, 2.0, 0.5], 2)
    z = np.stack([widths * np.tile([-1, 1], 4), np.zeros(8)], axis=1)
    z = np.vstack([z, [[9, 9]]])
    labels = np.r_[np.repeat([0, 1, 2, 4], 2), 3]
    ((_, text),) = widest_classes(z, labels, ["a", "b\n", "c", "alone", "d"])
    entropies = [np.log(2 * np.pi * np.e * width**2) for width in (4, 2, 1, 0.5)]
    expected = zip(["b\\u000a", "c", "a", "d"], entropies)
    assert text == ", ".join(f"{name} ({entropy:.1f})" for name, entropy in expected)
    assert widest_classes(z, labels)[0][1].startswith("1 (")
    assert widest_classes(np.eye(4), np.arange(4)) == []


def test_a_class_without_variance_shows_the_pooled_form():
    z = np.array([[0.0, 0], [1, 0], [2, 2], [2, 2]])
    _, (label, text) = widest_classes(z, np.array([0, 0, 1, 1]))
    assert "pooled" in label and float(text) == pytest.approx(np.log(np.pi * np.e / 4), abs=1e-3)
    assert len(widest_classes(np.ones((4, 2)), np.array([0, 0, 1, 1]))) == 1


def test_scores_of_information_need_two_classes_with_two_rows():
    alone = embedded(np.eye(4), np.arange(4))
    assert scores.information_scores(alone) == {}
    collapsed = embedded(np.ones((4, 2)), np.array([0, 0, 1, 1]))
    found = scores.information_scores(collapsed)
    assert found["entropy_within/l2"] == -np.inf
    assert scores.as_json(found)["entropy_within/l2"] is None


def test_scores_of_information_use_at_most_4096_rows():
    z = np.random.default_rng(0).normal(size=(5000, 2))
    many = embedded(z, np.arange(5000) % 50)
    assert many.information(["class_entropy"])["information_rows"] == 4000
