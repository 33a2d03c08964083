"""`experiments.run`: recipes, invalid input, and resuming."""

import json
import re

import keras
import numpy as np
import pytest
from processes import run_python
from tiny_run import TINY, assert_serves_its_embeddings, command

from experiments import recipes
from experiments.options import RunOptions, parse, resolved
from experiments.training import encoders
from experiments.training.run_folder import RunFolder
from keras_dml import metrics, models


def test_files_of_a_finished_run(finished):
    history = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [(row["epoch"], row["step"]) for row in history] == [(1, 2), (2, 4)]
    for row in history:
        for metric in ("cosine", "l2"):
            assert 0 <= row[f"test/recall@1/{metric}"] <= row[f"test/recall@2/{metric}"] <= 1
        assert row["train/tightness"] + row["train/contrastive"] == pytest.approx(
            row["train/loss"], rel=1e-4
        )
    result = json.loads((finished / "result.json").read_text())
    assert result["recall"]["embedding, cosine"]["1"] == history[-1]["test/recall@1/cosine"]
    assert (result["best_epoch"], result["keep"]) == (2, "last")
    assert result["table"].endswith("\nkept from epoch 2, the last")
    assert "raw pixels, cosine" in result["recall"]
    with np.load(finished / "test_embeddings.npz") as saved:
        scores = metrics.evaluate(saved["embeddings"], saved["labels"], [1, 2])
    assert result["scores"] == {**result["scores"], **scores}
    assert {"map@r/l2", "r_precision/cosine", "nmi", "ami", "jensen_shannon"} < set(scores)
    for shown in (result["table"], (finished / "report.html").read_text()):
        assert "MAP@R" in shown
        for name in ("map@r/cosine", "r_precision/l2", "nmi", "ami"):
            assert f"{100 * scores[name]:.1f}" in shown
        assert f"{scores['jensen_shannon']:.3f} nats" in shown
    report = (finished / "report.html").read_text()
    assert "<html" in report and "before, raw pixels: matching 0." in report
    (events,) = (finished / "tensorboard").glob("events*")
    assert b"train/loss" in events.read_bytes()
    assert {"best.keras", "last.keras", "checkpoint.npz"} <= {p.name for p in finished.iterdir()}
    assert not list(finished.glob(".writing*")) + list(finished.glob(".*npy*"))


def test_a_finished_run_does_nothing(finished, photos, capsys):
    assert_serves_its_embeddings(finished)
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    for words in (
        [*TINY, f"--data_dir={photos}", "--raw_pixels"],
        [f"--flagfile={finished}/flags.txt"],
    ):
        assert command(*words, f"--output_dir={finished}") == 0
        out = capsys.readouterr().out
        assert "is finished" in out and "embedding, cosine" in out
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_different_flags_in_the_same_folder_are_listed(finished, photos, capsys):
    arguments = [*TINY, f"--data_dir={photos}", f"--output_dir={finished}", "--seed=7"]
    assert command(*arguments, "--raw_pixels") == 2
    message = capsys.readouterr().err
    assert "--seed=0" in message
    assert "--seed=7" in message
    assert message.count("\n") == 1


def test_flag_files_include_others_and_later_files_win(tmp_path):
    (tmp_path / "mine.flags").write_text("--flagfile=glyphs.flags\n# faster\n--epochs=2\n")
    (tmp_path / "over.flags").write_text("--epochs=5\n--seed=9\n")
    options = parse(RunOptions, ["run", f"--flagfile={tmp_path / 'mine.flags'}"])
    assert (options.epochs, options.batch_size, options.name) == (2, 120, "mine")
    both = [f"--flagfile={tmp_path / f'{name}.flags'}" for name in ("mine", "over")]
    options = parse(RunOptions, ["run", "--batch_size=60", *both])
    assert (options.epochs, options.seed, options.batch_size, options.name) == (5, 9, 60, "over")


def test_a_local_flag_file_has_precedence_over_a_packaged_recipe(tmp_path, monkeypatch):
    (tmp_path / "glyphs.flags").write_text("--dataset=glyphs\n--epochs=77\n")
    monkeypatch.chdir(tmp_path)
    options = parse(RunOptions, ["run", "--flagfile=glyphs.flags"])
    assert options.epochs == 77


@pytest.mark.parametrize("recipe", recipes.names())
def test_every_recipe_has_a_description_and_parses(recipe, tmp_path):
    text = recipes.find_recipe(recipe).read_text()
    head = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    assert text.startswith("# ")
    assert f"--flagfile={recipe}" in head
    assert "Expected:" in head
    options = parse(RunOptions, ["run", f"--flagfile={recipe}"])
    assert f"{options.name}.flags" == recipe
    assert options.dataset
    # The flags of the run are a flag file for the same options.
    (tmp_path / "flags.txt").write_text(resolved(options))
    again = parse(RunOptions, ["run", f"--flagfile={tmp_path / 'flags.txt'}"])
    assert resolved(again) == resolved(options)
    assert again.loss_arguments == options.loss_arguments
    for choice in ("sampler", "optimizer", "schedule"):
        of_run, of_file = (getattr(each, f"{choice}_arguments") for each in (options, again))
        assert of_run.items() <= of_file.items()


