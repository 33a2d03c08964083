"""The search command, from the command line's side, and the pictures of its page."""

import io
import json
import os
import re
import shutil
import sys

import numpy as np
import pytest
from photo_search import make_index, picture, png
from PIL import Image

import experiments.photos
from experiments import search
from experiments.embedding.checked_json import checked_text, read_checked
from experiments.options.command_line import run_command
from experiments.photos.visual_search import VisualSearch
from experiments.report.pictures import checked_picture, thumbnail


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return make_index(tmp_path_factory.mktemp("search"))


def command(*arguments):
    return run_command(search.main, ["search", *map(str, arguments)])


def test_neighbours_in_print_and_on_a_page(index, tmp_path, capsys):
    page = tmp_path / "found.html"
    queries = [tmp_path / "one.png", tmp_path / "<b>two.png"]
    picture(1).save(queries[0])
    picture(3, (400, 200)).save(queries[1])
    given = [f"--query={query}" for query in queries]
    assert command(f"--index={index}", *given, "--k=3", f"--output={page}") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "rank  cosine similarity" and lines[1] == str(queries[0])
    assert re.fullmatch(r" +1  1\.0000  a/1\.png", lines[2])
    assert re.fullmatch(r"      (a|b|b/c), \d of 3(; .*)?", lines[5])
    assert lines[6] == str(queries[1]) and lines[7].endswith("  b/3.gif")
    assert lines[-1] == f"pictures: {page}"
    scores = [float(line.split()[1]) for line in lines[2:5]]
    assert scores == sorted(scores, reverse=True)
    text = page.read_text()
    assert text.count("<img src=") == text.count('src="data:image/') == 2 * (1 + 3)
    assert "&lt;b&gt;two.png" in text and "<b>two" not in text
    assert "http" not in text.replace("http-equiv", "")


def test_no_page_unless_it_is_asked_for(index, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    picture(1).save("one.png")
    assert command(f"--index={index}", "--query=one.png", "--k=1") == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "   1  1.0000  a/1.png",
        "      a, 1 of 1",
        "pictures: give --output=FILE.html",
    ]
    assert os.listdir() == ["one.png"]


def test_a_picture_that_is_gone_has_its_name_on_the_page(index, tmp_path, capsys):
    moved = shutil.copytree(index.parent / "photos", tmp_path / "moved")
    (moved / "a" / "1.png").unlink()
    page = tmp_path / "found.html"
    given = [f"--index={index}", f"--query={moved / 'a' / '0.png'}", f"--output={page}"]
    assert command(*given, f"--images={moved}") == 0
    text = page.read_text()
    assert text.count("<img") == 5 and text.count("no picture") == 1 and "a/1.png" in text


@pytest.mark.skipif(sys.platform != "linux", reason="file names are text elsewhere")
def test_a_name_that_is_no_utf_8_is_shown_with_question_marks(index, tmp_path, capsys):
    query = tmp_path / os.fsdecode(b"caf\xe9.png")
    picture(1).save(query)
    page = tmp_path / "found.html"
    assert command(f"--index={index}", f"--query={query}", f"--output={page}") == 0
    assert "caf?.png" in capsys.readouterr().out and "caf?.png" in page.read_text()


def test_bad_input(index, tmp_path, capsys):
    text = tmp_path / "text.jpg"
    text.write_text("no image")
    huge = tmp_path / "huge.png"
    Image.new("1", (8000, 8000)).save(huge)
    damaged = shutil.copytree(index, tmp_path / "damaged")
    (damaged / "index" / "embeddings.npy").write_bytes(b"no array")
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    settings = read_checked(index / "settings.json")
    (unfinished / "settings.json").write_text(checked_text(settings | {"built": None}))
    other = shutil.copytree(index.parent / "model", tmp_path / "model")
    (other / "variables" / "more").touch()
    image = f"--query={index.parent / 'photos' / '4.webp'}"
    for arguments, message in [
        ([image], "give --index=FOLDER"),
        ([f"--index={index}"], "give either --query=IMAGE (once or more) or --serve"),
        ([f"--index={index}", image, "--serve"], "give either --query"),
        ([f"--index={tmp_path}", image], f"there is no index in {tmp_path}"),
        ([f"--index={unfinished}", image], "is not finished: give its python -m experiments.index"),
        ([f"--index={index}", f"--query={text}"], f"query {text} is no image that can be searched"),
        ([f"--index={index}", f"--query={huge}"], "an image of more than 50 million pixels"),
        ([f"--index={damaged}", image], "Its python -m experiments.index builds it again"),
        ([f"--index={index}", image, "--port=80"], "leave out --port, which is for --serve"),
        ([f"--index={index}", "--serve", "--k=5"], "leave out --k, which is for --query"),
        ([f"--index={index}", "--query=/no/x.jpg"], "query /no/x.jpg cannot be read (No such file"),
        ([f"--index={index}", image, "--k=6"], "k must be at most the number of images, 5"),
        ([f"--index={index}", image, "--k=0"], "flag --k=0"),
        ([f"--index={index}", image, f"--saved_model={other}"], "saved_model is not the one that"),
        ([f"--index={index}", image, "--images=/no"], "the folder of the index's images is gone"),
        ([f"--index={index}", image, "--output=/no/x.html"], "output must be the name of a file"),
        ([f"--index={index}", image, f"--output={tmp_path}"], "output must be the name of a file"),
        ([f"--index={index}", image, "word"], "flags start with --. Received: word"),
    ]:
        assert command(*arguments) == 2, arguments
        err = capsys.readouterr().err
        assert message in err and len(err.splitlines()) == 1
    settings["built"] = "damaged"
    (unfinished / "settings.json").write_text(json.dumps(settings)[:40])
    assert command(f"--index={unfinished}", image) == 2
    assert "settings.json is damaged" in capsys.readouterr().err


