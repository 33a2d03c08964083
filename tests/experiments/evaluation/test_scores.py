"""The registry of scores: a new entry appears everywhere."""

import functools
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from retrieval_sets import clusters
from tiny_run import TINY, command_of, finished_run, history

from experiments import compare, study
from experiments.evaluation import scores
from experiments.evaluation.embedded_sets import EmbeddedSet
from experiments.evaluation.evaluators import RetrievalScores, widest_classes
from experiments.evaluation.measurement import Estimate, Measurement, log_row
from experiments.evaluation.result import Result, measurements_of, scores_json
from experiments.evaluation.scores import ROWS, Score, ScoredSet
from experiments.training.run_folder import RunFolder
from experiments.training.trackers import TRACKERS, sending_scores
from keras_dml import metrics
from pipelines import ImageTable, Split

evaluate = command_of("evaluate")
# The scores of `metrics.information`.
INFORMATION = {score.name for score in scores.SCORES.values() if not score.compute} - {ROWS}


@pytest.fixture
def reach(monkeypatch):
    """A registered score with a K, a distance, an interval, and an unusual format."""

    def compute(embeddings, distance):
        value = 0.125 if distance == "l2" else 0.25
        return {k: Estimate(k * value, k * value - 0.1, k * value + 0.1) for k in embeddings.ks}

    score = Score(
        name="reach",
        label="Reach",
        explanation="Reach is how far the embeddings reach.",
        compute=compute,
        at_k=True,
        format="{:.3f} m".format,
        scale=1,
        higher_is_better=False,
    )
    monkeypatch.setitem(scores.SCORES, "reach", score)
    return score


COSINE, L2 = "0.250 m (0.150 m to 0.350 m)", "0.125 m (0.025 m to 0.225 m)"


def embedded(z, labels):
    return ScoredSet(EmbeddedSet(z, labels), (1,), None)


@pytest.fixture
def mine(tmp_path):
    """A file with the embeddings of five classes."""
    z, labels = clusters(5, 8, 3, scale=2.0)
    np.savez(tmp_path / "mine.npz", embeddings=z, labels=labels)
    return tmp_path / "mine.npz"


def test_a_new_score_and_the_information_are_in_the_files_of_an_evaluation(
    reach, mine, tmp_path, capsys
):
    assert evaluate(f"--embeddings={mine}") == 0
    printed, folder = capsys.readouterr().out, tmp_path / "mine-evaluation"
    result = json.loads((folder / "evaluation.json").read_text())
    found, page = result["scores"], (folder / "evaluation.html").read_text()
    assert "Reach@1" in printed and COSINE in printed and L2 in printed
    for key, value in {"": 0.125, "_low": 0.025, "_high": 0.225}.items():
        assert found[f"reach@1/l2{key}"] == pytest.approx(value)
        assert result["rows"]["embedding, l2"][f"reach@1{key}"] == pytest.approx(value)
    assert reach.explanation in page and '<th scope="col">Reach@1</th>' in page
    assert f"<td>{L2}</td>" in page

    assert "NMI: " in printed and "nearest neighbors" not in printed and "Images of" not in printed
    names = [name for name in INFORMATION if not scores.SCORES[name].fitted]
    with np.load(mine) as saved:
        z, labels = saved["embeddings"].astype("float32"), saved["labels"]
    expected = metrics.information(z, labels, names)
    assert {name: found[name] for name in names} == pytest.approx(expected)
    assert not [name for name in found if "probe" in name]
    summary, _, of_information = page.partition("<h2>Information</h2>")
    section, _, rest = of_information.partition("</section>")
    for label in (
        "Entropy index H(Z), all pairs (nats)",
        "Widest classes",
        "The entropy index rises",
    ):
        assert label in section and label not in summary + rest
    assert "<dd>40</dd>" in section and "<dt>NMI</dt>" in summary


def test_names_in_files_are_read_back():
    found = [
        Measurement("recall", 0.5, 10, "l2", low=0.25, high=0.75),
        Measurement("map@r", 0.25, None, "cosine", "first 64"),
        Measurement("recall", 0.5, 1, "cosine", side="photos"),
        Measurement("recall", 0.5, 1, "cosine", "untrained backbone at 224 px", "catalog"),
        Measurement("entropy_pairwise/l2", 2.0),
        Measurement("unknown@score", 2.0, 3, "l2"),
        Measurement("nmi", 0.5),
    ]
    written = Result("all", found, details={"scores": scores_json(found)}).as_json()
    assert set(measurements_of(json.loads(json.dumps(written)))) == set(found)
    assert written["rows"]["embedding, l2"]["recall@10_low"] == 0.25
    crafted = {"rows": {"x": {"recall@1": None}, "": {}}, "scores": {"a@" + "9" * 5000: 1.0, "": 2}}
    assert all(each.k is None or each.k == 1 for each in measurements_of(crafted))


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.slow
def test_a_new_score_is_in_the_files_of_a_run(reach, photos, tmp_path, capsys, monkeypatch):
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
    assert "Reach@1, cosine" in page and "<h2>Reach@1 over epochs</h2>" in page

    folder = output / "tiny"
    assert [row["test/reach@1/l2"] for row in history(folder)] == [0.125, 0.125]
    result = json.loads((folder / "result.json").read_text())
    assert result["rows"]["embedding, cosine"]["reach@1"] == 0.25
    report = (folder / "report.html").read_text()
    assert '<th scope="col">Reach@1</th>' in report and reach.explanation in report
    assert "<h2>Reach on the test images</h2>" in report
    for text in (result["table"], (folder / "model_card.md").read_text(), said):
        assert "Reach@1" in text and COSINE in text


