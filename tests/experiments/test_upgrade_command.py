"""`experiments.upgrade`: the measurement, the upgraded folders, kills, and mistakes."""

import dataclasses
import io
import json
import os
import pathlib
import shutil
import threading

import numpy as np
import pytest
import tensorflow as tf
import tiers
from photo_search import answering, index_command, png, save_color_model, send, write_photos
from PIL import Image
from tiny_run import command_of

from experiments.evaluation.calibration import Calibration, calibration_path, write_calibration
from experiments.searching import upgrade_folder
from experiments.searching import upgrade_measuring as measuring
from experiments.searching.gallery import FolderGallery
from experiments.searching.index_folder import locked_folder, read_settings, write_settings
from experiments.searching.visual_search import VisualSearch
from keras_dml import retrieval
from keras_dml import upgrade as upgrades
from keras_dml._files import atomic
from keras_dml._files.manifest import Manifest
from keras_dml.export.load import fingerprint
from keras_dml.retrieval import load_index
from pipelines import EvaluationTransform

upgrade, search = command_of("upgrade"), command_of("search")
NAMES = [f"{name}/{number}.png" for name in "abcdefghijkl" for number in range(6)]
QUERY = png(9)  # the image b/3.png


class Mirrored(tf.Module):
    """The colors of `photo_search.Colors` in another order, and 16 more numbers."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="images")])
    def serve(self, images):
        pixels = tf.map_fn(
            EvaluationTransform(4), images, fn_output_signature=tf.TensorSpec([4, 4, 3])
        )
        colors = tf.reshape(pixels - 127.5, [-1, 48])
        return {"embeddings": tf.concat([colors[:, ::-1], colors[:, :16]], 1)}


class QuickEmbedder:
    """Stands in for `ImageEmbedder`: the embeddings of both models without a graph."""

    takes_text = False

    def __init__(self, path):
        self.is_new = pathlib.Path(path).name == "new"
        self.dimensions = 64 if self.is_new else 48

    def __call__(self, encoded):
        colors = np.stack([self._colors(each) for each in encoded])
        if self.is_new:
            colors = np.concatenate([colors[:, ::-1], colors[:, :16]], 1)
        return colors, {}

    def _colors(self, encoded):
        with Image.open(io.BytesIO(encoded)) as picture:
            return np.asarray(picture.resize((4, 4)), np.float32).ravel() - 127.5


@pytest.fixture
def real_models():
    """Embed with TensorFlow."""


@pytest.fixture(autouse=True)
def quick_models(request, monkeypatch):
    """Embed without TensorFlow, except for tests with `real_models`."""
    if "real_models" not in request.fixturenames:
        for module in ("evaluation.saved_model", "searching.upgrade_folder"):
            monkeypatch.setattr(f"experiments.{module}.ImageEmbedder", QuickEmbedder)
        monkeypatch.setattr("experiments.searching.visual_search.ImageEmbedder", QuickEmbedder)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with "photos", "old" and "new" (models), and "index" (of the old model)."""
    folder = tmp_path_factory.mktemp("upgrades")
    write_photos(folder / "photos", NAMES)
    save_color_model(folder / "old")
    new = Mirrored()
    tf.saved_model.save(new, str(folder / "new"), {"serving_default": new.serve})
    (folder / "known.csv").write_text("path,brand\na/0.png,Arla\n")
    given = [f"--saved_model={folder / 'old'}", f"--images={folder / 'photos'}"]
    given += [f"--output_dir={folder / 'index'}", f"--columns={folder / 'known.csv'}"]
    assert index_command(*given) == 0
    return folder


@pytest.fixture
def index(made, tmp_path):
    """A copy of the index."""
    return shutil.copytree(made / "index", tmp_path / "index")


@pytest.fixture
def to(made, index):
    """A function that upgrades the index, and returns the folder of the upgraded index."""

    def to(way, *more):
        assert (
            upgrade(f"--index={index}", f"--saved_model={made / 'new'}", f"--to={way}", *more) == 0
        )
        return index.with_name("index-upgraded")

    return to


def files_of(folder):
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def spaces(folder):
    found = FolderGallery(folder)
    return [] if found.map is None else [found.map.space(row) for row in range(len(found.paths))]


def fresh_index(made, folder, *more):
    given = [f"--saved_model={made / 'new'}", f"--images={made / 'photos'}"]
    given += [f"--columns={made / 'known.csv'}", "--batch_size=8", *more]
    assert index_command(*given, f"--output_dir={folder}") == 0
    return folder


