"""Commands with stores: `index --to`, `search`, and the page's server."""

import json
import shutil
import sys
from unittest import mock

import numpy as np
import pytest
from photo_search import index_command, picture
from stores import WITH_POSTGRES, MemoryStore, description

from experiments import search
from experiments.options.command_line import run_command
from experiments.options.errors import UsageError
from experiments.searching.gallery import FolderGallery
from experiments.searching.index_folder import read_settings, write_settings
from experiments.searching.store import StoreError, check_store, made_rows
from experiments.searching.visual_search import VisualSearch


def found(capsys, address, *more):
    capsys.readouterr()
    code = run_command(search.main, ["search", f"--index={address}", "--json", *map(str, more)])
    out, err = capsys.readouterr()
    return json.loads(out) if code == 0 else (code, err)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lancedb", "qdrant", WITH_POSTGRES])
def test_search_and_its_server_read_from_a_store(index, kind, place_of, tmp_path, capsys):
    address = f"{kind}:{place_of(kind)}#photos"
    given = [f"--saved_model={index.parent / 'model'}", f"--images={index.parent / 'photos'}"]
    assert index_command(*given, f"--output_dir={tmp_path / 'index'}", f"--to={address}") == 0
    assert f"{address}: 5 images: added 5, changed 0, removed 0\n" in capsys.readouterr().out
    query = tmp_path / "query.png"
    picture(3).save(query)
    for conditions in (["--k=5"], ["--where=class=a", "--min_similarity=-1"], ["--where=folder=b"]):
        given = [f"--query={query}", *conditions]
        assert found(capsys, address, *given) == found(capsys, index, *given)
    code, said = found(capsys, address, f"--query={query}", "--where=class=x")
    assert code == 2 and "no image has class=x" in said
    pytest.importorskip("flask")
    from experiments.searching import serve

    opened = VisualSearch(address)
    answer = serve.create_app(opened).test_client().get("/search?item=2")
    names = [one["path"] for one in answer.json["neighbours"]]
    assert len(names) == 4 and "a/1.png" not in names
    opened.close()


@pytest.mark.slow
def test_a_store_that_does_not_answer_is_not_the_fault_of_the_query(index, monkeypatch, capsys):
    gone = mock.Mock(side_effect=StoreError("the store is gone"))
    monkeypatch.setattr(FolderGallery, "nearest", gone)
    query = index.parent / "photos" / "a" / "0.png"
    code, said = found(capsys, index, f"--query={query}")
    assert code == 2 and said.splitlines()[-1] == "error: the store is gone"


@pytest.mark.parametrize(
    ("kind", "parameters"), [("folder", "?scheme=http&endpoint_override=h"), ("store", "")]
)
def test_an_address_in_an_index_is_not_opened(
    index, kind, parameters, tmp_path, monkeypatch, capsys
):
    files, place = mock.Mock(), f"s3://bucket/photos{parameters}"
    monkeypatch.setitem(sys.modules, "experiments.searching.file_systems", files)
    query = f"--query={index.parent / 'photos' / 'a' / '0.png'}"
    settings = read_settings(index)
    index = shutil.copytree(index, tmp_path / "index")
    write_settings(index, settings | {"images": place})
    if kind == "store":
        index, store = "lancedb:photos.lance", MemoryStore()
        model = {name: settings[name] for name in ("saved_model", "fingerprint")}
        described = description((), dimensions=48, images=place, **model)
        vectors = np.eye(2, 48, dtype=np.float32)
        store.write(described, made_rows(["a.png", "b.png"], vectors, {"class": ["", ""]}))
        monkeypatch.setattr("experiments.searching.gallery.open_store", lambda address: store)
    code, said = found(capsys, index, query)
    assert code == 2 and not files.opened_folder.called
    # Parameters of the address can mislead.
    assert "opened only if the command line sets it: --images=s3://bucket/photos\n" in said
    assert found(capsys, index, query, f"--images={place}")["metric"] == "cosine"
    files.opened_folder.assert_called_once_with(place)


def test_other_images_or_settings_are_refused():
    store = MemoryStore()
    store.create(description())
    same = {"fingerprint": "1", "images": "/photos", "metric": "cosine"}
    check_store(store, **same)
    for name in same:
        with pytest.raises(UsageError, match=f"with {name}=.*Name another table"):
            check_store(store, **same | {name: "other"})
