"""`experiments.evaluate`: evaluation of models and of third-party embeddings."""

import json
import pathlib
import re
import shutil

import keras
import numpy as np
import pytest
import tiers
from official_layouts import write_groceries
from photo_search import png
from retrieval_sets import needs_scann
from tiny_run import command_of, small_encoder, write_run

import pipelines
from experiments import evaluate
from experiments.evaluation.embed import TableEmbedder, classes_line
from experiments.evaluation.embedding_file import EmbeddingFile
from experiments.evaluation.scores import SCORES
from experiments.options import parse
from experiments.pages import report
from experiments.pages.retrieval import Shown
from keras_dml import metrics, retrieval

LABELS = np.repeat([f"class {number}" for number in range(6)], 5)
EMBEDDINGS = np.random.default_rng(0).normal(size=(30, 4)).astype("float32")
TRANSFORM = pipelines.EvaluationTransform(16, resize=20)


command = command_of("evaluate")


def read(folder):
    """Return the result, and the page; without the scores of information."""
    result = json.loads((folder / "evaluation.json").read_text())
    for key in [key for key in result["scores"] if key in SCORES and not SCORES[key].compute]:
        del result["scores"][key]
    return result, (folder / "evaluation.html").read_text()


@pytest.fixture
def evaluated(tmp_path):
    """A function that evaluates arrays of a file, and returns `read` of the output."""

    def evaluated(*words, **arrays):
        arrays = {"embeddings": EMBEDDINGS, "labels": LABELS, **arrays}
        np.savez(tmp_path / "mine.npz", **arrays)
        output = tmp_path / "out" / "deep"
        files = [f"--embeddings={tmp_path / 'mine.npz'}", f"--output_dir={output}"]
        assert command(*files, *words) == 0
        return read(output)

    return evaluated


@pytest.fixture(scope="module")
def model(photos, tmp_path_factory):
    """The folder of a model as a .keras file and as a run."""
    folder = tmp_path_factory.mktemp("models")
    write_run(
        folder / "run", small_encoder(), f"--data_dir={photos}", "--resize=20", "--loss=triplet"
    )
    shutil.copy(folder / "run" / "best.keras", folder / "mine.keras")
    return folder


@pytest.fixture(scope="module")
def embeddings(model, photos):
    """Embeddings of the test images, computed without the command."""
    loaded = keras.saving.load_model(model / "mine.keras")
    return TableEmbedder(loaded, TRANSFORM, 64)(pipelines.load_dataset("folder", photos).test)


def test_third_party_embeddings(evaluated, capsys):
    other = np.array([{}])  # Python objects, which the command must not load
    result, page = evaluated("--recall_at=1,3", other=other)
    printed, scores = capsys.readouterr().out, result["scores"]
    assert scores == metrics.evaluate(EMBEDDINGS, LABELS, [1, 3])
    for name in ("map@r/l2", "nmi", "recall@3/cosine"):
        shown = f"{100 * scores[name]:.1f}"
        assert shown in printed and shown in page
    assert f"{scores['jensen_shannon']:.3f} nats" in printed
    assert page.count("<svg") == 1 and "<h2>Retrieval" not in page


def test_parts_of_losses(evaluated, tmp_path, capsys):
    """The contrastive row of the paper's Table 2, and losses that do not take embeddings."""
    result, page = evaluated("--loss_parts=contrastive,snca")
    assert "snca: tightness " in capsys.readouterr().out
    assert "contrastive" in page
    distances = np.linalg.norm(EMBEDDINGS[:, None] - EMBEDDINGS, axis=-1)
    same = LABELS[:, None] == LABELS
    expected = {
        "tightness": (np.square(distances) * same).sum() / len(LABELS),
        "contrastive": (np.square(np.maximum(1.0 - distances, 0.0)) * ~same).sum() / len(LABELS),
    }
    assert result["loss_parts"]["contrastive"] == pytest.approx(expected, rel=1e-5)
    file = f"--embeddings={tmp_path / 'mine.npz'}"
    assert command(file, "--loss_parts=ce") == 2
    assert "loss_parts must be losses over embeddings" in capsys.readouterr().err
    assert command(file, "--loss_parts=no_loss") == 2
    assert "loss_parts must be one of" in capsys.readouterr().err