# A stranger's index.


@pytest.mark.slow
@pytest.mark.parametrize("way", ["queries", "map"])
def test_the_content_behind_a_link_in_an_index_is_not_copied(index, to, tmp_path, way):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    (index / "notes.txt").symlink_to(secret)
    upgraded = to(way)
    assert (upgraded / "settings.json").is_file()
    copies = [path for path in upgraded.rglob("*") if path.is_file() and not path.is_symlink()]
    assert b"secret" not in [path.read_bytes() for path in copies]


# The measurement.


def sample(change, classes=30, labeled=True):
    """Return embeddings by two models: rows around class centers, and `change` of them."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), 10)
    centers = rng.normal(size=(classes, 16))
    old = centers[labels] + 0.8 * rng.normal(size=(len(labels), 16))
    new = change(rng, centers[labels], old)
    fitted = labels < 0.8 * classes if labeled else np.arange(len(labels)) % 5 > 0
    paths = [str(row) for row in range(len(labels))]
    arrays = old.astype("float32"), new.astype("float32")
    return measuring.Sample(*arrays, paths, labels if labeled else None, fitted)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def turned(rng, centers, old):
    rotation, _ = np.linalg.qr(rng.normal(size=(16, 16)))
    return old @ rotation + 0.05 * rng.normal(size=old.shape)


def trained(rng, centers, old):
    """Return embeddings that know the classes, which the old embeddings show badly."""
    return np.tanh(3 * centers @ rng.normal(size=(16, 32))) + 0.1 * rng.normal(size=(len(old), 32))


def slightly_worse(rng, centers, old):
    """Return the old embeddings, turned, with a little more noise, as another seed can give."""
    return turned(rng, centers, old + 0.15 * rng.normal(size=old.shape))


def compatible(rng, centers, old):
    """Return embeddings whose first numbers are near the old ones."""
    return np.concatenate([old + 0.05 * rng.normal(size=old.shape), trained(rng, centers, old)], 1)


def longer(rng, centers, old):
    """Return the old embeddings, and other numbers that say nothing about the classes."""
    return np.concatenate([old, 0.3 * rng.normal(size=(len(old), 32))], 1)


def noisy(rng, centers, old):
    return old + 3 * rng.normal(size=old.shape)


@pytest.mark.parametrize(
    ("change", "labeled", "ways"),
    [
        (turned, True, {"map", "queries"}),
        (trained, True, {"again"}),
        (slightly_worse, True, {"map", "queries"}),
        (noisy, True, {"keep"}),
        (longer, True, {"prefix"}),
        (compatible, True, {"map"}),  # keeps more than the first numbers
        (compatible, False, {"again"}),
        (turned, False, {"map", "queries"}),
        (trained, False, {"again"}),
    ],
)
def test_a_map_is_recommended_where_it_keeps_the_scores(change, labeled, ways):
    made = sample(change, labeled=labeled)
    found = measuring.measured(made, 1000, "affine", 0, seconds_per_image=0.5)
    advice = measuring.recommended(found)
    assert advice.way in ways, advice
    text = measuring.summary(found, made, 1000, advice)
    searched = 300 if labeled else 60
    assert f"searched among {searched} images" in text and "all 1,000 images" in text
    assert ("MAP@R" in text) == labeled and ("the ten nearest" in text) == (not labeled)
    assert advice.reason in text
    assert found["again"].seconds == 500 and found["again"].size == 4 * 1000 * made.new.shape[1]


def test_the_measured_images_are_searched_among_all_images_of_the_sample():
    """In a gallery of few images, every search finds its images, and every map looks right."""
    made = sample(trained, classes=100)
    way = measuring.measured(made, 1000, "affine", 0, seconds_per_image=0.5)["keep"]
    cosines = unit(made.old) @ unit(made.old).T
    np.fill_diagonal(cosines, -2)
    queries = ~made.fitted
    among_all = (made.labels[cosines.argmax(axis=1)] == made.labels)[queries].mean()
    few = cosines[np.ix_(queries, queries)].argmax(axis=1)
    among_few = (made.labels[queries][few] == made.labels[queries]).mean()
    assert way.scores["recall@1"].value == pytest.approx(among_all)
    assert among_few > among_all + 0.1


def test_the_models_are_compared_on_each_image_of_the_sample():
    """No map is fitted for them, so a difference of the models needs no held-out classes."""
    made = sample(lambda rng, centers, old: old + 0.1 * centers, classes=100)
    found = measuring.measured(made, 1000, "affine", 0, seconds_per_image=0.5)["again"]
    table = upgrades.cross_scores(made.old, made.new, made.labels)
    (row,) = [row for row in table if row[:3] == ("new", "new", "difference in map@r")]
    assert found.differences["map@r"] == row
    assert row.low > 0


def test_of_a_model_that_finds_nothing_a_map_keeps_everything():
    def useless(rng, centers, old):  # the nearest images are of other classes
        return np.tile(rng.normal(size=(10, 16)), (30, 1)) + 1e-3 * rng.normal(size=old.shape)

    made = sample(useless)
    found = measuring.measured(made, 1000, "affine", 0, seconds_per_image=0.5)
    assert found["again"].scores["recall@1"].value == 0
    assert measuring.recommended(found).way == "keep"
    swapped = made._replace(old=made.new, new=made.old)
    found = measuring.measured(swapped, 1000, "affine", 0, seconds_per_image=0.5)
    assert "100 % (at least 100 %) of R@1" in measuring.recommended(found).reason


def test_the_drawn_images_are_whole_classes_and_depend_on_the_seed_only():
    names = [f"{number // 7}" for number in range(7000)] + ["large"] * 3000
    rows = measuring.drawn(names, 1000, seed=3)
    assert len(rows) == len(set(rows.tolist())) == 1000
    assert (np.diff(rows) > 0).all()
    np.testing.assert_array_equal(rows, measuring.drawn(names, 1000, seed=3))
    assert set(rows.tolist()) != set(measuring.drawn(names, 1000, seed=4).tolist())
    sizes = np.unique(np.array(names)[rows], return_counts=True)[1]
    assert np.count_nonzero(sizes < 7) <= 1 and sizes.max() <= 20
    assert len(measuring.drawn(["a"] * 90 + ["b"] * 5, 60, seed=0)) == 60
    assert measuring.drawn(["a", "b"], 60, seed=0).tolist() == [0, 1]


def test_the_command_measures_and_finds_its_sample_again(made, index, capsys, monkeypatch):
    words = [f"--index={index}", f"--saved_model={made / 'new'}"]
    before = files_of(index)
    assert upgrade(*words) == 0
    out = capsys.readouterr().out
    for part in ("keep the old model", "map the queries", "map the rows", "embed again"):
        assert part in out
    assert "recommended: " in out and not index.with_name("index-upgraded").exists()
    assert ("the same command with --to=" in out) == ("recommended: keep" not in out)
    assert before.items() <= files_of(index).items()

    def unexpected(*arguments, **named):
        raise AssertionError("embedded again")

    monkeypatch.setattr("experiments.searching.folder_embeddings.embed_batch", unexpected)
    assert upgrade(*words) == 0
    again = capsys.readouterr().out
    assert again.splitlines()[-2:] == out.splitlines()[-2:]


def test_an_index_without_classes(made, tmp_path, capsys):
    photos = write_photos(tmp_path / "photos", [f"{number}.png" for number in range(70)])
    given = [f"--saved_model={made / 'old'}", f"--images={photos}"]
    assert index_command(*given, f"--output_dir={tmp_path / 'index'}") == 0
    capsys.readouterr()
    assert upgrade(f"--index={tmp_path / 'index'}", f"--saved_model={made / 'new'}") == 0
    out = capsys.readouterr().out
    assert "the ten nearest" in out and "R@1" not in out and "recommended: map" in out


def test_classes_of_one_image_leave_classes_to_measure(made, tmp_path, capsys):
    """A fifth of the classes with two images measure, however few they are."""
    names = [f"pair{number}/{k}.png" for number in range(10) for k in range(2)]
    photos = write_photos(tmp_path / "photos", names + [f"{n}/0.png" for n in range(60)])
    index = tmp_path / "index"
    given = [f"--saved_model={made / 'old'}", f"--images={photos}", f"--output_dir={index}"]
    assert index_command(*given) == 0
    # Four fifths of all classes would contain all pairs, with this seed.
    assert upgrade(f"--index={index}", f"--saved_model={made / 'new'}", "--seed=66") == 0
    assert "On 16 images of 14 classes" in capsys.readouterr().out


# The upgraded folders.


@pytest.mark.slow
def test_the_last_stage_leaves_a_fresh_index_and_each_answer_names_its_space(
    real_models, made, index, to, tmp_path, capsys
):
    before = files_of(index)
    upgraded = to("map")
    assert before.items() <= files_of(index).items()
    assert set(spaces(upgraded)) == {"mapped"}
    query = made / "photos" / "b" / "3.png"
    words = [f"--index={upgraded}", f"--query={query}", "--k=3"]
    capsys.readouterr()
    assert search(*words) == 0
    printed = capsys.readouterr().out
    assert "b/3.png  (mapped)" in printed and "map: affine map of 72 of 72 images from" in printed
    for stage, mapped in (("2/3", 48), ("1/3", 24)):
        assert upgrade(f"--index={upgraded}", f"--stage={stage}", "--batch_size=8") == 0
        assert spaces(upgraded).count("mapped") == mapped
        assert f": {72 - mapped} of 72 images" in capsys.readouterr().out
        assert search(*words, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["map"]["kind"] == "affine" and found["map"]["mapped"] == mapped
        nearest = found["answers"][0]["neighbours"][0]
        assert nearest["path"] == "b/3.png" and nearest["space"] in ("new", "mapped")
    assert index_command(
        f"--saved_model={made / 'new'}", f"--images={made / 'photos'}", f"--output_dir={upgraded}"
    ) == 2  # fmt: skip
    assert "without mapped rows" in capsys.readouterr().err
    assert upgrade(f"--index={upgraded}", "--stage=3/3", "--batch_size=8") == 0
    assert files_of(upgraded) == files_of(fresh_index(made, tmp_path / "fresh"))
    assert upgrade(f"--index={index}", "--replace") == 0
    assert files_of(index) == files_of(tmp_path / "fresh") and not upgraded.exists()


def test_all_images_embedded_again_are_a_fresh_index(made, to, tmp_path):
    fresh = fresh_index(made, tmp_path / "fresh")
    assert files_of(to("again", "--batch_size=8", "--replace").with_name("index")) == files_of(
        fresh
    )


@pytest.mark.slow
def test_stages_follow_added_changed_and_deleted_images(made, index, to, tmp_path, capsys):
    photos = shutil.copytree(made / "photos", tmp_path / "photos")
    upgraded = to("map")
    moved = [f"--index={upgraded}", f"--images={photos}", "--batch_size=8"]
    assert upgrade(*moved, "--stage=1/2") == 0
    write_photos(photos, ["c/0.png", "new/0.png"])
    (photos / "d" / "1.png").unlink()
    (photos / "e" / "1.png").write_text("no image")
    assert upgrade(*moved, "--stage=2/2") == 0 and upgrade(*moved, "--stage=1/2") in (0, 2)
    given = [f"--saved_model={made / 'new'}", f"--images={photos}", "--batch_size=8"]
    assert index_command(*given, f"--output_dir={tmp_path / 'fresh'}") == 0
    found, fresh = FolderGallery(upgraded), FolderGallery(tmp_path / "fresh")
    assert found.paths == fresh.paths and found.map is None
    np.testing.assert_allclose(
        found.index.embeddings_of(found.paths), fresh.index.embeddings_of(found.paths), atol=1e-6
    )
    assert "e/1.png" in (upgraded / "skipped.txt").read_text()


def test_a_stage_embeds_lost_embeddings_of_earlier_stages(made, to, tmp_path):
    """The message about a damaged file of embeddings says to delete it."""
    upgraded = to("map")
    words = [f"--index={upgraded}", "--batch_size=8"]
    assert upgrade(*words, "--stage=1/3") == 0
    path = upgraded / "embeddings.npz"
    path.write_bytes(path.read_bytes()[:-1])
    assert upgrade(*words, "--stage=2/3") == 2
    path.unlink()
    assert upgrade(*words, "--stage=2/3") == 0
    assert spaces(upgraded).count("new") == 48 and len(spaces(upgraded)) == 72
    assert upgrade(*words, "--stage=3/3") == 0
    found, fresh = FolderGallery(upgraded), FolderGallery(fresh_index(made, tmp_path / "fresh"))
    assert found.paths == fresh.paths and found.map is None
    np.testing.assert_array_equal(
        found.index.embeddings_of(found.paths), fresh.index.embeddings_of(found.paths)
    )


@pytest.mark.slow
def test_an_upgraded_index_names_the_place_of_a_moved_model_and_of_moved_images(
    made, index, tmp_path
):
    photos, upgraded = tmp_path / "photos", tmp_path / "index-upgraded"
    model = shutil.copytree(made / "new", tmp_path / "first" / "new")
    assert upgrade(f"--index={index}", f"--saved_model={model}", "--to=map") == 0
    model = model.rename(tmp_path / "new")
    shutil.copytree(made / "photos", photos)
    words = [f"--index={upgraded}", f"--images={photos}", f"--saved_model={model}"]
    assert upgrade(*words, "--batch_size=8", "--stage=1/2") == 0
    found = VisualSearch(upgraded)
    assert found.search(QUERY, 1).results[0].path == "b/3.png"
    assert (found.saved_model, found.images.place) == (model, str(photos))


def test_mapped_queries_search_the_old_rows(made, index, to, capsys):
    upgraded = to("queries")
    words = [f"--query={made / 'photos' / 'b' / '3.png'}", "--k=1", "--json"]
    capsys.readouterr()
    assert search(f"--index={upgraded}", *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["map"]["of"] == "queries" and found["map"]["new_model"] == str(made / "new")
    (nearest,) = found["answers"][0]["neighbours"]
    assert (nearest["path"], nearest["space"]) == ("b/3.png", "old")
    with answering(upgraded) as server:
        status, answer = send(server.effective_port, QUERY)
        assert status == 200 and answer["map"] == found["map"]
    # The index of the old model continues to follow its images.
    given = [f"--saved_model={made / 'old'}", f"--images={made / 'photos'}"]
    assert index_command(*given, f"--output_dir={upgraded}") == 0
    assert FolderGallery(upgraded).map is not None
    # After it replaces the index, it can be embedded again.
    assert upgrade(f"--index={index}", "--replace") == 0
    new = [f"--index={index}", f"--saved_model={made / 'new'}"]
    assert upgrade(*new) == 2
    assert f"--index={index} --saved_model={made / 'new'} --to=again" in capsys.readouterr().err
    assert upgrade(*new, "--to=again") == 0 and FolderGallery(upgraded).map is None
    map_file = index / "query.map"
    map_file.write_bytes(map_file.read_bytes()[:-1])
    assert search(f"--index={index}", *words) == 2
    assert "query.map is damaged" in capsys.readouterr().err


def test_the_first_numbers_of_queries_search_the_old_rows(made, index, to, capsys):
    upgraded = to("prefix")
    assert "prefix, the first numbers of queries by" in capsys.readouterr().out
    assert upgrade(f"--index={upgraded}", "--stage=1/2") == 2
    error = capsys.readouterr().err
    assert f"--index={upgraded} --saved_model={made / 'new'} --to=again --replace" in error
    old, new = (QuickEmbedder(made / name) for name in ("old", "new"))
    (query,), _ = new([QUERY])
    rows, _ = old([(made / "photos" / name).read_bytes() for name in NAMES])
    best = NAMES[np.argmax(rows @ query[:48] / np.linalg.norm(rows, axis=1))]
    assert VisualSearch(upgraded).search(QUERY, 1).results[0].path == best
    # The other model has shorter embeddings.
    fresh_index(made, index.with_name("fresh"))
    words = [f"--index={index.with_name('fresh')}", f"--saved_model={made / 'old'}"]
    assert upgrade(*words, "--to=prefix") == 2
    assert "at least 64 numbers for --to=prefix" in capsys.readouterr().err


@pytest.mark.slow
def test_mapped_rows_get_a_tree(made, index, to, capsys):
    """It is trained on the mapped rows: a search through all of its leaves finds the nearest."""
    pytest.importorskip("scann")
    tree = retrieval.TreeAH(num_leaves=2, leaves_to_search=2, reorder=30)
    settings = read_settings(index)
    settings["built"] |= {"tree": dataclasses.asdict(tree)}
    write_settings(index, settings)
    upgraded = to("map")
    captured = capsys.readouterr()
    assert "building a tree over 72 images" in captured.err
    assert "100.0 % of the 10 nearest rows are found with queries of the new" in captured.out
    found = load_index(upgraded / "index")
    assert found.tree.num_leaves == 2 and "leaves" in read_settings(upgraded)["search"]
    rows = found.embeddings_of(NAMES)
    (query,), _ = QuickEmbedder(made / "new")([QUERY])
    nearest = found.search(query[None], 5)[0][0].tolist()
    assert nearest == [NAMES[row] for row in np.argsort(-rows @ query)[:5]]


def test_the_share_that_an_approximate_search_finds():
    """A prefix index of rows whose first numbers are all alike finds its candidates only."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 8)).astype("float32")
    index = retrieval.PrefixIndex(rows, "cosine", length=1, candidates=20)
    queries = rng.normal(size=(50, 8)).astype("float32")
    cosines = unit(queries) @ unit(rows).T
    found, _ = index.search(queries, 10)
    nearest = np.argsort(-cosines, axis=1)[:, :10]
    shares = [len({*a} & {*b}) / 10 for a, b in zip(found.tolist(), nearest.tolist())]
    assert upgrade_folder.found_share(index, queries) == pytest.approx(np.mean(shares))
    assert np.mean(shares) < 0.5


