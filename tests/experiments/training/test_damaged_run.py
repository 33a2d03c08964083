"""A run folder with a damaged file or with two runs: the same result, or one line."""

import os
import re
import shutil
import types

import numpy as np
import pytest
import tiers
from batches import small_model
from damage import damage as damage_a_file
from trials import Tally, seeds

from experiments.evaluation.result import RAW_PIXELS_FILE as RAW_PIXELS
from experiments.options.errors import UsageError
from experiments.training.run_files import (
    BEST,
    CHECKPOINT,
    FLAGS_FILE,
    LOG,
    RESULT,
    kept_model,
    read_finished,
)
from experiments.training.run_folder import RunFolder, State
from keras_dml._files.manifest import MANIFEST, Manifest

FLAGS = "--seed=0\n--epochs=3\n"
ALONE = types.SimpleNamespace(first=True, from_first=lambda array: array)
# The second epoch is the best.
SCORES = (0.1, 0.3, 0.2)
RECALL = "test/recall@1/cosine"
PIXELS = {"cosine": {"1": 0.5}}


def net():
    model = small_model()
    model.compile("adam", "mse")
    return model


def train(folder, model, first, last):
    """Train for some epochs, as a pure function of the epoch."""
    for epoch in range(first, last + 1):
        for variable in model.variables:
            variable.assign(variable.numpy() * 0.5 + epoch)
        score = SCORES[epoch - 1]
        if score > max((row[RECALL] for row in folder.history), default=-1):
            folder.new_best().write_text(f"the model of epoch {epoch}")
        folder.write_history([*folder.history, {"epoch": epoch, "step": epoch, RECALL: score}])
        folder.save_checkpoint(model, State(epoch, epoch, 0.0), threads=2)


def begun(path, epochs):
    folder = RunFolder(path, FLAGS).open()
    folder.write_json(RAW_PIXELS, PIXELS)
    train(folder, net(), 1, epochs)
    folder.close()
    return folder


def ended(path):
    """Resume the run in this folder. Return its final files and weights."""
    model = net()
    folder = RunFolder(path, FLAGS).open()
    try:
        state = folder.restore_checkpoint(lambda state: model, ALONE)
        train(folder, model, state.epoch + 1, 3)
        folder.best_model()
        # The evaluators recompute a missing file.
        seen = folder.read_json(RAW_PIXELS) or PIXELS
    finally:
        folder.close()
    log = (path / LOG).read_text()
    variables = np.concatenate([variable.numpy().ravel() for variable in model.variables])
    flags = (path / FLAGS_FILE).read_text()
    return (path / BEST).read_text(), log, variables.tolist(), seen, flags


def cut(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


DAMAGES = {"cut": cut, "flipped": flip, "missing": lambda path: path.unlink()}
FILES = (FLAGS_FILE, LOG, CHECKPOINT, BEST, RAW_PIXELS, MANIFEST)


@pytest.fixture(scope="module")
def two_epochs(tmp_path_factory):
    """A run folder after two epochs, and the results of the finished run."""
    path = begun(tmp_path_factory.mktemp("runs") / "run", 2).path
    return path, ended(shutil.copytree(path, path.with_name("whole")))


@pytest.mark.parametrize("damage", DAMAGES)
@tiers.parametrize("name", FILES, (FLAGS_FILE, CHECKPOINT))
def test_a_damaged_file_is_named_or_changes_nothing(name, damage, two_epochs, tmp_path):
    run = shutil.copytree(two_epochs[0], tmp_path / "run")
    DAMAGES[damage](run / name)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    repeated = name == RAW_PIXELS or (name, damage) == (CHECKPOINT, "missing")
    if repeated:
        assert ended(run)[:3] == two_epochs[1][:3]
        return
    with pytest.raises(ValueError) as refused:
        ended(run)
    assert str(run) in str(refused.value) and "\n" not in str(refused.value)
    after = {path.name: path.read_bytes() for path in run.iterdir()}
    assert after | {".lock": b""} == before | {".lock": b""}
    if name == BEST:
        assert re.search("best.keras is (damaged|missing).*delete .*checkpoint", str(refused.value))
        (run / CHECKPOINT).unlink()
        assert ended(run)[:3] == two_epochs[1][:3]


@tiers.parametrize("count", [5, 500], [5])
def test_random_damage(count, two_epochs, tmp_path, capsys):
    """One or two damaged files: the same result, or one line with the file and the next step."""
    tally = Tally("damaged runs")
    for seed in seeds(count):
        generator = np.random.default_rng(seed)
        run = tmp_path / f"run-{seed}"
        shutil.copytree(two_epochs[0], run)
        how = damage_a_file(run, generator)
        if generator.random() < 0.3:
            how += f"; {damage_a_file(run, generator)}"
        try:
            assert ended(run) == two_epochs[1]
            tally.add("with the same end")
        except ValueError as error:
            assert str(run) in str(error) and "\n" not in str(error), f"seed {seed}, {how}"
            tally.add("named in one line")
        except Exception as error:
            tally.fail(seed, f"{how}: {error!r}")
        shutil.rmtree(run)
    tally.check(capsys)


@pytest.mark.parametrize("count", range(4))
def test_a_kill_between_two_renamings_loses_nothing(count, two_epochs, tmp_path, monkeypatch):
    """The second epoch replaces `count` of its four files before the kill."""
    folder, model, done = RunFolder(begun(tmp_path, 1).path, FLAGS).open(), net(), []
    folder.restore_checkpoint(lambda state: model, ALONE)
    replace = os.replace

    def replace_some(*paths):
        if len(done) == count:
            raise KeyboardInterrupt
        done.append(replace(*paths))

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", replace_some)
        train(folder, model, 2, 2)
    folder.close()
    assert ended(tmp_path) == two_epochs[1]
    whole = two_epochs[0].with_name("whole")
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in whole.iterdir()}