@pytest.mark.parametrize("by_gallery", [False, True])
def test_reranked_rows_and_their_gains(evaluated, tmp_path, capsys, by_gallery):
    """R@1 and MAP@R in the order of each re-ranking, counted by loops."""
    z, labels = EMBEDDINGS[::2], LABELS[::2]
    items, item_labels, arrays = z, labels, {}
    if by_gallery:
        items, item_labels = EMBEDDINGS[1::2], LABELS[1::2]
        arrays = {"gallery_embeddings": items, "gallery_labels": item_labels}
    names = ["expand_queries", "augment_items", "k_reciprocal"]
    words = [f"--rerank={','.join(names)}", "--rerank_k=3", "--rerank_k1=4", "--rerank_k2=2"]
    words += ["--recall_at=1", "--noclustering"]
    result, page = evaluated(*words, embeddings=z, labels=labels, **arrays)
    printed = capsys.readouterr().out
    queries = retrieval.augment_items(z, 3)
    if by_gallery:
        queries = retrieval.expand_queries(z, items, 3)
    unit_queries, unit_items = (
        each / np.linalg.norm(each, axis=1, keepdims=True) for each in (z, items)
    )
    nearness = {
        "expand_queries": queries @ unit_items.T,
        "augment_items": unit_queries @ retrieval.augment_items(items, 3).T,
        "k_reciprocal": -retrieval.k_reciprocal_distances(
            z, items if by_gallery else None, k1=4, k2=2
        ),
    }
    for name in names:
        recalls, precisions = [], []
        for row, values in enumerate(nearness[name]):
            order = np.argsort(-values, kind="stable")
            order = order if by_gallery else order[order != row]
            hits = (item_labels[order] == labels[row]).astype(float)
            r = int(hits.sum())
            recalls.append(hits[0])
            precisions.append((hits[:r] * np.cumsum(hits[:r]) / np.arange(1, r + 1)).sum() / r)
        scores = result["rows"][f"{name}, cosine"]
        assert scores["recall@1"] == pytest.approx(np.mean(recalls))
        assert scores["map@r"] == pytest.approx(np.mean(precisions), rel=1e-6)
        assert f"{name}, cosine" in page
        assert re.search(rf"Gain of {name}: R@1 .* MAP@R .* intervals over 6 classes", printed)
    gallery = {key.removesuffix("_embeddings"): value for key, value in arrays.items()}
    plain = metrics.evaluate(z, labels, [1], clustering=False, **gallery)
    assert {name: result["scores"][name] for name in plain} == plain
    file = f"--embeddings={tmp_path / 'mine.npz'}"
    for flags, message in {
        ("--rerank=k_reciprical",): "rerank must be one of .*Did you mean k_reciprocal",
        ("--rerank_k1=4",): "rerank_k1 must be unset without --rerank=k_reciprocal",
        ("--rerank=expand_queries", "--rerank_k=0"): "rerank_k must be .* got 0",
        ("--rerank=k_reciprocal", "--rerank_weight=2"): "rerank_weight must be .* got 2",
    }.items():
        assert command(file, *flags) == 2
        assert re.search(message, capsys.readouterr().err)
    many = tmp_path / "many.npz"
    ones, of_gallery = np.ones((50_001, 1)), {"gallery_embeddings": [[1.0]], "gallery_labels": [0]}
    np.savez(many, embeddings=ones, labels=np.zeros(50_001, int), **of_gallery)
    assert command(f"--embeddings={many}", "--recall_at=1", "--rerank=k_reciprocal") == 2
    assert "gallery must have at most 50,000 rows" in capsys.readouterr().err