def test_each_step_names_the_next_one(index, to, capsys):
    upgraded = to("map")
    replace = f"upgrade --index={index} --replace"
    out = capsys.readouterr().out
    assert f"upgrade --index={upgraded} --stage=1/4" in out and replace in out
    assert upgrade(f"--index={upgraded}", "--stage=1/2") == 0
    assert replace not in capsys.readouterr().out
    assert upgrade(f"--index={upgraded}", "--stage=2/2") == 0
    assert replace in capsys.readouterr().out
    assert upgrade(f"--index={index}", "--replace") == 0
    capsys.readouterr()
    assert search(f"--index={upgraded}", "--query=a.png") == 2
    assert f"{upgraded} does not exist" in capsys.readouterr().err


def test_a_threshold_is_not_applied_to_an_index_with_a_map(made, index, to, capsys):
    upgraded = to("map")
    path = calibration_path(made / "new")
    write_calibration(path, Calibration("cosine", 0.9, 1e-3, fingerprint(made / "new")))
    try:
        found = VisualSearch(upgraded)
        assert found.calibration is None and "--stage=1/1" in found.not_calibrated
        assert VisualSearch(upgraded).search(QUERY, 1).results[0].match is None
        assert command_of("calibrate")(f"--index={upgraded}") == 2
        assert f"calibrate --index={upgraded})" in capsys.readouterr().err
        assert upgrade(f"--index={upgraded}", "--stage=1/1") == 0
        assert VisualSearch(upgraded).search(QUERY, 1).results[0].match is True
    finally:
        path.unlink()


