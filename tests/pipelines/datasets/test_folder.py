import os

import pytest

from pipelines.datasets.folder import folder
from pipelines.datasets.registry import load_dataset


def write(root, *names):
    """Create empty files in `root`. Loaders do not open them."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def contents(table, root):
    """Return (class, path relative to root) of each row."""
    return [
        (table.class_names[number], os.path.relpath(path, root).replace(os.sep, "/"))
        for number, path in zip(table.labels, table.paths)
    ]


def test_classes_are_paths_and_everything_is_sorted(tmp_path, caplog):
    images = ["a/1.gif", "a/2.JPG", "a/3.jpeg", "a/4.Png", "a b/1.BMP", "a/x/1.jpg"]
    images += ["b/10.png", "b/2.png", "c/d/e/1.webp"]
    others = ["a/notes.txt", "a/jpg", "a/8.png.zip", "b/._1.jpg", "b/.DS_Store"]
    others += ["b/.thumbnails/1.jpg", ".git/1.jpg", "__MACOSX/a/1.jpg"]
    write(tmp_path, *reversed(images), *others)
    expected = [(os.path.dirname(path), path) for path in images]
    assert contents(folder(tmp_path), tmp_path) == expected
    assert not caplog.records


def test_the_first_of_nested_folders_is_the_coarse_class(tmp_path):
    write(tmp_path, "milk/a/1.jpg", "fruit/b/1.jpg", "fruit/a/c/1.jpg")
    table = folder(tmp_path)
    assert table.class_names == ("fruit/a/c", "fruit/b", "milk/a")
    assert table.coarse_ids.tolist() == [0, 0, 1]
    write(tmp_path, "bread/1.jpg")
    assert folder(tmp_path).coarse_ids is None


def test_unsupported_images_are_counted_in_one_line(tmp_path, caplog):
    write(tmp_path, "a/1.jpg", "a/1.HEIC", "a/2.heic", "b/3.tiff", "b/.4.tiff", "b/notes.txt")
    assert folder(tmp_path).class_names == ("a",)
    line = "3 files are not read: 2 .heic, 1 .tiff; convert them to JPEG, or install the package "
    line += "pillow-heif, which reads HEIC"
    assert [record.message for record in caplog.records] == [f"{tmp_path}: {line}"]
    (tmp_path / "a" / "1.jpg").unlink()
    with pytest.raises(ValueError, match=f"but got none, and {line}"):
        folder(tmp_path)


def test_images_in_the_root_are_left_out_with_one_warning(tmp_path, caplog):
    write(tmp_path, "1.jpg", "2.jpg", "a/1.jpg")
    assert contents(folder(tmp_path), tmp_path) == [("a", "a/1.jpg")]
    (record,) = caplog.records
    assert record.name == "pipelines"
    assert "left out 2 images that are not in a class folder, the first is 1.jpg" in record.message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in the file system")
def test_pipes_and_invalid_names_are_left_out_with_a_warning(tmp_path, caplog):
    """Reading a pipe would block forever, and TensorFlow only accepts UTF-8 names."""
    write(tmp_path, "a/1.png", "b/1.png")
    os.mkfifo(tmp_path / "a" / "pipe.png")
    with open(os.path.join(os.fsencode(tmp_path), b"b", b"\xff.png"), "wb"):
        pass
    (tmp_path / "b" / "gone.png").symlink_to(tmp_path / "nowhere")
    found = [path for _, path in contents(folder(tmp_path), tmp_path)]
    assert found == ["a/1.png", "b/1.png", "b/gone.png"]
    said = [record.getMessage() for record in caplog.records]
    assert (
        sum(line.endswith("left out 1 file, not a regular file: 'a/pipe.png'") for line in said)
        == 1
    )
    assert sum("1 file, the name is not UTF-8: 'b/\\udcff.png'" in line for line in said) == 1


def test_many_invalid_names_cause_one_warning_with_the_first_names(tmp_path, caplog):
    write(tmp_path, "a/1.png")
    for number in range(40):
        with open(os.path.join(os.fsencode(tmp_path), b"a", b"\xff%02d.png" % number), "wb"):
            pass
    assert len(folder(tmp_path)) == 1
    (record,) = caplog.records
    assert "left out 40 files, the name is not UTF-8: 'a/\\udcff00.png'" in record.getMessage()
    assert record.getMessage().endswith(" 'a/\\udcff02.png', …")


def test_links_to_folders_are_followed_except_loops(tmp_path):
    write(tmp_path, "elsewhere/1.jpg", "data/a/1.jpg")
    os.symlink(tmp_path / "elsewhere", tmp_path / "data" / "b")
    os.symlink(tmp_path / "data", tmp_path / "data" / "a" / "up")
    assert folder(tmp_path / "data").class_names == ("a", "b")


@pytest.mark.parametrize(
    ("data_dir", "message"),
    [
        (None, "data_dir must be set, but got None.*one folder per class"),
        ("", "data_dir must be set"),
        ("missing", "'missing'.*No such file.*one folder per class"),
        ("file", "Not a directory.*one folder per class"),
        ("empty", "data_dir must be a folder that is not empty.*one folder per class"),
        ("flat", "class folders with images, but got 2 images without a class folder.*one folder"),
        ("texts", "class folders with images, but got none.*one folder per class"),
    ],
)
def test_bad_data_dir(tmp_path, monkeypatch, data_dir, message):
    write(tmp_path, "file", "flat/1.jpg", "flat/2.jpg", "texts/a/1.txt")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        folder(data_dir)
    assert "\n" not in str(caught.value)


def test_an_unreadable_class_folder_is_an_error(tmp_path, monkeypatch):
    write(tmp_path, "a/1.jpg", "b/1.jpg")
    scandir = os.scandir

    def forbidding(path):
        if os.fspath(path).endswith("b"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    # Not with chmod, because root can read everything.
    monkeypatch.setattr(os, "scandir", forbidding)
    with pytest.raises(ValueError, match=r"readable folders, but got .*b \(Permission denied\)"):
        folder(tmp_path)


def test_one_class_cannot_be_split(tmp_path):
    write(tmp_path, "a/1.jpg")
    with pytest.raises(ValueError, match=r"at least 2 class folders, .*got only 'a'"):
        load_dataset("folder", tmp_path)