@pytest.mark.slow
def test_a_gallery_without_a_class_missing_pictures_and_rows_of_zeros(evaluated, tmp_path, capsys):
    queries = EMBEDDINGS[:20].astype("float64")
    gallery = {"gallery": EMBEDDINGS[5:], "gallery_labels": LABELS[5:]}
    arrays = {"gallery_embeddings": EMBEDDINGS[5:], "gallery_labels": LABELS[5:]}
    arrays |= {"paths": LABELS[:20], "gallery_paths": LABELS[5:]}
    words = ["--recall_at=25", "--noclustering"]
    result, _ = evaluated(*words, embeddings=queries, labels=LABELS[:20], **arrays)
    printed = capsys.readouterr().out
    expected = metrics.evaluate(queries, LABELS[:20], [1, 25], clustering=False, **gallery)
    assert result["scores"] == expected
    assert "Queries without a match: 5" in printed
    assert "the page shows no pictures: class 1: no such file" in printed

    zeros = queries * (np.arange(20) < 13)[:, None]
    result, page = evaluated(*words, embeddings=zeros, labels=LABELS[:20], **arrays)
    line = "7 rows of zeros (row numbers 13, 14, 15, 16, 17, …): similarity 0 to everything"
    assert f"\n{line}\n" in capsys.readouterr().out
    assert line in page
    assert (result["zero_rows"], result["gallery_zero_rows"]) == (7, 0)

    # Query and gallery share no class.
    file = tmp_path / "apart.npz"
    np.savez(file, embeddings=queries, labels=LABELS[:20] + "x", **arrays)
    assert command(*words, f"--embeddings={file}") == 2
    assert "labels must contain at least one row whose class" in capsys.readouterr().err


def test_prefixes_and_a_catalog_of_third_party_embeddings(evaluated):
    catalog = {"catalog_embeddings": EMBEDDINGS[::5], "catalog_labels": LABELS[::5]}
    result, page = evaluated("--recall_at=1,3,7", "--matryoshka=1,2,4", **catalog)
    expected = metrics.recall_at_k(EMBEDDINGS[:, :2], LABELS, [1, 3], "l2")
    assert result["scores"]["recall@3/l2/first 2"] == expected[3]
    assert "recall@1/l2/first 4" not in result["scores"] and "first 2, l2" in page
    found = metrics.recall_at_k(
        EMBEDDINGS, LABELS, [1, 3], gallery=EMBEDDINGS[::5], gallery_labels=LABELS[::5]
    )
    assert result["catalog"] == 6 and result["catalog_zero_rows"] == 0
    assert result["recall"]["photo to catalog, cosine"] == {"1": found[1], "3": found[3]}
    # Neither changes the other scores.
    others = metrics.evaluate(EMBEDDINGS, LABELS, [1, 3, 7])
    assert result["scores"] == {**result["scores"], **others}


def refused(arguments, message, capsys):
    assert command(*arguments) == 2
    lines = capsys.readouterr().err.splitlines(keepends=True)
    err = "".join(line for line in lines if "image/s" not in line)  # lines of the progress bar
    assert err.startswith("error: ") and err.count("\n") == 1
    assert re.search(message, err), err


@pytest.mark.slow
def test_an_untrained_backbone_without_a_run(photos, tmp_path, capsys):
    words = ["--backbone=small_convnet", f"--data_dir={photos}", "--image_size=16"]
    words += ["--weights=none", f"--output_dir={tmp_path}", "--recall_at=1,2"]
    assert command(*words) == 0
    printed = capsys.readouterr().out
    result, page = read(tmp_path)
    embeddings = np.load(tmp_path / "evaluation.npy")
    assert embeddings.shape == (20, 128)  # the test classes, and no projection
    expected = metrics.evaluate(embeddings, np.repeat(np.arange(5), 4), [1, 2])
    assert result["scores"] == expected
    assert "training classes" not in printed
    assert "<h1>untrained backbone small_convnet</h1>" in page
    names = ", ".join(f"class{number}" for number in range(5, 10))
    line = f"5 of 10 classes ({names}): those that a run tests. --split=all scores all 10"
    assert printed.startswith(f"{line}\n") and line in page


def table(classes, images=3):
    labels, names = np.repeat(np.arange(classes), images), [f"c{n}" for n in range(classes)]
    return pipelines.ImageTable(labels, names, arrays=np.zeros((len(labels), 2, 2, 3), np.uint8))


