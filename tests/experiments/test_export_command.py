"""`experiments.export`: its files, output, and invalid input."""

import json
import os
import shutil

import numpy as np
import pytest
from kills import Undisturbed, ended_as_allowed, kill
from small_commands import SmallCommand
from tiny_run import TINY
from trials import Tally, seeds

from experiments import export
from experiments.exporting.formats import FORMATS
from experiments.options.command_line import run_command


def command(*arguments):
    return run_command(export.main, ["export", *map(str, arguments)])


@pytest.fixture
def begun(tmp_path):
    """The folder of an unfinished run."""
    (tmp_path / "flags.txt").write_text("\n".join(TINY) + "\n")
    return tmp_path


@pytest.fixture(scope="module")
def run(finished, tmp_path_factory):
    """A copy of a finished run."""
    return shutil.copytree(finished, tmp_path_factory.mktemp("exported") / "run")


@pytest.mark.slow
def test_a_run_is_exported_with_its_card(run, capsys):
    assert command(f"--run={run}", "--format=saved_model") == 0
    printed = capsys.readouterr().out
    for words in ("| lost           |  0.00", "size: ", "similarity of two: 1.0", "ms an"):
        assert words in printed
    folder = run / "exports" / "saved_model"
    assert {path.name for path in folder.iterdir()} == {
        "export.json",
        "model_card.md",
        "saved_model",
    }
    card = (folder / "model_card.md").read_text()
    for words in ("20 images of 5 classes", "--epochs=2", "None yet", "random weights"):
        assert words in card
    assert str(run) not in card and "--data_dir" not in card
    # Again, with leftovers of a killed export.
    (folder.parent / ".saved_model.partial").mkdir()
    (folder.parent / ".saved_model.lock").touch()
    assert command(f"--run={run}", "--format=saved_model", f"--output_dir={folder}") == 0
    assert "| lost           |  0.00" in capsys.readouterr().out
    assert [path.name for path in folder.parent.iterdir()] == ["saved_model"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "run and format must be set"),
        (["--run=/nowhere", "--format=onnx"], "with flags.txt in it, but got /nowhere"),
        (["--run={run}", "--format=saved_model", "--int8"], "format must be litert or onnx"),
        (["--run={run}", "--format=onnx", "--examples=9"], "examples must be 200 without --int8"),
        (["--run={run}", "--format=saved_model"], "run must be the folder of a run"),
    ],
)
def test_bad_input(words, message, begun, capsys):
    assert command(*(word.format(run=begun) for word in words)) == 2
    assert [path.name for path in begun.iterdir()] == ["flags.txt"]
    printed = capsys.readouterr().err
    assert message in printed and printed.startswith("error: ") and printed.count("\n") == 1


@pytest.mark.slow
def test_a_missing_dataset_and_a_folder_without_an_export(run, capsys):
    for words, message in (
        (["--data_dir=/nowhere"], "/nowhere"),
        ([f"--output_dir={run}"], "path must be a new folder, or an export"),
    ):
        assert command(f"--run={run}", "--format=saved_model", *words) == 2
        assert message in capsys.readouterr().err
        assert (run / "best.keras").is_file()


def files(folder):
    """Return the contents of all files in a folder, by relative path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def exporting(request, run, tmp_path):
    """An export with the test's flags into `FOLDER/it`, with a separate temporary folder."""
    (tmp_path / "temporary").mkdir()
    name = request.param[0].partition("=")[2]
    for package in FORMATS[name].packages:
        pytest.importorskip(package, exc_type=ImportError)
    setup = f"import tempfile\ntempfile.tempdir = {str(tmp_path / 'temporary')!r}"
    return SmallCommand(
        "experiments.export",
        lambda to: [f"--run={run}", *request.param, f"--output_dir={to / 'it'}"],
        setup,
    )


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    "exporting",
    [
        ["--format=saved_model"],
        *([f"--format={name}", *more] for name in list(FORMATS)[1:] for more in ([], ["--int8"])),
    ],
    indirect=True,
    ids=" ".join,
)
def test_a_killed_export_leaves_the_previous_or_the_new_export(
    exporting, commands, tmp_path, capsys
):
    tally, folder = Tally("killed exports"), tmp_path / "exports"
    folder.mkdir()
    whole = Undisturbed(exporting, commands, folder)
    path = folder / "it"
    for seed in seeds(4):
        (path / "old").write_text("old")
        old = files(path)
        process = exporting.start(commands, folder)
        number, how = kill(process, folder, whole, np.random.default_rng(seed))
        ended = process.wait()
        now = files(path)
        if alive := process.left_alive():
            tally.fail(seed, f"{how}: children are left: {alive}")
        elif not ended_as_allowed(ended, number):
            tally.fail(seed, f"{how}: ended with {ended.code}: {ended.output[-3000:]}")
        elif "old" in now and now != old:
            tally.fail(seed, f"{how}: the previous export has changed")
        elif now.keys() - {"old"} != old.keys() - {"old"} or not json.loads(now["export.json"]):
            tally.fail(seed, f"{how}: neither the previous nor the new export: {sorted(now)}")
        else:
            tally.add(f"the {'old' if 'old' in now else 'new'} one")
    ended = exporting.run(commands, folder)
    assert ended.code == 0 and not ended.problem, ended.output
    assert os.listdir(folder) == ["it"] and "old" not in os.listdir(path)
    # TensorFlow does not delete its AutoGraph files.
    left = [name for name in os.listdir(tmp_path / "temporary") if "autograph" not in name]
    assert not left
    tally.check(capsys)