def test_without_the_web_library(index, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "waitress", None)
    # Another test may have imported it.
    monkeypatch.delitem(sys.modules, "experiments.photos.serve", raising=False)
    monkeypatch.delattr(experiments.photos, "serve", raising=False)
    assert command(f"--index={index}", "--serve") == 2
    assert "--serve needs waitress, which is not installed: pip install 'keras-dml[serve]'" in (
        capsys.readouterr().err
    )


def test_an_item_does_not_find_itself(index):
    found = VisualSearch(index).search_item(2, 10).results
    assert sorted(one.item for one in found) == [0, 1, 3, 4]
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_the_help(capsys):
    assert command("--help") == 0
    assert "--host=127.0.0.1" in capsys.readouterr().out


def opened(source):
    data, kind = thumbnail(source)
    image = Image.open(io.BytesIO(data))
    assert image.format == kind.upper() and image.mode == "RGB"
    return image


def test_a_small_picture_keeps_its_pixels_and_a_large_one_becomes_small(tmp_path):
    picture(0, (40, 30)).save(tmp_path / "small.png")
    np.testing.assert_array_equal(opened(tmp_path / "small.png"), picture(0, (40, 30)))
    picture(0, (1000, 500)).save(tmp_path / "large.jpg", quality=95)
    large = opened(tmp_path / "large.jpg")
    assert large.size == (320, 160)
    expected = np.asarray(picture(0, (320, 160)), float)
    assert np.abs(np.asarray(large) - expected).mean() < 6


def test_transparency_lies_on_white_and_16_bits_keep_their_high_byte():
    file = io.BytesIO()
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(file, "PNG")
    assert (np.asarray(opened(file)) == 255).all()
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), 100 * 256 + 9, np.uint16)).save(file, "PNG")
    assert (np.asarray(opened(file)) == 100).all()


def test_what_is_no_picture():
    assert checked_picture(png(0)) == png(0)
    with pytest.raises(ValueError, match="not a JPEG"):
        checked_picture(b"<svg></svg>")
    with pytest.raises(ValueError, match="a damaged image"):
        thumbnail(io.BytesIO(png(0, (200, 200))[:120]))
    with pytest.raises(ValueError, match="an image of more than 399 pixels"):
        checked_picture(png(0), max_pixels=399)
    assert checked_picture(png(0), max_pixels=400) == png(0)
    bomb = io.BytesIO()
    Image.new("1", (14_000, 14_000)).save(bomb, "PNG")  # 24 KB
    with pytest.raises(ValueError, match="an image of more than"):
        checked_picture(bomb.getvalue())


def test_a_moving_gif_that_is_cut_anywhere_is_damaged_or_its_first_frame():
    """Pillow raises IndexError, struct.error and more of it."""
    moving = io.BytesIO()
    frames = [picture(seed).quantize(16) for seed in range(3)]
    frames[0].save(moving, "GIF", save_all=True, append_images=frames[1:])
    whole, refused = moving.getvalue(), 0
    for length in range(len(whole)):
        try:
            checked_picture(whole[:length])
        except ValueError:
            refused += 1
    assert 0 < refused < len(whole)


def test_of_an_animated_gif_only_the_first_frame_is_decoded():
    still, moving = io.BytesIO(), io.BytesIO()
    frames = [picture(seed).quantize(16) for seed in range(3)]
    frames[0].save(still, "GIF")
    assert checked_picture(still.getvalue()) == still.getvalue()
    frames[0].save(moving, "GIF", save_all=True, append_images=frames[1:])
    first = Image.open(io.BytesIO(checked_picture(moving.getvalue())))
    assert first.format == "PNG"
    np.testing.assert_array_equal(first, frames[0].convert("RGB"))
