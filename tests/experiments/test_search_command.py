"""`experiments.search`: results and conditions."""

import json
import os
import re
import shutil
import sys

import numpy as np
import pytest
import tensorflow as tf
from photo_search import index_command, picture, png, save_color_model, write_photos
from tiny_run import command_of

import experiments.searching
from experiments.evaluation.calibration import Calibration, calibration_path, write_calibration
from experiments.searching.answer import Answer, Conditions
from experiments.searching.visual_search import VisualSearch
from keras_dml.export.load import fingerprint

command = command_of("search")


def test_neighbors_are_printed(index, tmp_path, capsys):
    queries = [tmp_path / "one.png", tmp_path / "<b>two.png"]
    if sys.platform == "linux":  # file names are text elsewhere
        queries.append(tmp_path / os.fsdecode(b"caf\xe9.png"))
        picture(2).save(queries[2])
    picture(1).save(queries[0])
    picture(3, (400, 200)).save(queries[1])
    given = [f"--query={query}" for query in queries]
    assert command(f"--index={index}", *given, "--k=3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "rank  cosine similarity" and lines[1] == str(queries[0])
    assert re.fullmatch(r" +1  1\.0000  a/1\.png", lines[2])
    assert re.fullmatch(r"      (a|b|b/c), \d of 3(; .*)?", lines[5])
    assert lines[6] == str(queries[1]) and lines[7].endswith("  b/3.gif")
    scores = [float(line.split()[1]) for line in lines[2:5]]
    assert scores == sorted(scores, reverse=True)
    assert len(queries) == 2 or lines[11].endswith("caf?.png")


def test_more_results_than_images_are_noted(index, tmp_path, capsys):
    picture(1).save(tmp_path / "one.png")
    words = [f"--index={index}", f"--query={tmp_path / 'one.png'}", "--json"]
    assert command(*words, "--k=10") == 0
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)["answers"][0]["neighbours"]) == 5
    assert printed.err == "note: k is 5, the number of images, not 10\n"
    assert command(*words) == 0  # the default is no request
    assert capsys.readouterr().err == ""


def test_a_folder_of_queries(index, tmp_path, capsys):
    write_photos(tmp_path / "asked", ["b.png", "in/a.png"])
    (tmp_path / "asked" / "c.jpg").write_text("not an image")
    assert command(f"--index={index}", f"--query={tmp_path / 'asked'}", "--k=1", "--json") == 0
    found = json.loads(capsys.readouterr().out)["answers"]
    asked = [os.path.relpath(each["query"], tmp_path) for each in found]
    assert asked == ["asked/b.png", "asked/in/a.png"]
    assert [each["neighbours"][0]["path"] for each in found] == ["a/0.png", "a/1.png"]
    (tmp_path / "empty").mkdir()
    assert command(f"--index={index}", f"--query={tmp_path / 'empty'}") == 2
    assert "query must be an image, or a folder with .jpg" in capsys.readouterr().err


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """An index with a CSV, in which 6.png and 7.png are copies of a/1.png."""
    names = ["a/0.png", "a/1.png", "b/c/2.bmp", "b/3.gif", "4.webp", "b/5.png"]
    folder = tmp_path_factory.mktemp("known")
    write_photos(folder / "photos", names)
    for name in ("b/6.png", "7.png"):
        shutil.copy(folder / "photos" / "a" / "1.png", folder / "photos" / name)
    rows = "path;brand;class\na/0.png;Arla;milk\nb/3.gif;Arla;\n7.png;\u202eevil\x1b[31m;milk\n"
    (folder / "known.csv").write_text(rows + "gone.png;x;y\n")
    model = save_color_model(folder / "model")
    given = [f"--saved_model={model}", f"--images={folder / 'photos'}"]
    given += [f"--output_dir={folder / 'index'}", f"--columns={folder / 'known.csv'}"]
    assert index_command(*given) == 0
    return folder


@pytest.fixture(scope="module")
def visual(known):
    return VisualSearch(known / "index")


PHOTO = png(1)


def answer(visual, k, *where, query=PHOTO, **conditions):
    """Search for `query` among images that meet all conditions in `where`."""
    pairs = tuple(visual.columns.parsed(text, "=") for text in where)
    return visual.search(query, k, Conditions(pairs, **conditions))


def paths(found):
    return [result.path for result in found.results]


@pytest.mark.slow
def test_copies_are_grouped_and_k_groups_are_found(visual):
    first, *others = answer(visual, 4).results
    assert (first.path, first.alike) == ("7.png", ("a/1.png", "b/6.png"))
    assert len(others) == 3 and not any(one.alike for one in others)
    assert len(answer(visual, 8).results) == 6
    # A group counts once, so that copies do not decide the class.
    assert answer(visual, 1).classes == [("milk", 1, 1.0)]


def test_an_item_is_not_its_own_neighbor(visual):
    item = visual._item_of["a/1.png"]
    for where in ((), ((("folder", "a"),))):
        found = visual.search_item(item, 8, Conditions(where, group_similarity=0))
        assert found.allowed == len(found.results) == (7 if not where else 1)
        assert "a/1.png" not in paths(found)
    assert paths(visual.search_item(item, 1)) == ["7.png"]
    alone = visual.search_item(visual._item_of["4.webp"], 3, Conditions((("class", ""),)))
    assert alone == Answer((), 0, None)


