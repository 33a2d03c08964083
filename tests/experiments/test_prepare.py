"""`experiments.prepare`: preparation of published datasets, without a network."""

import hashlib
import http.server
import shutil
import tarfile
import threading
import time
import zipfile

import pytest
from official_layouts import write_cub, write_groceries, write_inshop, write_sop
from tiny_run import command_of

from pipelines.datasets import cub as cub_module
from pipelines.datasets import groceries as groceries_module
from pipelines.datasets import inshop as inshop_module
from pipelines.datasets import sop as sop_module
from pipelines.datasets.download import ARCHIVES, Archive

NOWHERE = "http://127.0.0.1:1/CUB_200_2011.tgz"


command = command_of("prepare")


@pytest.fixture(autouse=True)
def tiny_is_full(monkeypatch):
    monkeypatch.setattr(cub_module, "NUM_IMAGES", 5)
    monkeypatch.setattr(cub_module, "NUM_CLASSES", 4)
    monkeypatch.setattr(sop_module, "NUM_IMAGES", {"train": 3, "test": 4})
    monkeypatch.setattr(sop_module, "NUM_CLASSES", {"train": 2, "test": 2})
    monkeypatch.setattr(inshop_module, "NUM_IMAGES", {"train": 3, "query": 2, "gallery": 3})
    monkeypatch.setattr(inshop_module, "NUM_CLASSES", {"train": 2, "query": 2, "gallery": 2})
    monkeypatch.setattr(groceries_module, "NUM_IMAGES", 9)
    monkeypatch.setattr(groceries_module, "NUM_CLASSES", 4)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def cub_archive(tmp_path, monkeypatch):
    """Path of an archive of CUB-200-2011 with five images, which is the official archive."""
    root = write_cub(tmp_path / "remote" / "CUB_200_2011", content=bytes(range(256)) * 40)
    path = root.with_suffix(".tgz")
    with tarfile.open(path, "w:gz") as archive:
        archive.add(root, "CUB_200_2011")
    shutil.rmtree(root)
    serve(monkeypatch, "cub", path)
    return path


@pytest.fixture
def sop_archive(tmp_path):
    return zipped(
        write_sop(tmp_path / "remote" / "Stanford_Online_Products", content=b"image" * 99)
    )


@pytest.fixture
def groceries_archive(tmp_path):
    """Path of an archive in the layout of GitHub's archives."""
    root = tmp_path / "remote" / "GroceryStoreDataset-master"
    write_groceries(root / "dataset", train=(0, 0, 1), val=(1, 41), content=b"image" * 99)
    return zipped(root)


def zipped(root):
    """Replace a folder with a zip archive. Return its path."""
    path = root.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in root.rglob("*"):
            archive.write(file, file.relative_to(root.parent))
    shutil.rmtree(root)
    return path


def serve(monkeypatch, name, path, url=None, checksum=True):
    """Register `path` as the official archive of a dataset."""
    official = ARCHIVES[name][0]
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest() if checksum else None
    archive = Archive(url or path.as_uri(), official.file, official.holds, sha256)
    monkeypatch.setitem(ARCHIVES, name, (archive,))


def contents(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".preparing")


@pytest.mark.parametrize(("name", "train"), [("cub", 3), ("sop", 3), ("groceries", 4)])
def test_a_dataset_is_downloaded_unpacked_and_counted(
    name, train, tmp_path, monkeypatch, capsys, request
):
    path = request.getfixturevalue(f"{name}_archive")
    serve(monkeypatch, name, path)
    folder = tmp_path / "data"
    assert command(f"--dataset={name}", f"--data_dir={folder}") == 0
    out = capsys.readouterr().out
    assert f"{train} images of 2 classes (training), " in out
    assert f"--flagfile={name}.flags --data_dir={folder}" in out
    assert contents(folder) == sorted([path.name, path.stem])
    # An unpacked dataset needs no archive. data_dir may be the folder or its parent.
    path.unlink()
    (folder / path.name).unlink()
    assert command(f"--dataset={name}", f"--data_dir={folder}") == 0
    assert command(f"--dataset={name}", f"--data_dir={folder / path.stem}") == 0


