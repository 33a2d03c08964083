"""`experiments.index`: command lines, results, and errors."""

import json
import os
import shutil
import sys

import numpy as np
import pytest
import tensorflow as tf
from photo_search import index_command, picture, png, save_color_model, write_photos
from PIL import Image
from tiny_run import command_of, small_encoder

from experiments.evaluation import saved_model as image_embedder
from experiments.searching.images import ImageFolder
from keras_dml import retrieval
from keras_dml._files.checksums import write_checksums
from keras_dml.retrieval import load_index

NAMES = ["0.png", "a/1.png", "a/b/2.jpg", "c/3.GIF", "c/4.bmp", "c/5.webp"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_color_model(tmp_path_factory.mktemp("run") / "saved_model")


@pytest.fixture
def photos(tmp_path):
    return write_photos(tmp_path / "photos", NAMES)


@pytest.fixture
def output(tmp_path):
    """The folder of the index. The index itself is in a folder of this folder."""
    return tmp_path / "index"


@pytest.fixture
def command(output, photos, model):
    def run(*more):
        given = [f"--saved_model={model}", f"--images={photos}", f"--output_dir={output}"]
        return index_command(*given, "--batch_size=2", *more)

    return run


@pytest.fixture
def refused(command, capsys):
    """A function that runs the command, and checks that its error contains a message."""

    def refused(message, *more):
        assert command(*more) == 2
        assert message in capsys.readouterr().err

    return refused


def skipped(output):
    """Return the reasons of the skipped files, by name."""
    text = (output / "skipped.txt").read_bytes().decode("utf-8")
    assert all(map(str.isprintable, text.replace("\t", "").splitlines()))
    lines = [line.split("\t") for line in text.splitlines()]
    return {json.loads(name) if name.startswith('"') else name: reason for name, reason in lines}


@pytest.fixture
def embedded(monkeypatch):
    """Number of images in each call of the model."""
    counts = []
    call = image_embedder.ImageEmbedder.__call__

    def counting(self, encoded):
        counts.append(len(encoded))
        return call(self, encoded)

    monkeypatch.setattr(image_embedder.ImageEmbedder, "__call__", counting)
    return counts


def write_bad(photos):
    """Write unreadable and hidden files. Return the names of the unreadable files."""
    (photos / "a" / "text.jpg").write_text("no image")
    (photos / "a" / "cut.png").write_bytes(png(9)[:60])
    (photos / "empty.jpg").touch()
    frames = [picture(7), picture(8)]
    frames[0].save(photos / "c" / "moves.webp", save_all=True, append_images=frames[1:])
    (photos / "gone.jpg").symlink_to(photos / "nothing.jpg")
    Image.new("1", (8000, 8000)).save(photos / "huge.png")  # 8 KB
    (photos / ".hidden.jpg").write_text("no image")
    (photos / "notes.txt").write_text("no image")
    return ["a/cut.png", "a/text.jpg", "c/moves.webp", "empty.jpg", "gone.jpg", "huge.png"]


@pytest.mark.slow
def test_each_image_in_the_folder_is_its_own_nearest_neighbor(
    output, photos, model, command, capsys
):
    bad = write_bad(photos)
    assert command() == 0
    out = capsys.readouterr().out
    assert "6 images, " in out and "s: added 6, changed 0, removed 0\n" in out
    assert f"skipped 6 files that cannot be embedded: {output}" in out
    reasons = skipped(output)
    assert list(reasons) == bad
    assert reasons["a/text.jpg"] == "not a JPEG, PNG, WebP, BMP or GIF image"
    assert "animated WebP" in reasons["c/moves.webp"]
    assert reasons["empty.jpg"] == "the file is empty"
    assert reasons["gone.jpg"] == "No such file or directory"
    assert reasons["huge.png"] == "an image of more than 50 million pixels"

    serve = tf.saved_model.load(str(model)).signatures["serving_default"]
    data = [(photos / name).read_bytes() for name in NAMES]
    expected = serve(tf.constant(data))["embeddings"].numpy()
    saved = np.load(output / "embeddings.npz")
    assert saved["paths"].tolist() == NAMES
    np.testing.assert_array_equal(saved["embeddings"], expected)
    ids, scores = load_index(output / "index").search(expected, 1)
    assert ids[:, 0].tolist() == NAMES
    np.testing.assert_allclose(scores, 1, atol=1e-6)


@pytest.mark.slow
def test_a_killed_command_resumes(output, photos, command, embedded, monkeypatch, capsys):
    bad = write_bad(photos)
    counting = image_embedder.ImageEmbedder.__call__

    def killed(self, encoded):
        if sum(embedded) >= 4:
            raise KeyboardInterrupt
        return counting(self, encoded)

    monkeypatch.setattr(image_embedder.ImageEmbedder, "__call__", killed)
    assert command() == 130
    assert not (output / "index").exists()
    monkeypatch.setattr(image_embedder.ImageEmbedder, "__call__", counting)
    write_photos(photos, ["a/1.png", "z.png"])  # one new image, one changed image
    damaged = min((output / ".unfinished").glob("*.npz"))
    lost = len(np.load(damaged)["paths"])
    damaged.write_bytes(damaged.read_bytes()[:-40])
    embedded.clear()
    assert command() == 0
    # Three images were left, two are new or changed, and one bad file is tried again. The changed
    # image is in the damaged file.
    assert sum(embedded) == 3 + 2 + 1 + lost - 1
    assert list(skipped(output)) == bad
    assert load_index(output / "index").num_items == 7
    assert sorted(path.name for path in output.glob(".*")) == [".lock"]
    assert ": added 7, changed 0, removed 0\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_repeated_command_embeds_only_new_images(output, photos, command, embedded, capsys):
    assert command() == 0
    folder = output / "index"
    before = load_index(folder)
    unchanged = (folder / "index.json").stat().st_mtime_ns
    embedded.clear()
    assert command() == 0 and (folder / "index.json").stat().st_mtime_ns == unchanged
    assert embedded == []

    (photos / "c" / "4.bmp").unlink()
    picture(40, (30, 30)).save(photos / "a" / "1.png")
    picture(41).save(photos / "a" / "new.png")
    capsys.readouterr()
    assert command() == 0
    assert "s: added 1, changed 1, removed 1\n" in capsys.readouterr().out and sum(embedded) == 2
    after = load_index(folder)
    assert after.ids.tolist() == sorted({*NAMES, "a/new.png"} - {"c/4.bmp"})
    rows = np.load(output / "embeddings.npz")["embeddings"]
    assert before.search(rows[:1], 1)[0] == "0.png" == after.search(rows[:1], 1)[0]
    assert before.search(rows[1:2], 1)[1] < 0.99 < after.search(rows[1:2], 1)[1]

    embedded.clear()
    assert command("--metric=l2") == 0
    assert embedded == [] and load_index(folder).metric == "l2"


def test_a_damaged_index_is_rebuilt_and_a_moved_model_embeds_nothing(
    tmp_path, output, model, command, embedded
):
    folder = output / "index"
    assert command() == 0
    embedded.clear()
    for damage in (
        lambda: shutil.rmtree(folder),
        lambda: (folder / "index.json").unlink(),
        lambda: (folder / "embeddings.npy").write_bytes(b"no array"),
    ):
        damage()
        assert command() == 0 and embedded == []
        assert load_index(folder).ids.tolist() == NAMES
    moved = shutil.copytree(model, tmp_path / "moved")
    assert command(f"--saved_model={moved}") == 0 and embedded == []
    settings = json.loads((output / "settings.json").read_text())
    assert settings["saved_model"] == str(moved)


@pytest.mark.slow
def test_a_tree_index(output, photos, command, monkeypatch, capsys):
    pytest.importorskip("scann")
    write_photos(photos, [f"more/{number:02d}.png" for number in range(20)])
    tree = retrieval.TreeAH(num_leaves=2, leaves_to_search=2, reorder=30)
    monkeypatch.setattr("experiments.searching.index_building.TreeAH", lambda target_recall: tree)
    with monkeypatch.context() as without_scann:
        without_scann.setitem(sys.modules, "scann", None)
        retrieval.scann_loads.cache_clear()
        assert command("--target_recall=0.8") == 0
    retrieval.scann_loads.cache_clear()
    assert "exact search" in capsys.readouterr().out
    assert command("--target_recall=0.9") == 0
    assert "a search looks into 2 of 2 leaves and finds" in capsys.readouterr().out
    settings = json.loads((output / "settings.json").read_text())
    assert settings["built"]["tree"]["num_leaves"] == 2
    assert load_index(output / "index").tree.num_leaves == 2


@pytest.mark.slow
def test_search_short_and_rescore_long(output, command, embedded, capsys):
    assert command("--prefix=2") == 0
    out = capsys.readouterr().out
    assert "a search compares 2 of 48 numbers, then all of them with the 200 nearest" in out
    assert load_index(output / "index").length == 2
    before = sum(embedded)
    assert command("--prefix=3") == 0  # a new index over the same embeddings
    assert load_index(output / "index").length == 3 and sum(embedded) == before


def test_unsupported_files_in_an_object_store_are_counted(tmp_path, caplog):
    pytest.importorskip("pyarrow.fs")
    for name in ("a/1.png", "a/2.CR2", "3.heic", "4.heic", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    uri = tmp_path.as_uri()
    assert [file.path for file in ImageFolder(uri).files()] == ["a/1.png"]
    [line] = caplog.messages
    assert line.startswith(f"{uri}: 3 files are not read: 2 .heic, 1 .cr2; convert them to JPEG")


def test_a_prefix_that_is_too_long_and_images_that_cannot_be_embedded(photos, refused):
    refused("prefix must be less than the 48 dimensions of the model's embeddings", "--prefix=9999")
    for path in photos.rglob("*.*"):
        path.write_text("no image")
    refused("none of the 6 images can be embedded. The first, 0.png: not a JPEG")


def test_a_damaged_index_or_an_index_of_other_images_is_not_changed(
    tmp_path, output, photos, command, refused
):
    assert command() == 0
    other = write_photos(tmp_path / "other", ["a.png"])
    refused(f"images must be {photos}, because the index", f"--images={other}")
    retrained = save_color_model(tmp_path / "retrained")
    with open(retrained / "variables" / "variables.data-00000-of-00001", "ab") as file:
        file.write(b"other weights")
    refused("an index of another model", f"--saved_model={retrained}")
    (output / "embeddings.npz").write_bytes(b"no archive")
    refused("embeddings.npz is damaged")
    settings = output / "settings.json"
    settings.write_text(settings.read_text().replace("exact search", "exact seach"))
    refused(f"{settings} is damaged")


@pytest.mark.slow
def test_an_image_folder_that_disappears_stops_the_command(
    output, photos, command, monkeypatch, capsys
):
    assert command() == 0
    call = image_embedder.ImageEmbedder.__call__
    names = [*NAMES, *(f"new/{number}.png" for number in range(9))]
    write_photos(photos, names)

    def losing(self, encoded):
        shutil.rmtree(photos)
        photos.mkdir()  # like the mount point of a lost drive
        return call(self, encoded)

    with monkeypatch.context() as patch:
        patch.setattr(image_embedder.ImageEmbedder, "__call__", losing)
        assert command() == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"stopped: the folder of the images is gone: {photos}.")
    assert load_index(output / "index").ids.tolist() == NAMES
    write_photos(photos, names)
    assert command() == 0
    assert load_index(output / "index").num_items == len(NAMES) + 9
    assert not (output / "skipped.txt").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="file names are text elsewhere")