def test_the_first_line_names_the_evaluated_classes_and_the_reason():
    split = pipelines.split.Split(table(2), table(3))
    assert classes_line(split, "test", split.test) == (
        "3 of 5 classes (c0, c1, c2): those that a run tests. --split=all scores all 5"
    )
    assert "2 of 5 classes (c0, c1): those that a run trains on" in classes_line(
        split, "train", split.train
    )
    assert classes_line(split, "all", table(5)) == "all 5 classes (c0, c1, c2, c3, c4)"
    split = pipelines.split.Split(table(2), table(3), gallery=table(3))
    assert classes_line(split, "test", split.test).endswith("those that a run tests")
    split = pipelines.split.Split(table(2), table(2, 1), same_classes=True)
    assert classes_line(split, "test", split.test).startswith("2 of 8 images of 2 classes: those")
    line = classes_line(split, "test", split.test, every_class=True)
    assert line == "all 2 images of 2 classes, which all train"


def test_output_folders(tmp_path, capsys, monkeypatch):
    (tmp_path / "model-v1.2").mkdir()
    (tmp_path / "model-v1.keras").touch()
    monkeypatch.chdir(tmp_path / "model-v1.2")

    def output(*arguments):
        return parse(evaluate.EvaluateOptions, ["evaluate", *arguments]).output

    assert output("--saved_model=.") == tmp_path / "model-v1.2-evaluation"
    assert output("--saved_model=../model-v1.2/") == tmp_path / "model-v1.2-evaluation"
    assert (
        output("--model=../model-v1.keras", "--split=all") == tmp_path / "model-v1-evaluation-all"
    )
    np.savez("mine", embeddings=EMBEDDINGS, labels=LABELS)
    pathlib.Path("mine-evaluation", "evaluation.json").mkdir(parents=True)
    refused(["--embeddings=mine.npz", "--noclustering"], "evaluation.json", capsys)


@pytest.mark.slow
def test_a_run_and_a_keras_model(model, photos, embeddings, tmp_path, monkeypatch, capsys):
    scores = metrics.evaluate(embeddings, np.repeat(np.arange(5), 4), [1, 2])
    assert command(f"--run={model / 'run'}") == 0
    found, page = read(model / "run" / "evaluation")
    assert "training classes" not in capsys.readouterr().out + page
    assert found["scores"] == scores
    at_random, heading, _ = page.partition("<h2>Best queries")
    assert at_random.count('class="query"') == 10 and heading
    assert page.count("<svg") == 2
    monkeypatch.setattr(report, "shown_of_readable", lambda images: Shown())  # skip a slow step

    assert command(f"--run={model / 'run'}", "--split=train", "--noclustering") == 0
    assert "\nall classes are training classes of the dataset" in capsys.readouterr().out

    # Stopped after the first batch, the command resumes with the second.
    arguments = [f"--model={model / 'mine.keras'}", "--dataset=folder", f"--data_dir={photos}"]
    arguments += [f"--output_dir={tmp_path}", "--resize=20", "--recall_at=1,2"]
    written = []
    append = EmbeddingFile.append

    def append_one(self, batch):
        if written:
            raise KeyboardInterrupt
        written.append(len(batch))
        append(self, batch)

    monkeypatch.setattr(EmbeddingFile, "append", append_one)
    assert command(*arguments, "--eval_batch_size=3") == 130
    monkeypatch.setattr(EmbeddingFile, "append", lambda *a: (written.append(len(a[1])), append(*a)))
    assert command(*arguments, "--eval_batch_size=10") == 0
    assert written == [3, 10, 7]
    assert read(tmp_path)[0]["scores"] == scores
    np.testing.assert_allclose(np.load(tmp_path / "evaluation.npy"), embeddings, atol=1e-6)

    # Other images: all embeddings are recomputed.
    capsys.readouterr()
    assert command(*arguments, "--split=all", "--noclustering") == 0
    line = "5 of the 10 classes are training classes of the dataset: a model that was trained on"
    assert f"\n{line}" in capsys.readouterr().out
    assert line in read(tmp_path)[1]
    assert sum(written[3:]) == 40
    embeddings = np.load(tmp_path / "evaluation.npy")
    scores = metrics.evaluate(embeddings, np.repeat(np.arange(10), 4), [1, 2], clustering=False)
    assert read(tmp_path)[0]["scores"] == scores