class _HalfOfIt(http.server.BaseHTTPRequestHandler):
    """A server that closes the connection too early."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"half")

    def log_message(self, *_):
        pass


def test_an_interrupted_download(tmp_path, cub_archive, monkeypatch, capsys):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _HalfOfIt) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/CUB_200_2011.tgz"
        serve(monkeypatch, "cub", cub_archive, url)
        assert command("--dataset=cub", f"--data_dir={tmp_path / 'data'}") == 1
        server.shutdown()
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"the download of {url} failed: " in line and "By hand: put" in line
    assert contents(tmp_path / "data") == []


def test_without_a_network_one_line_explains_the_manual_download(
    tmp_path, cub_archive, monkeypatch, capsys
):
    serve(monkeypatch, "cub", cub_archive, NOWHERE)
    folder = tmp_path / "data"
    began = time.monotonic()
    assert command("--dataset=cub", f"--data_dir={folder}") == 1
    assert time.monotonic() - began < 20
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "does not answer" in line
    assert f"put CUB_200_2011.tgz (data.caltech.edu/records/65de6-vp158) into {folder}" in line
    assert contents(folder) == []
    # Follow the instructions of the message.
    shutil.copy(cub_archive, folder)
    assert command("--dataset=cub", f"--data_dir={folder}") == 0


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("name", ["cub", "sop"])
def test_a_truncated_archive(name, checksum, tmp_path, monkeypatch, capsys, request):
    path = request.getfixturevalue(f"{name}_archive")
    serve(monkeypatch, name, path, NOWHERE, checksum)
    folder = tmp_path / "data"
    folder.mkdir()
    whole = path.read_bytes()
    (folder / path.name).write_bytes(whole[: len(whole) * 2 // 3])
    assert command(f"--dataset={name}", f"--data_dir={folder}") == 2
    expected = "the checksum differs" if checksum else "is damaged or cut off: "
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"{path.name} " in line and expected in line and line.endswith("repeat this command")
    assert contents(folder) == [path.name]


def test_a_download_of_another_file_is_deleted(tmp_path, cub_archive, capsys):
    cub_archive.write_bytes(b"<html>moved</html>")
    assert command("--dataset=cub", f"--data_dir={tmp_path / 'data'}") == 1
    err = capsys.readouterr().err
    assert "CUB_200_2011.tgz is not the official archive" in err and "By hand: put" in err
    assert contents(tmp_path / "data") == []


def test_leftovers_of_a_killed_command_are_not_used(tmp_path, cub_archive):
    for left in (".unpacking-CUB_200_2011", ".downloading"):
        write_cub(tmp_path / "data" / left / "CUB_200_2011", (1, 2))
    assert command("--dataset=cub", f"--data_dir={tmp_path / 'data'}") == 0
    assert contents(tmp_path / "data") == ["CUB_200_2011", "CUB_200_2011.tgz"]


def test_an_incomplete_folder_is_reported_and_not_changed(tmp_path, cub_archive, capsys):
    root = write_cub(tmp_path / "data" / "CUB_200_2011")
    next(root.rglob("*.jpg")).unlink()
    for folder in (root, root.parent):
        assert command("--dataset=cub", f"--data_dir={folder}") == 2
        err = capsys.readouterr().err
        assert "1 images listed in images.txt are not in" in err
        assert "move CUB_200_2011 away" in err
    assert contents(root.parent) == ["CUB_200_2011"]


def test_counts_that_differ_from_the_publication(tmp_path, cub_archive, monkeypatch, capsys):
    monkeypatch.setattr(cub_module, "NUM_IMAGES", 11_788)
    assert command("--dataset=cub", f"--data_dir={tmp_path / 'data'}") == 2
    assert "found 5 images of 4 classes; the full CUB-200-2011 has 11788" in capsys.readouterr().err


def test_another_archive(tmp_path, cub_archive, monkeypatch, capsys):
    with tarfile.open(cub_archive, "w:gz") as archive:
        archive.add(__file__, "CUB_200/README")
    serve(monkeypatch, "cub", cub_archive)
    assert command("--dataset=cub", f"--data_dir={tmp_path / 'data'}") == 2
    assert "tgz must contain CUB_200_2011, but got another archive" in capsys.readouterr().err
    assert contents(tmp_path / "data") == ["CUB_200_2011.tgz"]


def test_in_shop_is_only_counted(tmp_path, capsys):
    assert command("--dataset=inshop", f"--data_dir={tmp_path / 'none'}") == 2
    err = capsys.readouterr().err
    assert "ask its authors at mmlab" in err and len(err.splitlines()) == 1
    assert command("--dataset=inshop", f"--data_dir={write_inshop(tmp_path / 'data')}") == 0
    assert "3 images of 2 classes (gallery)" in capsys.readouterr().out


def test_a_folder_that_cannot_be_created_is_a_usage_error(tmp_path, cub_archive, capsys):
    (tmp_path / "file").write_text("")
    assert command("--dataset=cub", f"--data_dir={tmp_path / 'file' / 'data'}") == 2
    assert f"{tmp_path / 'file'}" in capsys.readouterr().err
