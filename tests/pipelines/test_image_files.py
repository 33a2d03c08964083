"""Only regular files up to a size are opened as images."""

import os
import re

import numpy as np
import pytest
import tensorflow as tf
from image_files import encode, smooth
from tiny_run import command_of, run_options

from experiments.options import UsageError, data
from experiments.pages.pictures import thumbnail
from experiments.searching.images import ImageFolder
from pipelines import (
    BatchSource,
    EvaluationTransform,
    ImageTable,
    RandomSampler,
    evaluation_batches,
    find_bad_images,
)
from pipelines.image_files import check_image, read_image

TRANSFORM = EvaluationTransform(8)


@pytest.fixture
def special(tmp_path):
    """Return paths that are not images, by the reason."""
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "link.png").symlink_to("/dev/zero")
    with open(tmp_path / "large.png", "wb") as file:
        file.write(b"\xff\xd8\xff")
        file.truncate(256 * 2**20 + 1)
    return {
        tmp_path / "pipe.png": "not a regular file",
        tmp_path / "link.png": "not a regular file",
        tmp_path / "large.png": "a file of more than 256 MB",
        tmp_path / "folder.png": "Is a directory",
    }


@pytest.mark.slow
def test_every_reader_refuses_other_files(special, tmp_path):
    names, reasons = list(map(str, special)), list(special.values())
    table = ImageTable.from_paths(names, names)
    for decode in (False, True):
        assert [reason for *_, reason in find_bad_images(table, decode=decode)] == reasons
    for row, (path, reason) in enumerate(special.items()):
        one = table.select([row])
        with pytest.raises(tf.errors.OpError, match=reason):
            list(evaluation_batches(one, TRANSFORM))
        with pytest.raises(ValueError, match=f"{path}: {reason}"):
            BatchSource(one, RandomSampler(1, 1), TRANSFORM)[0]
        for read in (thumbnail, check_image):
            with pytest.raises(OSError, match=reason):
                read(path)
        assert ImageFolder(tmp_path).read_checked(path.name, 1000) == reason


def test_more_pixels_raise_the_size_of_a_file(special, tmp_path):
    large = tmp_path / "large.png"
    check_image(large, 60_000_000)
    assert read_image(large, 60_000_000, first=3) == b"\xff\xd8\xff"
    assert find_bad_images(ImageTable.from_paths([large], [0]), None, False, 60_000_000) == []


def write_pictures(folder):
    """Write eight pictures, and return their paths."""
    paths = [folder / f"{number}.png" for number in range(8)]
    for number, path in enumerate(paths):
        path.write_bytes(encode(smooth(9, 9, seed=number), "PNG"))
    return paths


def test_a_table_with_other_files(special, tmp_path, capsys):
    table, paths = tmp_path / "table.csv", [*write_pictures(tmp_path), *special]
    lines = [f"{path.name},{row // 2 % 4}" for row, path in enumerate(paths)]
    table.write_text("\n".join(["path,label", *lines]))
    words = ["--dataset=table", f"--data_dir={table}"]
    with pytest.raises(UsageError, match="pipe.png .not a regular file. .3 more like it"):
        data.data(run_options(*words))
    split, left_out = data.data(run_options(*words, "--skip_bad_images"))
    assert len(split.train) + len(split.test) == 8
    assert {line.partition("\t")[0] for line in left_out} == set(map(str, special))
    assert "a file of more than 256 MB" in capsys.readouterr().out


@pytest.mark.slow
def test_a_file_of_embeddings_with_other_files(special, tmp_path, capsys):
    paths = [*map(str, write_pictures(tmp_path)), *map(str, special)]
    rows = np.random.default_rng(0).normal(size=(len(paths), 4)).astype("float32")
    file = tmp_path / "rows.npz"
    np.savez(file, embeddings=rows, labels=np.arange(len(paths)) // 2, paths=paths)
    found = {}
    for name, *words in (["evaluate", "--noclustering"], ["audit"]):
        output = tmp_path / name
        assert command_of(name)(f"--embeddings={file}", f"--output_dir={output}", *words) == 0
        found[name] = capsys.readouterr().out
    assert "not a regular file" in found["evaluate"]
    page = (tmp_path / "audit" / "audit.html").read_text()
    assert re.search("Without a picture</dt><dd>4, the first .*: not a regular file", page)