# Kills, and two commands.


def snapshots(monkeypatch, folder, copies):
    """Copy a folder before and after each renaming of a folder, as a kill would leave it."""
    rename, numbers = os.rename, iter(range(100))

    def keep():
        shutil.copytree(folder, copies / str(next(numbers)), symlinks=True)

    class Watched:
        def __getattr__(self, name):
            return getattr(os, name)

        def rename(self, *paths):
            keep()
            rename(*paths)
            keep()

    monkeypatch.setattr(atomic, "os", Watched())


@tiers.parametrize("step", ["map", "stage", "replace"], sooner=["replace"], later=pytest.mark.slow)
def test_a_kill_at_any_renaming_leaves_an_index_that_answers(
    made, index, to, tmp_path, monkeypatch, step
):
    folder = index.parent
    if step != "map":
        upgraded = to("map")
    words = {
        "map": [f"--index={index}", f"--saved_model={made / 'new'}", "--to=map"],
        "stage": [f"--index={index}-upgraded", "--stage=1/2", "--batch_size=8"],
        "replace": [f"--index={index}", "--replace"],
    }[step]
    copies = tmp_path.with_name(f"{tmp_path.name}-copies")
    with monkeypatch.context() as patch:
        snapshots(patch, folder, copies)
        assert upgrade(*words) == 0
    done = {name: data for name, data in files_of(folder).items() if "/.upgrade/" not in name}
    kept = sorted(copies.iterdir())
    assert len(kept) >= 2
    for copy in kept:
        shutil.rmtree(folder)
        shutil.copytree(copy, folder, symlinks=True)
        searched = upgraded if step == "stage" else index
        assert VisualSearch(searched).search(QUERY, 1).results[0].path == "b/3.png"
        if upgrade(*words) == 2:  # the killed command had written everything
            assert {"map": index.with_name("index-upgraded").is_dir(), "replace": True}[step]
        found = files_of(folder)
        for name, data in done.items():
            assert found[name] == data, (copy, name)