def test_names_that_are_not_utf_8_are_counted_and_listed(output, photos, command, caplog):
    for number in range(20):
        copy = os.fsencode(photos) + b"/%d\xff.png" % number
        shutil.copy(next(photos.rglob("*.png")), copy)
    assert command() == 0
    [said] = [record.getMessage() for record in caplog.records if "UTF-8" in record.getMessage()]
    assert "20 files" in said and said.count(".png") == 3
    assert len(skipped(output)) == 20


def test_names_of_skipped_files_are_escaped_and_can_be_read_back(output, photos, command):
    names = ["\x1b]0;title\x07.png", "line\nbreak\ttab.jpg", '"quoted".png', "ä b.png"]
    for name in names:
        (photos / name).write_text("no image")
    assert command() == 0
    assert sorted(skipped(output)) == sorted(names)
    assert "ä b.png" in (output / "skipped.txt").read_text("utf-8")


def test_a_damaged_model_and_a_model_with_another_signature(tmp_path, model, refused):
    damaged = shutil.copytree(model, tmp_path / "damaged")
    write_checksums(damaged)
    (damaged / "saved_model.pb").write_bytes(b"damaged")
    outputs = [f"--output_dir={tmp_path / name}" for name in ("one", "two")]
    refused("saved_model.pb has changed since", f"--saved_model={damaged}", outputs[0])
    module, other = tf.Module(), tmp_path / "other"
    module.serve = tf.function(lambda x: x, input_signature=[tf.TensorSpec([None], tf.float32)])
    tf.saved_model.save(module, str(other), {"serving_default": module.serve})
    refused("saved_model must have a signature serving_default", f"--saved_model={other}")
    (other / "saved_model.pb").write_bytes(b"damaged")
    refused("saved_model cannot be loaded", f"--saved_model={other}", outputs[1])