@tiers.thorough
def test_unsuitable_models(model, photos, tmp_path, capsys):
    data = ["--dataset=folder", f"--data_dir={photos}", f"--output_dir={tmp_path / 'out'}"]
    (tmp_path / "text.keras").write_text("no model")

    def saved(name, shape, *layers):
        keras.Sequential([keras.Input(shape), *layers]).save(tmp_path / name)
        return f"--model={tmp_path / name}"

    @keras.saving.register_keras_serializable("test_evaluate_command")
    class Subclassed(keras.Model):
        def call(self, images):
            return [keras.ops.mean(images, axis=(1, 2))] * 2

    own = Subclassed()
    own(np.zeros([1, 16, 16, 3]))
    own.save(tmp_path / "sub.keras")
    subclassed = f"--model={tmp_path / 'sub.keras'}"
    flatten, pool = keras.layers.Flatten(), keras.layers.GlobalMaxPooling2D()
    nan = keras.layers.Rescaling(float("inf"))
    for arguments, message in (
        ([f"--model={tmp_path / 'gone.keras'}"], "model must be a .keras file.*gone.keras"),
        ([f"--model={tmp_path / 'text.keras'}"], "model cannot be loaded from .*text.keras"),
        ([saved("grey.keras", [8, 8, 1], flatten)], r"images \[n, size, size, 3\].*8, 8, 1"),
        ([saved("maps.keras", [8, 8, 3], keras.layers.ReLU())], r"embeddings \[n, d\].*8, 8, 3"),
        ([saved("any.keras", [None, None, 3], pool)], "image_size must be set"),
        ([saved("nan.keras", [8, 8, 3], nan, flatten)], "embeddings that are not finite"),
        ([subclassed], "image_size must be set.*sub.keras has no size"),
        ([subclassed, "--image_size=20"], r"for one image has the shape \[\(1, 3\), \(1, 3\)\]"),
        ([f"--model={model / 'mine.keras'}", "--image_size=32"], "image_size must be 16"),
        ([f"--model={model / 'mine.keras'}", "--resize=8"], "resize"),
    ):
        refused([*data, *arguments], message, capsys)
    assert command(f"--model={tmp_path / 'any.keras'}", "--image_size=20", *data) == 0


@needs_scann
def test_scores_by_scann_have_certificates(evaluated, capsys):
    words = ["--matryoshka=2,4", "--recall_at=1,3"]
    exact, _ = evaluated(*words)
    assert "Exact on" not in capsys.readouterr().out
    assert exact["engine"] == "scann"
    result, page = evaluated(*words, "--neighbors=scann")
    assert result["engine"] == "scann_tree" and "ScaNN, a tree" in page
    assert "interval (first 2, cosine): R@1 " in capsys.readouterr().out
    scores, certificates = result["scores"], result["certificates"]
    assert scores == pytest.approx(exact["scores"]) and "Exact on 30 random queries" in page
    for key in ("recall@3/cosine", "map@r/l2", "recall@1/cosine/first 2"):
        low, high = certificates[f"{key}/exact_low"], certificates[f"{key}/exact_high"]
        assert low < scores[key] < high


@needs_scann
def test_both_exact_engines_give_the_same_table_and_are_named(evaluated):
    by_scann, page = evaluated()
    by_numpy, twin = evaluated("--neighbors=exact")
    assert (by_scann["engine"], by_numpy["engine"]) == ("scann", "numpy")
    assert "ScaNN, all images compared" in page and "NumPy, all images compared" in twin
    for key in ("rows", "scores", "recall", "table"):
        assert by_scann[key] == by_numpy[key]


@pytest.mark.slow
def test_models_of_candidates_have_the_length_of_the_queries(tmp_path, capsys):
    ids = [41, 42, 43]  # test classes
    groceries = write_groceries(tmp_path / "data", [0, 0, 1, 1], ids, ids, png(5))
    small_encoder().save(tmp_path / "queries.keras")
    small_encoder(8).save(tmp_path / "longer.keras")
    words = [f"--model={tmp_path / 'queries.keras'}", "--resize=20", "--dataset=groceries"]
    words += [f"--data_dir={groceries}", f"--candidate_model={tmp_path / 'longer.keras'}"]
    refused(words, "candidate_model must give embeddings of length 6", capsys)