BAD = [
    (["--flagfile=glyph.flags"], "glyph.flags.*Did you mean glyphs.flags or .*keras-dml recipes"),
    (["--optimizer=adma"], "optimizer must be .*sgd, adam, .*adma.*Did you mean adam "),
    (["--dataset=glyph"], r"dataset must be .*tfds:NAME.*Did you mean glyphs\?"),
    (["--loss=tripplet"], r"loss must be .*tripplet.*Did you mean triplet\b"),
    ([], "dataset must be one of"),
    (["--flagfile=@circle"], "circle.flags names itself"),
    (["--flagfile=@utf16"], "utf16.flags cannot be read"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_command_lines(arguments, message, tmp_path, capsys):
    (tmp_path / "circle.flags").write_text("--flagfile=circle.flags\n")
    (tmp_path / "utf16.flags").write_text("--epochs=2\n", encoding="utf-16")
    arguments = [re.sub(r"@(\w+)", rf"{tmp_path}/\1.flags", word) for word in arguments]
    check_refused([*arguments, f"--output_dir={tmp_path / 'run'}"], message, tmp_path, capsys)


BAD_FOR_TINY = [
    (["--backbone=resnet51"], "backbone must be one of .*resnet50.*resnet51"),
    (["--weights=imagenet"], "small_convnet"),
    (["--train_classes=3"], "batch_size must be .* 3 classes, but got 8. Lower batch_size"),
    (["--epochs=3", "--head_epochs=3"], "head_epochs must be below epochs=3"),
    (["--batch_size=9"], "batch_size must be a multiple of images_per_class=2.*9"),
    (["--resize=12by12"], "resize must be N or HxW"),
    (["--crop_area=a,b"], "crop_area must be 2 numbers"),
    (["--recall_at=50"], "recall_at must be from 1 to 19.*50"),
    (["--filters=8,x"], "filters must be whole numbers with commas between them.*8,x"),
    (["--backbone=inceptionv3"], "inceptionv3, but got 16.*at least 75"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_FOR_TINY)
def test_bad_values(arguments, message, photos, tmp_path, capsys):
    given = [*TINY, f"--data_dir={photos}", f"--output_dir={tmp_path / 'run'}", *arguments]
    check_refused(given, message, tmp_path, capsys)


def check_refused(arguments, message, tmp_path, capsys):
    assert command(*arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert re.search(message, err), err
    assert not (tmp_path / "run").exists()


def test_folders_that_cannot_be_written(photos, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    for folder, message in [
        (tmp_path / "file", "output_dir must be a writable folder"),
        (tmp_path / "file" / "run", "output_dir must be a writable folder"),
        (tmp_path / "mine", "has other files"),
    ]:
        assert command(*TINY, f"--data_dir={photos}", f"--output_dir={folder}") == 2
        assert message in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.mark.slow
def test_nan_stops_the_run_at_its_step_before_a_checkpoint(photos, tmp_path, capsys):
    folder = tmp_path / "run"
    arguments = [*TINY, f"--data_dir={photos}", f"--output_dir={folder}", "--optimizer=sgd"]
    assert command(*arguments, "--learning_rate=1e30", "--schedule=constant", "--loss=ce") == 1
    err = capsys.readouterr().err
    assert "is not finite at step 2 (epoch 1)" in err
    assert "Traceback" not in err
    assert not (folder / "checkpoint.npz").exists()
    assert not (folder / "result.json").exists()
    assert "is not finite at step 2" in (folder / "diverged.txt").read_text()


def test_two_runs_do_not_share_a_folder(tmp_path):
    held = RunFolder(tmp_path / "run", "--seed=0\n").open()
    with pytest.raises(ValueError, match="in use by another running process"):
        RunFolder(held.path, "--seed=0\n").open()


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ["--strategy=mirrored", "--logical_devices=2"],
        ["--mixed_precision"],
        ["--jit_compile"],
        ["--backbone=mobilenetv2", "--image_size=32", "--optimizer=sgd", "--pretrained_factor=0.1",
         "--momentum=0.9", "--nesterov", "--weight_decay=0.001", "--feature_batch_norm"],
    ],
    ids=["mirrored", "mixed_precision", "jit_compile", "mobilenet"],
)  # fmt: skip
def test_strategy_precision_and_compilation(more, photos, tmp_path):
    """Each run has a separate process, because the flags change TensorFlow's global state."""
    arguments = [*TINY, f"--data_dir={photos}", f"--output_dir={tmp_path / 'run'}", *more]
    run_python("-m", "experiments.run", *arguments)
    assert_serves_its_embeddings(tmp_path / "run")


def test_a_model_that_cannot_be_exported_is_refused_before_training(
    photos,
    tmp_path,
    monkeypatch,
    capsys,
):
    def embedding_model(options):
        backbone = models.small_convnet(options.image_size, filters=(4,))
        inputs = keras.Input(backbone.input_shape[1:])
        whole = keras.Model(inputs, backbone(inputs))
        backbone.name = "_backbone"
        return backbone, models.embedding_model(whole, 4)

    monkeypatch.setattr(encoders, "embedding_model", embedding_model)
    folder = tmp_path / "run"
    assert command(*TINY, "--loss=snca", f"--data_dir={photos}", f"--output_dir={folder}") == 2
    assert "'_backbone'. Rename" in capsys.readouterr().err
    assert not folder.exists()