def test_changed_files_of_a_finished_run_are_named(tmp_path):
    folder = begun(tmp_path / "run", 3)
    folder.write_json(RESULT, {"table": "t", "recall": {}})
    path = folder.path
    result, log = read_finished(path)
    assert result["table"] == "t" and len(log) == 3 and kept_model(path) == path / BEST
    flip(path / LOG)
    with pytest.raises(ValueError, match=f"metrics.jsonl is damaged.*or delete {path} and repeat"):
        read_finished(path)
    (path / BEST).write_text("another model")
    with pytest.raises(ValueError, match="best.keras is damaged.*--model="):
        kept_model(path)
    flip(path / RESULT)
    assert RunFolder(path, FLAGS).result is None
    shutil.copytree(path, tmp_path / "earlier", ignore=shutil.ignore_patterns(MANIFEST))
    with pytest.raises(ValueError, match="metrics.jsonl has no checksum.*an earlier version"):
        Manifest(tmp_path / "earlier").check(LOG)
    (path / CHECKPOINT).unlink()
    with pytest.raises(UsageError, match="there is no checkpoint: delete the result"):
        _ = RunFolder(path, FLAGS).result


@pytest.mark.parametrize("kept", [CHECKPOINT, RESULT])
def test_a_folder_that_another_run_used_in_between_is_refused(kept, tmp_path):
    path = tmp_path / "run"
    before = RunFolder(path, "--seed=1\n")
    first = RunFolder(path, "--seed=0\n").open()
    during = RunFolder(path, "--seed=1\n")
    with pytest.raises(UsageError, match="in use by another running process"):
        during.open()
    first.write_text(kept, "{}")
    first.close()  # the lock of a killed process ends in the same way
    for second in (before, during):
        with pytest.raises(UsageError, match="run with other flags.*there --seed=0, now --seed=1"):
            second.open()
    assert (path / FLAGS_FILE).read_text() == "--seed=0\n"
    # The refused run does not lock the folder, so that the first command can resume.
    RunFolder(path, "--seed=0\n").open().close()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in the file system")
def test_a_pipe_with_the_name_of_a_new_version_is_removed(tmp_path):
    path = begun(tmp_path / "run", 1).path
    log = (path / LOG).read_text()
    os.mkfifo(Manifest(path).staged(LOG))
    os.mkfifo(Manifest(path).staged(FLAGS_FILE))
    RunFolder(path, FLAGS).open().close()
    assert (path / LOG).read_text() == log
    assert not [each for each in path.iterdir() if each.is_fifo()]


def test_a_folder_without_a_checkpoint_can_be_reused(tmp_path):
    second = RunFolder(tmp_path / "run", "--seed=1\n")
    first = RunFolder(second.path, "--seed=0\n").open()
    first.write_text(RAW_PIXELS, "{}")
    first.close()
    second.open().close()
    assert (second.path / FLAGS_FILE).read_text() == "--seed=1\n"
    assert not (second.path / RAW_PIXELS).exists()