def test_a_command_that_is_killed_while_it_embeds_loses_no_embedding(made, index, to, monkeypatch):
    upgraded = to("map")
    call, counts = QuickEmbedder.__call__, []

    def killed(self, encoded):
        if len(counts) == 2:
            raise KeyboardInterrupt
        counts.append(len(encoded))
        return call(self, encoded)

    monkeypatch.setattr(QuickEmbedder, "__call__", killed)
    words = [f"--index={upgraded}", "--batch_size=8"]
    assert upgrade(*words, "--stage=1/2") == 130
    assert set(spaces(upgraded)) == {"mapped"}
    monkeypatch.setattr(QuickEmbedder, "__call__", call)
    assert VisualSearch(upgraded).search(QUERY, 1).results[0].path == "b/3.png"
    # Another stage takes the embeddings over.
    assert upgrade(*words, "--stage=2/2") == 0
    assert spaces(upgraded).count("new") == 32 + 16


def test_a_second_command_is_refused(made, index, capsys):
    with locked_folder(index):
        done = []

        def run():
            words = [f"--index={index}", f"--saved_model={made / 'new'}"]
            done.append(upgrade(*words, "--to=map"))

        other = threading.Thread(target=run)
        other.start()
        other.join()
    assert done == [2] and "index" in (said := capsys.readouterr().err)
    assert "is in use by another running process" in said


