"""Ids, added items, and indexes on disk."""

import hashlib
import json
import logging
import os
import sys
import threading

import numpy as np
import pytest
from retrieval_sets import assert_same, awkward_set, needs_scann

from keras_dml import retrieval
from keras_dml._files.manifest import Manifest
from keras_dml.retrieval import (
    ExactIndex,
    PrefixIndex,
    ScannIndex,
    TreeAH,
    build_index,
    load_index,
)

ROWS, _ = awkward_set()


def names(n=80):
    return [f"é/{number}.jpg" for number in np.random.default_rng(1).permutation(n)]


@pytest.mark.parametrize("ids", [names(), np.arange(80) * -7, np.arange(80, dtype=np.uint8)])
def test_search_returns_the_ids_of_the_rows(ids):
    rows, _ = ExactIndex(ROWS).search(ROWS, 5)
    index = ExactIndex(ROWS, ids=ids)
    found, _ = index.search(ROWS, 5)
    np.testing.assert_array_equal(found, np.asarray(ids)[rows])
    assert found.dtype.kind == "U" or found.dtype == np.int64
    found, _ = index.search(np.empty((0, 6)), 5)
    assert found.shape == (0, 5) and found.dtype == index.ids.dtype


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2, 1, 3, 2], "2 of them more than once, 1, 2"),
        ([0, 1, 2], r"shape \(3,\) for 5 rows"),
        ([0, [1], 2, 3, 4], "lists of different lengths"),
        ([0.0, 1.0, 2.0, 3.0, 4.0], "dtype float64"),
        ([0, 1, 2, 3, "a"], "dtype <U"),
        ([b"a", b"b", b"c", b"d", b"e"], "dtype .S1"),
        (np.array([0, 1, 2, 3, 2**63], np.uint64), "numbers beyond int64"),
        (np.array(["a\0", "b", "c", "d", "e"], object), "an id that ends in a null character"),
    ],
)
def test_invalid_ids(ids, message):
    with pytest.raises(ValueError, match=f"ids must be .*whole numbers .*strings.*{message}"):
        ExactIndex(np.eye(5), ids=ids)


def test_a_trailing_null_character_does_not_match_another_id():
    index = ExactIndex(np.eye(2), ids=["a", "b\0c"])
    for ids in (["a\0"], ("b\0c\0",), np.array(["a\0"], object)):
        with pytest.raises(ValueError, match="ids must be ids of items, strings, but got "):
            index.remove(ids)
        with pytest.raises(ValueError, match="an id that ends in a null character"):
            index.upsert(ids, np.eye(2)[:1])
    index.remove(["b\0c"])
    assert index.ids.tolist() == ["a"]


def test_saving_replaces_an_index_and_nothing_else(tmp_path, monkeypatch):
    first, second = ExactIndex(np.eye(3)), ExactIndex(np.eye(4), ids=list("abcd"))
    first.save(tmp_path / "index")
    second.save(tmp_path / "index")
    assert load_index(tmp_path / "index").num_items == 4
    first.save(tmp_path / "index")
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == [
        "embeddings.npy",
        "index.json",
        "manifest.json",
    ]
    monkeypatch.setattr(np, "save", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        second.save(tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    assert load_index(tmp_path / "index").num_items == 3
    (tmp_path / "photos").mkdir()
    with pytest.raises(ValueError, match="path must be a new folder, or an index.*photos"):
        first.save(tmp_path / "photos")
    with pytest.raises(ValueError, match="path must be in an existing folder"):
        first.save(tmp_path / "missing" / "index")


def test_folders_without_an_index(tmp_path):
    with pytest.raises(ValueError, match=r"path must be a folder that Index.save wrote.*missing"):
        load_index(tmp_path / "missing")
    with pytest.raises(ValueError, match="path must be a folder that Index.save wrote"):
        load_index(tmp_path)
    folder = tmp_path / "index"
    for name, change, message in (
        ("embeddings.npy", lambda data: data[:-4], "embeddings.npy is damaged"),
        ("ids.npy", None, "ids.npy is missing"),
        ("index.json", lambda data: data[:9], "it is not JSON"),
        ("index.json", lambda _: b"[" * 100_000, "it is not JSON"),
        ("index.json", lambda _: b"[]", "must be an object"),
        ("index.json", lambda data: data.replace(b"cosine", b"l2"), "index.json is damaged"),
        ("index.json", lambda data: data.replace(b'"format": 3', b'"format": 99'), "99.*newer"),
        ("manifest.json", None, "index.json has no checksum in manifest.json, which is missing"),
        ("manifest.json", lambda data: data[:-9], "manifest.json is damaged"),
    ):
        ExactIndex(np.eye(3), ids=["first", "second", "third"]).save(folder)
        data = (folder / name).read_bytes()
        (folder / name).unlink()
        if change is not None:
            (folder / name).write_bytes(change(data))
            assert change(data) != data
        with pytest.raises(ValueError, match=f"path must be an .*index'.*{message}"):
            load_index(folder)
        (folder / "index.json").write_bytes(b"{}")  # so that the next save replaces it


@needs_scann
@pytest.mark.parametrize("kind", ["exact", "prefix", "tree", "asked"])
def test_a_description_of_a_stranger_is_named_or_searched(tmp_path, kind):
    """Each field missing, null, or another value, with a right checksum."""
    index = {
        "exact": lambda: ExactIndex(ROWS),
        "prefix": lambda: PrefixIndex(ROWS, length=2, candidates=9),
        "tree": lambda: ScannIndex(ROWS, "cosine", None, TreeAH(num_leaves=3)),
        "asked": lambda: ScannIndex(ROWS, "cosine", None, TreeAH(reorder=9)),
    }[kind]()
    folder = tmp_path / "index"
    index.save(folder)
    file = folder / "index.json"
    good = json.loads(file.read_text())
    named = 0
    for name in good:
        rest = {each: good[each] for each in good if each != name}
        for changed in (
            rest,
            *({**good, name: value} for value in (None, True, {}, {"a": 1}, [0.5], 0, 7, "x")),
        ):
            file.write_text(json.dumps(changed))
            Manifest(folder).record([file.name])
            try:
                load_index(folder).search(ROWS[:2], k=2)
            except ValueError as error:
                named += 1
                assert "path must be" in str(error) and "Error(" not in str(error)
    assert named > 15
    file.write_text(json.dumps({each: good[each] for each in good if each != "ids"}))
    Manifest(folder).record([file.name])
    with pytest.raises(ValueError, match=r"index.json is damaged: ids must be true or false"):
        load_index(folder)


@pytest.mark.parametrize("data", [b"", b"PK\3\4", b"x"])
@pytest.mark.parametrize("name", ["embeddings.npy", "ids.npy"])
def test_arrays_of_a_stranger_are_damaged(tmp_path, name, data):
    folder = tmp_path / "index"
    ExactIndex(np.eye(2), ids=["a", "b"]).save(folder)
    (folder / name).write_bytes(data)
    Manifest(folder).record([name])
    with pytest.raises(ValueError, match="path must be an undamaged index"):
        load_index(folder)


def in_an_earlier_format(folder):
    """Rewrite a saved index as version 0.2 wrote it: with the checksums in `index.json`."""
    (folder / "manifest.json").unlink()
    file = folder / "index.json"
    description = json.loads(file.read_text()) | {"format": 1}
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()
    sums = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path != file
    }
    file.write_text(json.dumps({**description, "sha256": {**sums, "index.json": digest}}))


def test_an_index_of_an_earlier_format_is_checked_and_loads(tmp_path):
    folder, index = tmp_path / "index", ExactIndex(ROWS, ids=names())
    index.save(folder)
    in_an_earlier_format(folder)
    assert_same(load_index(folder), index, ROWS)
    for name in ("embeddings.npy", "ids.npy", "index.json"):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data.replace(b"cosine", b"l2") if b"co" in data else data[:-1])
        with pytest.raises(ValueError, match=f"path must be an undamaged index.*{name} has ch"):
            load_index(folder)
        (folder / name).write_bytes(data)
    load_index(folder).save(folder)
    assert (folder / "manifest.json").is_file()