def test_no_image_is_similar_enough(visual):
    nearest = answer(visual, 1, query=png(99)).nearest
    found = answer(visual, 3, query=png(99), min_similarity=nearest + 0.01)
    assert found == Answer((), 8, nearest)
    assert found.nothing == f"nothing similar enough: the nearest has {nearest:.4f}"
    assert len(answer(visual, 3, query=png(99), min_similarity=nearest).results) == 1
    # The similarity of an image to itself is 1.
    assert paths(answer(visual, 3, query=png(0), min_similarity=1.0)) == ["a/0.png"]


def test_min_similarity_is_refused_for_distances(visual, monkeypatch):
    monkeypatch.setattr(visual, "metric", "l2")
    with pytest.raises(ValueError, match="must be unset for an index of distances, but got 0.5"):
        answer(visual, 1, min_similarity=0.5)


@pytest.mark.slow
def test_conditions_on_the_command_line(known, capsys):
    """Control characters are escaped."""
    photo = known / "photos" / "a" / "1.png"
    given = [f"--index={known / 'index'}", f"--query={photo}", "--k=1"]
    assert command(*given, "--where=brand=Arla", "--min_similarity=0.99") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("      nothing similar enough: the nearest has ")
    evil = "\u202eevil\x1b[31m"
    assert command(*given, f"--where=brand={evil}", "--json") == 0
    out = capsys.readouterr().out
    assert out.isascii() and "\x1b" not in out
    (found,) = json.loads(out)["answers"]
    first = {"rank": 1, "item": 1, "path": "7.png", "class": "milk", "similarity": 1.0}
    assert found["neighbours"] == [first | {"alike": []}] and found["query"] == str(photo)
    assert command(*given, "--where=brand=\u202eevil\x1b[31") == 2
    err = capsys.readouterr().err
    assert r"no image has brand=\u202eevil\u001b[31. Did you mean \u202eevil\u001b[31m" in err
    assert command(*given) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == ["   1  1.0000  7.png  (and 2 alike)", "      milk, 1 of 1"]


def test_without_the_web_library(index, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "waitress", None)
    # Another test may have imported the module.
    monkeypatch.delitem(sys.modules, "experiments.searching.serve", raising=False)
    monkeypatch.delattr(experiments.searching, "serve", raising=False)
    assert command(f"--index={index}", "--serve") == 2
    assert "--serve needs waitress: pip install 'keras-dml[serve]'" in (capsys.readouterr().err)


@pytest.mark.slow
def test_matches_with_a_calibration(index, tmp_path, capsys):
    query = tmp_path / "one.png"
    picture(1).save(query)
    model = shutil.copytree(index.parent / "model", tmp_path / "model")
    calibration = Calibration("cosine", 0.999, 1e-3, fingerprint(model))
    write_calibration(calibration_path(model), calibration)
    given = [f"--index={index}", f"--saved_model={model}", f"--query={query}", "--k=2"]
    assert command(*given) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r" +1  1\.0000  match            a/1\.png", lines[2])
    assert re.fullmatch(r" +2  0\.\d+  below threshold  .*", lines[3])
    assert lines[4] == "      1 of 2 match: a, 2 of 2"
    assert lines[-1] == "match: similarity of at least 0.9990, false match rate 0.001"
    assert command(*given, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["threshold"] == 0.999
    assert [each["match"] for each in found["answers"][0]["neighbours"]] == [True, False]
    assert command(*given, "--where=class=b") == 0
    assert "      all below the threshold of a match: b, 1 of 1\n" in capsys.readouterr().out


def save_words(path, length=48):
    """Save a model of words that name the seed of a picture: their embedding is the picture's."""
    pixels = [np.asarray(picture(seed).resize((4, 4)), "float32") for seed in range(5)]
    table = np.reshape(pixels, (5, -1))[:, :length] - 127.5

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="words")])
    def serve(words):
        return {"embeddings": tf.gather(table, tf.strings.to_number(words, tf.int32))}

    module = tf.Module()
    module.serve = serve
    tf.saved_model.save(module, str(path), {"serving_default": serve})
    return path


def test_words_and_images_are_embedded_by_the_model_of_the_queries(index, tmp_path, capsys):
    given, model = [f"--index={index}", "--k=1"], save_words(tmp_path / "words")
    assert command(*given, "--query_text=3", "--query_text=0", f"--query_model={model}") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "3" and lines[2].endswith("  b/3.gif")
    assert len([line for line in lines if line.endswith("  a/0.png")]) == 1
    picture(1).save(tmp_path / "query.png")
    given.append(f"--query={tmp_path / 'query.png'}")
    assert command(*given, f"--query_model={index.parent / 'model'}") == 0
    assert "  a/1.png" in capsys.readouterr().out
    short = save_words(tmp_path / "short", 3)
    for wrong, message in ((model, "cannot be searched"), (short, "embeddings of length 48")):
        assert command(*given, f"--query_model={wrong}") == 2
        assert message in capsys.readouterr().err
