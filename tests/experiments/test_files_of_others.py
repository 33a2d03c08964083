"""Files without read permission are not reported as damaged."""

import pathlib

import numpy as np
import pytest

from experiments.evaluation.checked_json import checked_text, read_checked
from experiments.pages.page import add_link, write_page
from keras_dml.retrieval import ExactIndex, load_index


@pytest.fixture
def forbid(monkeypatch):
    """A function that revokes the permission to read a file, also for root."""

    def forbid(path):
        opened = pathlib.Path.open

        def open_others(self, *arguments, **more):
            if self.name == path.name:  # by any path of the folder
                raise PermissionError(13, "Permission denied", str(self))
            return opened(self, *arguments, **more)

        def read_text(self, *arguments, **more):
            with self.open(*arguments, **more) as stream:
                return stream.read()

        monkeypatch.setattr(pathlib.Path, "open", open_others)
        monkeypatch.setattr(pathlib.Path, "read_text", read_text)

    return forbid


def test_json_without_permission(tmp_path, forbid):
    path = tmp_path / "settings.json"
    path.write_text(checked_text({"a": 1}))
    assert read_checked(path) == {"a": 1}
    forbid(path)
    with pytest.raises(PermissionError):
        read_checked(path)


def test_an_index_without_permission(tmp_path, forbid):
    ExactIndex(np.eye(3, dtype="float32")).save(tmp_path / "index")
    forbid(tmp_path / "index" / "index.json")
    with pytest.raises(PermissionError, match=f"'{tmp_path / 'index'}/index.json'"):
        load_index(tmp_path / "index")


def test_a_report_without_permission_keeps_its_links(tmp_path, monkeypatch, caplog):
    report, page = tmp_path / "report.html", tmp_path / "page.html"
    for each in (report, page):
        write_page(each, "A page")
    before = report.read_text()

    def replacing(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("experiments.pages.page.replacing", replacing)
    add_link(report, page, "Evaluation")
    assert report.read_text() == before
    assert f"{report} cannot be changed to link to {page}" in caplog.text