def test_a_new_score_of_a_catalog_is_everywhere(reach, tmp_path, capsys, monkeypatch):
    z, labels = clusters(6, 4, 3, scale=2.0)
    tables = [ImageTable.from_arrays(np.zeros((len(of), 8, 8, 3), np.uint8), of)
              for of in (labels, labels, np.arange(6))]  # fmt: skip
    options = SimpleNamespace(patience=0, neighbors="exact")
    data = Split(*tables[:2], catalog=tables[2])
    run = SimpleNamespace(data=data, ks=(1, 2), options=options)
    row = log_row(RetrievalScores().measure(run, None, {"test": z, "catalog": z[np.arange(6) * 4]}))
    assert row["catalog/reach@2/cosine"] == 0.5
    assert row["test/reach@1/l2_low"] == pytest.approx(0.025)

    got = []
    tracker = SimpleNamespace(id="1", log=got.extend, finish=lambda succeeded: None)
    monkeypatch.setitem(TRACKERS, "mine", lambda *given: tracker)
    folder = RunFolder(tmp_path / "run", "--seed=0\n").open()
    log = [{"epoch": epoch, "step": epoch, **row} for epoch in (1, 2)]
    with sending_scores("mine:", folder):
        folder.write_history(log)
    assert got[0].scores["catalog/reach@2/cosine"] == 0.5

    words = {"embeddings": z, "labels": labels, "catalog_embeddings": z, "catalog_labels": labels}
    np.savez(tmp_path / "mine.npz", **words)
    assert evaluate(f"--embeddings={tmp_path / 'mine.npz'}", "--recall_at=1,2") == 0
    result = json.loads((tmp_path / "mine-evaluation" / "evaluation.json").read_text())
    assert result["rows"]["photo to catalog, cosine"]["reach@1_high"] == pytest.approx(0.35)
    line = r"photo to catalog, cosine .* 0\.250 m \(0\.150 m to 0\.350 m\)"
    assert re.search(line, capsys.readouterr().out)
    read = {each.place: each for each in measurements_of(result)}
    assert len(read) == len(measurements_of(result))
    assert read["reach", 2, "l2", "embedding", "catalog"].low == pytest.approx(0.15)

    result |= {"train_seconds": 1.0, "seconds": 2.0}
    finished = "experiments.training.run_files.read_finished"
    monkeypatch.setattr(finished, lambda folder, whole: (result, log))
    for command in (compare, study):
        monkeypatch.setattr(
            command, "run_recipe", lambda recipe, folder, words: folder.mkdir(0o777, True)
        )
    monkeypatch.setattr(compare, "_same_queries", lambda *_: None)
    (tmp_path / "mine.flags").write_text("--dataset=glyphs\n")
    words = [f"--recipes={tmp_path / 'mine.flags'}"]
    assert command_of("compare")(*words, f"--output_dir={tmp_path / 'compared'}") == 0
    head, _, cells = (line.split("|") for line in capsys.readouterr().out.splitlines()[2:5])
    shown = dict(zip(map(str.strip, head), map(str.strip, cells)))
    assert shown["Reach@1, l2"] == L2 and shown["photo to catalog, Reach@1"] == COSINE
    assert command_of("study")(*words, f"--output_dir={tmp_path / 'study'}", "--seeds=2") == 0
    study_file = json.loads((tmp_path / "study" / "study.json").read_text())
    assert study_file["scores"]["Reach@1"] == {"mine": [0.25, 0.25]}
    assert "Reach@1" in capsys.readouterr().out


@pytest.mark.slow
def test_fitted_scores_of_information_need_a_flag(mine, capsys, monkeypatch):
    few = functools.partial(metrics.mutual_information_bound, steps=5)
    monkeypatch.setattr("keras_dml.metrics.information_scores.mutual_information_bound", few)
    words = [f"--embeddings={mine}", "--information", "--noclustering"]
    assert evaluate(*words) == 0
    printed = capsys.readouterr().out
    assert "lower bound by a linear probe (nats): " in printed
    assert "Widest classes (entropy within the class, nats): " in printed
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
    assert scores.information_scores(alone) == []
    collapsed = embedded(np.ones((4, 2)), np.array([0, 0, 1, 1]))
    found = {each.key: each.value for each in scores.information_scores(collapsed)}
    assert found["entropy_within/l2"] == -np.inf
    assert scores.as_json(found)["entropy_within/l2"] is None


def test_scores_of_information_use_at_most_4096_rows():
    z = np.random.default_rng(0).normal(size=(5000, 2))
    many = embedded(z, np.arange(5000) % 50)
    assert many.information(["class_entropy"])["information_rows"] == 4000


@pytest.mark.parametrize("neighbors", ["auto", "exact"])
def test_every_score_of_a_distance_comes_from_one_search(neighbors, monkeypatch):
    calls, search = [], scores.approximate_scores

    def counted(*given, **options):
        calls.append(given[3])
        return search(*given, **options)

    rng, labels = np.random.default_rng(0), np.arange(40) // 4
    queries = EmbeddedSet(rng.normal(size=(40, 3)).astype("float32"), labels)
    alone = ScoredSet(queries, (1, 2, 10), neighbors=neighbors)
    recalls = {name: alone.recall(name) for name in scores.DISTANCES}
    monkeypatch.setattr(scores, "approximate_scores", counted)
    scored = ScoredSet(queries, (1, 2, 10), neighbors=neighbors)
    found = scores.evaluate(scored, clustering=False)
    scored.of_classes()
    assert calls == list(scores.DISTANCES)
    for name in scores.DISTANCES:
        together = {each.k: each.value for each in found
                    if each.score == "recall" and each.distance == name}  # fmt: skip
        assert together == recalls[name]