def test_an_index_that_a_command_upgrades_does_not_replace_another(index, to, capsys):
    upgraded = to("map")
    with locked_folder(upgraded):
        assert upgrade(f"--index={index}", "--replace") == 2
    assert f"'{upgraded}' is in use by another running process" in capsys.readouterr().err
    assert FolderGallery(index).map is None and FolderGallery(upgraded).map is not None


def test_an_upgraded_index_that_a_kill_left_aside_is_not_written_again(made, index, to, capsys):
    upgraded = to("map")
    upgraded.rename(index.with_name(".index-upgraded.old"))  # between the two renames of a stage
    assert upgrade(f"--index={index}", f"--saved_model={made / 'new'}", "--to=map") == 2
    assert f"{upgraded} exists" in capsys.readouterr().err
    assert set(spaces(upgraded)) == {"mapped"}
    assert upgrade(f"--index={index}", "--replace") == 0
    assert set(spaces(index)) == {"mapped"}


def test_an_upgraded_index_replaces_a_damaged_one(index, to):
    to("map")
    (index / "index" / "embeddings.npy").write_bytes(b"")
    assert upgrade(f"--index={index}", "--replace") == 0
    assert set(spaces(index)) == {"mapped"}


def test_what_a_killed_replacement_left_is_removed(index, to, capsys):
    to("map", "--replace")
    left = index.with_name(".index.old")
    left.mkdir()
    assert upgrade(f"--index={index}", "--replace") == 2
    assert not left.exists() and set(spaces(index)) == {"mapped"}


