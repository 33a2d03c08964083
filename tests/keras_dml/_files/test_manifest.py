"""The manifest of a folder: damage is found, and a kill leaves the old or the new files."""

import concurrent.futures
import hashlib
import json
import os

import pytest

from keras_dml._files.manifest import MANIFEST, DamagedError, Manifest


@pytest.fixture
def manifest(tmp_path):
    manifest = Manifest(tmp_path)
    manifest.write_text("a.json", "old a")
    manifest.write_text("b.json", "old b")
    return manifest


def stage(manifest, **texts):
    for name, text in texts.items():
        manifest.staged(f"{name}.json").write_text(text)
    return [f"{name}.json" for name in texts]


def test_the_manifest_has_the_sha_256_of_each_file(manifest, tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "d.npy").write_text("rows")
    manifest.record(["c/d.npy"])
    texts = {"a.json": b"old a", "b.json": b"old b", "c/d.npy": b"rows"}
    expected = {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
    assert json.loads((tmp_path / MANIFEST).read_text()) == expected == manifest.checksums()
    assert all(manifest.check(name) == tmp_path / name for name in texts)
    manifest.forget(["a.json"])
    assert set(manifest.checksums()) == {"b.json", "c/d.npy"}
    assert sorted(os.listdir(tmp_path)) == ["b.json", "c", MANIFEST]


def test_a_changed_a_missing_and_an_unknown_file_are_named(manifest, tmp_path):
    (tmp_path / "a.json").write_text("new a")
    with pytest.raises(DamagedError, match=r"a.json is damaged: its SHA-256 differs. Do this."):
        manifest.check("a.json", "Do this.")
    (tmp_path / "a.json").unlink()
    for earlier in (False, True):
        assert manifest.problem_of("a.json", earlier) == "is missing"
    (tmp_path / "c.json").write_text("c")
    with pytest.raises(DamagedError, match="c.json has no checksum in manifest.json"):
        manifest.check("c.json")
    assert manifest.check("c.json", earlier=True) == tmp_path / "c.json"


@pytest.mark.parametrize("moves", range(4))
def test_a_kill_during_a_commit_leaves_the_old_or_the_new_files(manifest, moves, monkeypatch):
    """The manifest and two files are moved. The kill comes before a move."""
    names, done, replace = stage(manifest, a="new a", b="new b"), [], os.replace

    def replace_some(*paths):
        if len(done) == moves:
            raise KeyboardInterrupt
        done.append(replace(*paths))

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", replace_some)
        manifest.commit(names)
        raise KeyboardInterrupt
    expected = "old" if moves == 0 else "new"
    for _ in range(2):  # a reader before the next writer, and after it
        assert [manifest.check(name).read_text() for name in names] == [
            f"{expected} a", f"{expected} b",
        ]  # fmt: skip
        manifest.recover()
    folder = manifest.check("a.json").parent
    assert sorted(os.listdir(folder)) == ["a.json", "b.json", MANIFEST]


def test_an_error_while_writing_keeps_the_old_file(manifest, tmp_path):
    full = pytest.raises(OSError, match="No space left on device.*a.json")
    with full, manifest.replacing("a.json") as path, open("/dev/full", "wb") as stream:
        path.write_text("half")
        stream.write(b"x")
    assert manifest.check("a.json").read_text() == "old a"
    assert sorted(os.listdir(tmp_path)) == ["a.json", "b.json", MANIFEST]


def test_links_at_the_temporary_names_are_not_followed(manifest, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("a.json", MANIFEST):
        manifest.staged(name).symlink_to(victim)
    manifest.write_text("a.json", "new a")
    assert victim.read_text() == "precious" and manifest.check("a.json").read_text() == "new a"


def test_threads_that_write_other_files_lose_no_checksum(manifest, tmp_path):
    names = [f"{number}.json" for number in range(40)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: Manifest(tmp_path).write_text(name, name), names))
    assert [manifest.check(name).read_text() for name in names] == names


def test_threads_that_write_the_same_file_take_turns(manifest, tmp_path):
    texts = [f"{number}" * 10_000 for number in range(9)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: Manifest(tmp_path).write_text("a.json", text), texts))
    assert manifest.check("a.json").read_text() in texts
    assert sorted(os.listdir(tmp_path)) == ["a.json", "b.json", MANIFEST]


@pytest.mark.parametrize("name", ["../a", "/a", "b/../../a"])
def test_a_manifest_that_names_files_of_other_folders_is_refused(manifest, tmp_path, name):
    (tmp_path / MANIFEST).write_text(json.dumps({name: "0" * 64}))
    with pytest.raises(DamagedError, match="manifest.json is damaged: it names files of another"):
        manifest.check("a.json", earlier=True)