def test_images_are_sorted_and_linked_folders_are_followed(tmp_path, photos):
    (photos / "c" / "up").symlink_to(photos)  # a cycle
    (photos / "linked").symlink_to(write_photos(tmp_path / "elsewhere", ["x.png"]))
    files = ImageFolder(photos).files()
    assert [file.path for file in files] == [*NAMES, "linked/x.png"]
    assert files[0].size == len((photos / "0.png").read_bytes())


@pytest.mark.parametrize(
    "name", ["../x.png", "a/../../x.png", "/etc/x.png", "a.txt", "", "a\0.png"]
)
def test_paths_outside_the_folder_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="must have a path inside the folder"):
        ImageFolder(tmp_path).path(name)
    assert ImageFolder(tmp_path).path("a/b.png") == tmp_path / "a" / "b.png"


@pytest.mark.slow
def test_a_backbone_needs_no_training(tmp_path, output, photos, embedded, capsys):
    small_encoder().save(tmp_path / "backbone.keras")
    given = [f"--images={photos}", f"--output_dir={output}"]
    given += [f"--backbone={tmp_path / 'backbone.keras'}", "--image_size=16"]
    assert index_command(*given) == 0
    assert sum(embedded) == len(NAMES)
    written = (output / "model" / "saved_model.pb").stat().st_mtime_ns
    assert index_command(*given) == 0
    assert sum(embedded) == len(NAMES)
    assert (output / "model" / "saved_model.pb").stat().st_mtime_ns == written
    capsys.readouterr()
    assert index_command(*given, "--pooling=max") == 2
    assert "pooling must be average for the index in" in capsys.readouterr().err
    # The folder of the index can be moved.
    shutil.move(output, tmp_path / "moved")
    words = [f"--index={tmp_path / 'moved'}", f"--query={photos / NAMES[0]}", "--k=1"]
    assert command_of("search")(*words) == 0
    assert "1.0000  0.png" in capsys.readouterr().out
