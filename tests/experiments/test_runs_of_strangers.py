"""An untrusted run folder runs no code, and files without read permission are not damaged."""

import pathlib

import keras
import numpy as np
import pytest
from tiny_run import write_run

from experiments import audit, evaluate, export, run
from experiments.evaluation.checked_json import checked_text, read_checked
from experiments.options.command_line import run_command
from experiments.pages.page import add_link, write_page
from keras_dml.retrieval import ExactIndex, load_index

COMMANDS = {
    "evaluate": (evaluate.main, ["--noclustering"]),
    "audit": (audit.main, []),
    "export": (export.main, ["--format=saved_model"]),
}


def lambda_model(marker):
    """Return a model with a Lambda layer that creates the file `marker` at each call."""
    # Keras saves the constants of a lambda, but not its closure.
    code = eval(f"lambda x: (open({str(marker)!r}, 'w').close(), x)[1]")
    layers = [keras.layers.Lambda(code), keras.layers.Flatten(), keras.layers.Dense(4)]
    return keras.Sequential([keras.Input([16, 16, 3]), *layers])


@pytest.fixture
def stranger(photos, tmp_path, monkeypatch):
    """A run folder whose flags allow the code of its model and import a module."""
    folder = tmp_path / "run"
    (tmp_path / "strangers_module.py").write_text(
        f"open({str(tmp_path / 'imported')!r}, 'w').close()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    flags = [f"--data_dir={photos}", "--trust_code", "--import_modules=strangers_module"]
    write_run(folder, lambda_model(tmp_path / "called"), *flags)
    (tmp_path / "called").unlink()
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_of_a_run_folder_cannot_allow_code(name, stranger, capsys):
    main, more = COMMANDS[name]
    words = [name, f"--run={stranger}", *more]
    assert run_command(main, words) == 2
    assert "(--trust_code on the command line)" in capsys.readouterr().err
    called, imported = (stranger.parent / file for file in ("called", "imported"))
    assert not called.exists() and not imported.exists()


@pytest.mark.slow
def test_the_command_line_can_allow_code(stranger):
    words = ["evaluate", f"--run={stranger}", "--noclustering", "--trust_code"]
    assert run_command(evaluate.main, words) == 0
    called, imported = (stranger.parent / file for file in ("called", "imported"))
    assert called.exists() and not imported.exists()


def test_a_flag_file_cannot_allow_code(stranger, tmp_path, capsys):
    words = ["run", f"--flagfile={stranger / 'flags.txt'}", f"--output_dir={tmp_path / 'again'}"]
    words += [f"--backbone={stranger / 'best.keras'}", "--weights=imagenet"]
    assert run_command(run.main, words) == 2
    assert "(--trust_code on the command line)" in capsys.readouterr().err
    assert not (tmp_path / "called").exists() and not (tmp_path / "imported").exists()


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