@needs_scann
def test_a_flipped_bit_in_any_file_is_found_before_scann_reads_it(tmp_path):
    """If ScaNN reads its own damaged files, it ends the process."""
    rows = np.random.default_rng(0).normal(size=(2_000, 4)).astype(np.float32)
    ScannIndex(rows, "cosine", None, TreeAH(num_leaves=20)).save(tmp_path / "index")
    files = [path for path in (tmp_path / "index").rglob("*") if path.is_file()]
    assert len(files) >= 5
    for path in files:
        data = path.read_bytes()
        if path.name == "index.json" or not data:
            continue
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 1
        path.write_bytes(flipped)
        # A flipped bit of the manifest changes the name or the checksum of another file.
        named = (
            "is (damaged|missing)" if path.name == "manifest.json" else f"{path.name} is damaged"
        )
        with pytest.raises(ValueError, match=f"path must be an undamaged index.*{named}"):
            load_index(tmp_path / "index")
        path.write_bytes(data)
    assert_same(load_index(tmp_path / "index"), ExactIndex(rows), rows[:3], 1)


def test_a_load_during_a_save_is_consistent(tmp_path, monkeypatch):
    """Both indexes have the same size, so that only the items can reveal a mix."""
    old, new = (
        ExactIndex(awkward_set(seed)[0], "l2", [f"{seed} {row}" for row in range(80)])
        for seed in range(2)
    )
    old.save(tmp_path / "index")
    before = np.load
    saving = threading.Thread(target=new.save, args=(tmp_path / "index",))

    def save_during_load(*arguments):
        if saving.ident is None:
            saving.start()
            saving.join(0.2)
        return before(*arguments)

    monkeypatch.setattr(np, "load", save_during_load)
    found = load_index(tmp_path / "index")
    saving.join()
    for loaded, saved in ((found, old), (load_index(tmp_path / "index"), new)):
        assert_same(loaded, saved, ROWS)
    assert os.listdir(tmp_path) == ["index"]


@needs_scann
def test_a_scann_index_loads_as_an_exact_index_without_scann(tmp_path, monkeypatch, caplog):
    rows = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    ScannIndex(rows, "l2", names(100)).save(tmp_path / "brute")
    ScannIndex(rows, "l2", names(100), TreeAH(num_leaves=5)).save(tmp_path / "tree")
    assert json.loads((tmp_path / "tree" / "index.json").read_text())["tree"]["num_leaves"] == 5

    class Broken:
        __path__ = ()

        def __getattr__(self, name):
            raise RuntimeError("undefined symbol")

    monkeypatch.setitem(sys.modules, "scann.scann_ops.py", Broken())
    retrieval.scann_loads.cache_clear()
    try:
        with caplog.at_level(logging.INFO, logger="keras_dml"):
            loaded = [load_index(tmp_path / name) for name in ("brute", "tree")]
            loaded.append(build_index(rows, "l2", names(100), TreeAH(num_leaves=5)))
    finally:
        retrieval.scann_loads.cache_clear()
    assert len(caplog.records) == 1 and "ScaNN is not available" in caplog.text
    assert "undefined symbol" in caplog.text
    for index in loaded:
        assert type(index) is ExactIndex
        assert_same(index, ExactIndex(rows, "l2", names(100)), rows)
