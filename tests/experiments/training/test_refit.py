"""A short run, and its refit on all classes."""

import json

import pytest
from tiny_run import TINY, assert_same_weights, command, finish, kill_when, start

from experiments import calibrate
from experiments.options import RunOptions, parse, run_command
from experiments.training import refit
from experiments.training.run_folder import RunFolder


def last_step(folder):
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["step"]


def words_of(photos, folder):
    """Return the flags of a run with a refit."""
    words = [*TINY, f"--data_dir={photos}", f"--output_dir={folder}", "--refit"]
    return [*words, "--epochs=3", "--steps_per_epoch=2", "--raw_pixels"]


@pytest.fixture
def written(tmp_path):
    """The folder of a finished run with the files that the refit reads."""
    folder = RunFolder(tmp_path, "\n".join([*TINY, "--train_classes=5"]) + "\n")
    folder.write_text("flags.txt", folder.flags)
    rows = {"embedding, cosine": {"recall@1": 0.5}}
    result = {"rows": rows, "table": "its table", "batch_size": 6}
    sides = {"trained_on": "20 images of 5 classes: a", "tested_on": "8 images of 2 other classes"}
    folder.write_json("result.json", result | sides)
    folder.write_text("metrics.jsonl", '{"epoch": 2, "step": 14}\n')
    return tmp_path


def test_the_refit_has_the_steps_and_batch_of_the_first_run(written, monkeypatch, capsys):
    given = []
    monkeypatch.setattr(refit, "run_module", lambda _, *words, **more: given.append(words))
    words = [*TINY, "--train_classes=5", "--raw_pixels", f"--output_dir={written}", "--refit"]
    refit.refit(parse(RunOptions, ["run", *words]))
    (passed_on,) = given
    second = parse(RunOptions, ["run", *passed_on])
    assert (second.batch_size, second.steps_per_epoch, second.epochs) == (6, 7, 2)
    assert (second.class_split, second.train_classes) == ("every_class", None)
    assert second.folder == written / "refit" and not (second.refit or second.raw_pixels)
    assert (second.learning_rate, second.embedding_size) == (0.001, 8)  # from the flags
    refit.check_refit(second)
    before = refit.measured(second)
    assert before["table"] == "its table"
    said = refit.origin_of(before)
    assert "It trained on 20 images of 5 classes: a, and was tested on 8 images of 2" in said


@pytest.mark.slow
@pytest.mark.thorough
def test_a_refit_trains_on_every_class(photos, tmp_path, capfd, monkeypatch):
    # Run in this process, because another process takes seconds to start.
    monkeypatch.setattr(refit, "run_module", lambda _, *words, **more: command(*words))
    folder = tmp_path / "run"
    words = words_of(photos, folder)
    assert command(*words) == 0
    said = capfd.readouterr().out
    assert "again on every class, with the same 3 epochs of 2 steps" in said
    assert "40 images of 10 classes to train, none to test, as" in said
    assert said.endswith(f"final model, of every class: {folder / 'refit' / 'saved_model'}\n")

    final = folder / "refit"
    assert last_step(folder) == last_step(final) == 6
    before, after = (json.loads((each / "result.json").read_text()) for each in (folder, final))
    assert after["recall"] == before["recall"] and after["scores"] == before["scores"]
    sentence = "belong to the model before. It trained on 20 images of 5 classes: class0, class1"
    page, card = ((final / name).read_text() for name in ("report.html", "model_card.md"))
    for text in (page, card, after["measured"]):
        assert sentence in text and "20 images of 5 other classes: class5" in text
    assert "R@1, cosine, of the previous model" in page and "none: every class trained" in page
    assert "all 40 images of 10 classes" in card and "Test: none: every class trained" in card
    assert '<a href="refit/report.html">' in (folder / "report.html").read_text()
    assert '<a href="../report.html">The run that measured</a>' in page
    assert "`refit/saved_model`" in (folder / "model_card.md").read_text()
    for name in ("saved_model/saved_model.pb", "best.keras", "last.keras"):
        assert (final / name).is_file(), name

    finished = (final / "result.json").stat().st_mtime_ns
    assert command(*words) == 0  # both are finished
    assert (final / "result.json").stat().st_mtime_ns == finished
    assert (folder / "model_card.md").read_text().count("Final model") == 1
    # A threshold cannot be calibrated on training images.
    assert run_command(calibrate.main, ["calibrate", f"--run={final}"]) == 2
    assert "run must have unseen test images" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.thorough
def test_a_kill_in_either_phase_does_not_change_the_result(photos, tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    words = ["experiments.run", *words_of(photos, killed), "--deterministic"]
    for phase in (killed, killed / "refit"):
        kill_when((phase / "checkpoint.npz").is_file, start(*words), phase)
    said = finish(start(*words))
    assert f"{killed} is finished" in said and "; continued after epoch" in said
    finish(start("experiments.run", *words_of(photos, whole), "--deterministic"))
    for part in (".", "refit"):
        assert_same_weights(whole / part, killed / part)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--refit", "--dataset=sop"], "refit must be false for dataset=sop"),
        (["--measured_in={run}", "--class_split=every_class"], "the folder of a finished run"),
        (["--measured_in=/nowhere", "--class_split=every_class"], "measured_in must be"),
    ],
)
def test_invalid_refits(words, message, tmp_path, capsys):
    (tmp_path / "flags.txt").write_text("\n".join(TINY) + "\n")  # an unfinished run
    words = [word.format(run=tmp_path) for word in words]
    assert command(*TINY, f"--output_dir={tmp_path / 'run'}", *words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