# Mistakes.


@pytest.mark.parametrize("words", [["--to=again"], ["--to=map"], ["--stage=1/2"]])
def test_the_folder_of_other_images_is_refused(made, index, tmp_path, capsys, words):
    others = write_photos(tmp_path / "others", [f"{number}.png" for number in range(70)])
    words = [f"--saved_model={made / 'new'}", *words]
    if "--stage=1/2" in words:
        assert upgrade(f"--index={index}", words[0], "--to=map", "--replace") == 0
    before = files_of(index)
    assert upgrade(f"--index={index}", f"--images={others}", *words) == 2
    assert "images must be the folder of the index's images" in capsys.readouterr().err
    assert files_of(index) == before


def test_an_address_in_an_index_is_not_opened(made, index, capsys):
    """It can be the index of a stranger, and opening an address sends credentials."""
    write_settings(index, read_settings(index) | {"images": "s3://stranger/photos"})
    assert upgrade(f"--index={index}", f"--saved_model={made / 'new'}") == 2
    assert "--images=s3://stranger/photos" in capsys.readouterr().err


def test_an_unknown_kind_of_a_map_is_refused(made, to, capsys):
    upgraded = to("map")
    settings = read_settings(upgraded)
    write_settings(upgraded, settings | {"map": settings["map"] | {"kind": "\x1b[31m"}})
    assert search(f"--index={upgraded}", f"--query={made / 'photos' / 'a' / '0.png'}") == 2
    assert "its kind is \\u001b[31m" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--index=lancedb:photos", "--saved_model={new}"], "--to=lancedb:photos"),
        (["--index={index}"], "--saved_model"),
        (["--index={index}", "--stage=0/4"], "stage must be K/N"),
        (["--index={index}", "--stage=5/4"], "stage must be K/N"),
        (["--index={index}", "--stage=half"], "stage must be K/N"),
        (["--index={index}", "--stage=1/4"], "index must have mapped rows"),
        (["--index={index}", "--stage=1/4", "--to=map"], "stage"),
        (["--index={index}", "--replace"], "replace must come after --to"),
        (["--index={index}", "--saved_model={new}", "--replace"], "to must be set"),
        (["--index={index}", "--saved_model={old}"], "must differ from the model"),
        (["--index={photos}", "--saved_model={new}"], "is not an index"),
        (["--index={index}", "--saved_model={photos}"], "SavedModel"),
        (["--index={index}", "--saved_model={new}", "--sample=50"], "--to=again"),
    ],
)
def test_mistakes_name_the_flag(made, index, capsys, words, said):
    places = {"index": index, **{name: made / name for name in ("new", "old", "photos")}}
    assert upgrade(*(word.format(**places) for word in words)) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert said in line


