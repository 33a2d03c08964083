"""An untrusted run folder runs no code, and files without read permission are not damaged."""

import io
import os

import keras
import numpy as np
import pytest
from tiny_run import command_of, run_options, small_encoder, write_run

from experiments.options import data
from experiments.pages.page import add_link, write_page
from keras_dml._common.errors import ArgumentError
from keras_dml._files.checksums import read_sealed_json, sealed_json
from keras_dml.retrieval import ExactIndex, load_index

COMMANDS = {
    "evaluate": "--run={run} --noclustering",
    "audit": "--run={run}",
    "export": "--run={run} --format=saved_model",
    "run": "--flagfile={run}/flags.txt --backbone={run}/best.keras --weights=imagenet"
    " --output_dir={run}/../again",
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
def test_flags_of_a_folder_or_file_cannot_allow_code(name, stranger, tmp_path, capsys):
    assert command_of(name)(*COMMANDS[name].format(run=stranger).split()) == 2
    assert "(--trust_code on the command line)" in capsys.readouterr().err
    assert not (tmp_path / "called").exists() and not (tmp_path / "imported").exists()


@pytest.mark.slow
def test_the_command_line_can_allow_code(stranger, tmp_path):
    words = COMMANDS["evaluate"].format(run=stranger).split()
    assert command_of("evaluate")(*words, "--trust_code") == 0
    assert (tmp_path / "called").exists() and not (tmp_path / "imported").exists()


@pytest.mark.parametrize("path", ["/a.png", "inner/../../a.png"])
@pytest.mark.parametrize("name", [*COMMANDS, "preview"])
def test_a_table_cannot_name_files_outside_its_folder(name, path, tmp_path, capsys):
    table, run = tmp_path / "table.csv", tmp_path / "run"
    table.write_text("path,label\n" + f"{path},a\n{path},b\n" * 2)
    flags = ["--dataset=table", f"--data_dir={table}", "--outside_paths"]
    write_run(run, small_encoder(), *flags)
    words = (COMMANDS | {"preview": "--flagfile={run}/flags.txt"})[name].format(run=run).split()
    assert command_of(name)(*words) == 2
    error = capsys.readouterr().err
    assert f"inside the folder of the table, but got {path}." in error
    assert "--outside_paths on the command line" in error


def test_the_command_line_can_allow_paths_outside_of_a_table(tmp_path):
    (tmp_path / "table.csv").write_text("path,label\n" + "/a.png,x\n../b.png,x\n/c.png,y\n" * 2)
    flags = ["--dataset=table", f"--data_dir={tmp_path / 'table.csv'}"]
    (tmp_path / "table.flags").write_text("\n".join([*flags, "--outside_paths"]))
    words = [f"--flagfile={tmp_path / 'table.flags'}"]
    with pytest.raises(ArgumentError, match="path must contain paths inside.*--outside_paths"):
        data.load(run_options(*words))
    split = data.load(run_options(*words, "--outside_paths"))
    assert split.train.paths.tolist() == ["/a.png", str(tmp_path.parent / "b.png")] * 2


def test_a_file_without_permission_is_not_damaged(tmp_path, monkeypatch):
    settings, index = tmp_path / "settings.json", tmp_path / "index"
    settings.write_text(sealed_json({"a": 1}))
    assert read_sealed_json(settings) == {"a": 1}
    ExactIndex(np.eye(3, dtype="float32")).save(index)

    def forbidding(opened):
        def forbidden(file, *arguments, **more):
            if str(file).endswith(".json"):  # chmod does not stop root
                raise PermissionError(13, "Permission denied", str(file))
            return opened(file, *arguments, **more)

        return forbidden

    monkeypatch.setattr(io, "open", forbidding(io.open))
    monkeypatch.setattr(os, "open", forbidding(os.open))
    with pytest.raises(PermissionError):
        read_sealed_json(settings)
    with pytest.raises(PermissionError, match=f"'{index}/index.json'"):
        load_index(index)


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
