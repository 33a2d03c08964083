"""MTEB's scores of SavedModels, `.keras` files, and text encoders on tasks with local data."""

import importlib.util

import numpy as np
import pytest
from hub_presets import text_preset
from PIL import Image

import pipelines
from keras_dml import metrics, models
from keras_dml.export import MTEBEncoder, export_saved_model

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("mteb") is None, reason="MTEB is in the extra mteb"
    ),
    pytest.mark.slow,
]
TRANSFORM = pipelines.EvaluationTransform(32, resize=36)
TEXTS = ["a red apple", "red apple", "a green apple", "green apples", "milk", "a milk"]


@pytest.fixture(scope="module")
def characters():
    return pipelines.load_dataset("glyphs", train_classes=2, test_classes=20).test


@pytest.fixture(scope="module")
def model():
    return models.embedding_model(models.small_convnet(32), 16)


@pytest.fixture(scope="module")
def text_model(tmp_path_factory):
    """A text encoder and its transform."""
    pytest.importorskip("keras_hub")
    folder = tmp_path_factory.mktemp("presets") / "bert"
    text_preset(folder)
    name = f"hub:{folder}"
    encoder = models.embedding_model(models.text_backbone(name, 8), 16)
    return encoder, models.TextTransform(name, 8)


def pictures(table):
    return [Image.fromarray(pixels[..., 0]).convert("RGB") for pixels in table.arrays]


def score(encoder, queries, corpus, labels, to_labels=None, cache=None):
    """Return MTEB's hit rate at 1 of queries whose documents have their label.

    Args:
        queries, corpus: Column -> values. The same object: the other queries are the documents.
    """
    import datasets
    import mteb
    from mteb.abstasks import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    to_labels = labels if to_labels is None else to_labels
    column = {"queries": next(iter(queries)), "corpus": next(iter(corpus))}
    letters = {part: name[0] for part, name in column.items()}

    class LocalTask(AbsTaskRetrieval):
        ignore_identical_ids = queries is corpus
        k_values = (1, 10)
        metadata = TaskMetadata(
            name="LocalTask",
            description="Data of this test.",
            reference="https://example.org",
            dataset={"path": "none", "revision": "none"},
            type="Any2AnyRetrieval",
            category=f"{letters['queries']}2{letters['corpus']}",
            modalities=sorted(set(column.values())),
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="hit_rate_at_1",
            date=("2026-01-01", "2026-01-01"),
            domains=[],
            task_subtypes=[],
            license="mit",
            annotations_creators="derived",
            dialect=[],
            sample_creation="found",
            bibtex_citation="",
        )

        def load_data(self, **_):
            ids = [f"d{row}" for row in range(len(to_labels))]
            asked = ids if queries is corpus else [f"q{row}" for row in range(len(labels))]
            relevant = {
                query: {ids[row]: 1 for row in np.flatnonzero(to_labels == label)}
                for query, label in zip(asked, labels)
            }
            for query in relevant if queries is corpus else ():
                del relevant[query][query]
            self.dataset = {
                "default": {
                    "test": {
                        "queries": datasets.Dataset.from_dict({"id": asked, **queries}),
                        "corpus": datasets.Dataset.from_dict({"id": ids, **corpus}),
                        "relevant_docs": relevant,
                        "top_ranked": None,
                    }
                }
            }
            self.data_loaded = True

    (result,) = mteb.evaluate(encoder, LocalTask(), cache=cache, show_progress_bar=False)
    return result.get_score()


def near(value):
    return pytest.approx(value, abs=1e-5)  # MTEB rounds


def recall(embeddings, labels, **gallery):
    return metrics.recall_at_k(embeddings, labels, [1], **gallery)[1]


def test_a_saved_model_and_a_file_have_our_recall(characters, model, tmp_path):
    export_saved_model(model, tmp_path / "served", TRANSFORM)
    model.save(tmp_path / "model.keras")
    embeddings = model.predict(pipelines.evaluation_batches(characters, TRANSFORM), verbose=0)
    expected = recall(embeddings, characters.labels)
    assert 0.1 < expected < 0.9
    given = {"image": pictures(characters)}
    for images in (tmp_path / "served", (tmp_path / "model.keras", TRANSFORM), (model, TRANSFORM)):
        encoder = MTEBEncoder(images=images)
        assert score(encoder, given, given, characters.labels) == near(expected)


def test_a_text_encoder_has_our_recall(text_model, tmp_path):
    encoder, transform = text_model
    labels = np.array([0, 0, 1, 1, 2, 2])
    table = pipelines.ImageTable.from_encoded([text.encode() for text in TEXTS], labels)
    tokens = np.concatenate(list(pipelines.evaluation_batches(table, transform, 2)))
    expected = recall(encoder.predict(tokens, verbose=0), labels)
    export_saved_model(encoder, tmp_path / "served", transform)
    given = {"text": TEXTS}
    for texts in (text_model, tmp_path / "served"):
        assert score(MTEBEncoder(texts=texts), given, given, labels) == pytest.approx(
            expected, abs=1e-5
        )


def test_two_encoders_search_images_by_text(characters, model, text_model):
    labels, rows = np.array([0, 0, 1, 1, 2, 2]), np.arange(0, 60, 5)
    gallery = characters.select(rows)
    to_labels = np.arange(len(rows)) % 3
    both = MTEBEncoder(images=(model, TRANSFORM), texts=text_model)
    texts = MTEBEncoder(texts=text_model)
    table = pipelines.ImageTable.from_encoded([text.encode() for text in TEXTS], labels)
    tokens = np.concatenate(list(pipelines.evaluation_batches(table, text_model[1], 2)))
    expected = recall(
        text_model[0].predict(tokens, verbose=0),
        labels,
        gallery=model.predict(pipelines.evaluation_batches(gallery, TRANSFORM), verbose=0),
        gallery_labels=to_labels,
    )
    given = {"text": TEXTS}, {"image": pictures(gallery)}
    assert score(both, *given, labels, to_labels) == near(expected)
    with pytest.raises(ValueError, match="text"):
        score(texts, *given, labels, to_labels)


def test_another_model_or_preprocessing_never_gets_stored_results(model):
    def revision(of_model, transform=TRANSFORM):
        return MTEBEncoder(images=(of_model, transform)).mteb_model_meta.revision

    other = models.embedding_model(models.small_convnet(32), 16)
    other.set_weights(model.get_weights())
    assert revision(model) == revision(model)
    other.set_weights([weight + 1e-3 for weight in model.get_weights()])
    cropped = pipelines.EvaluationTransform(32, resize=40)
    assert len({revision(model), revision(other), revision(model, cropped)}) == 3


def test_errors_name_the_argument(model, text_model, tmp_path):
    export_saved_model(model, tmp_path / "served", TRANSFORM)
    short = models.embedding_model(models.small_convnet(32), 8)
    for arguments, words in [
        ({}, "images or texts must be an encoder"),
        ({"images": (model, TRANSFORM), "name": "mine"}, "name must be ORGANIZATION/NAME"),
        ({"images": tmp_path}, "saved_model must be the folder of a SavedModel"),
        ({"images": (model,)}, r"images must be .*\(model, preprocessing\)"),
        ({"texts": tmp_path / "served"}, "texts must be a SavedModel of texts.*Set images"),
        ({"images": (short, TRANSFORM), "texts": text_model}, "one length, but got .* 8 and 16"),
        ({"images": (model, pipelines.EvaluationTransform(40))}, "preprocessing must return"),
    ]:
        with pytest.raises(ValueError, match=words):
            MTEBEncoder(**arguments)