@pytest.mark.slow
def test_an_index_of_distances_and_an_existing_upgrade_are_refused(made, index, to, capsys):
    to("map")
    words = [f"--saved_model={made / 'new'}", "--to=queries"]
    assert upgrade(f"--index={index}", *words) == 2
    assert "--replace" in capsys.readouterr().err
    given = [f"--saved_model={made / 'old'}", f"--images={made / 'photos'}", "--metric=l2"]
    distances = index.with_name("distances")
    assert index_command(*given, f"--output_dir={distances}") == 0
    assert upgrade(f"--index={distances}", *words) == 2
    assert "cosine" in capsys.readouterr().err
    assert upgrade(f"--index={distances}", f"--saved_model={made / 'new'}", "--to=again") == 0
    assert FolderGallery(index.with_name("distances-upgraded")).index.metric == "l2"


@pytest.mark.parametrize("damage", ["mapped.npy", "missing", "longer", "crafted"])
def test_a_damaged_map_of_rows_is_refused(made, index, to, capsys, damage):
    path = to("map") / "mapped.npy"
    if damage == "missing":
        path.unlink()
    elif damage == "longer":
        np.save(path, np.ones(100, bool))
    elif damage == "crafted":
        path.write_bytes(path.read_bytes().replace(b"False", b"(alse"))
        Manifest(path.parent).record([path.name])
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
    assert search(f"--index={path.parent}", f"--query={made / 'photos' / 'a' / '0.png'}") == 2
    said = capsys.readouterr().err
    assert "The map of the index" in said and ("mapped.npy" in said or damage == "crafted")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["map", "queries"])
def test_the_message_about_a_damaged_index_says_how_to_make_it_again(made, index, to, capsys, way):
    upgraded, query = to(way), made / "photos" / "b" / "3.png"
    path = upgraded / "index" / "embeddings.npy"
    path.write_bytes(path.read_bytes()[:-1])
    assert search(f"--index={upgraded}", f"--query={query}") == 2
    said = capsys.readouterr().err
    model = made / ("new" if way == "map" else "old")
    if way == "map":
        assert f"Delete {upgraded}, and embed its images again: keras-dml index" in said
        assert f"--saved_model={model} --images={made / 'photos'} --output_dir={upgraded}" in said
        shutil.rmtree(upgraded)
    given = [f"--saved_model={model}", f"--images={made / 'photos'}", f"--output_dir={upgraded}"]
    assert index_command(*given) == 0
    assert search(f"--index={upgraded}", f"--query={query}") == 0


@tiers.parametrize("way", ["map", "again", "queries"], sooner=["again"], later=pytest.mark.slow)
def test_deleted_columns_and_embeddings_are_not_missed(index, to, way):
    """The messages about both damaged files say that they can be deleted."""
    (index / "columns.json").unlink()
    (index / "embeddings.npz").unlink()
    assert FolderGallery(to(way)).columns.names == ["class", "folder"]


def test_a_folder_that_is_no_index_does_not_replace_one(index, to, capsys):
    upgraded = to("map")
    (upgraded / "settings.json").unlink()
    assert upgrade(f"--index={index}", "--replace") == 2
    assert "has no settings.json, so it is not an index" in capsys.readouterr().err


@pytest.mark.slow
def test_an_audit_of_a_mapped_index_names_the_map(index, to, capsys):
    upgraded = to("map")
    capsys.readouterr()
    assert command_of("audit")(f"--index={upgraded}") == 0
    assert "map: affine map of 72 of 72 images" in capsys.readouterr().out
    assert (
        "affine map"
        in upgraded.with_name("index-upgraded-audit").joinpath("audit.html").read_text()
    )
