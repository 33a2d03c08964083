import json

import numpy as np
import pytest
from sklearn.datasets import load_digits

from experiments import run
from experiments.options.command_line import run_command
from pipelines.datasets.registry import load_dataset


def test_each_image_is_on_one_side_with_its_label():
    split = load_dataset("digits")
    levels = np.concatenate([split.train.arrays, split.test.arrays])[..., 0].reshape(-1, 64)
    images, labels = load_digits(return_X_y=True)
    ours = np.concatenate([split.train.labels, split.test.labels])
    both = zip(np.round(levels * (16 / 255)).astype(int).tolist(), ours.tolist())
    assert sorted(both) == sorted(zip(images.astype(int).tolist(), labels.tolist()))
    assert levels.max() == 255 and levels.min() == 0


def test_fifth_of_each_class_is_for_the_test_in_a_fixed_split():
    split, again = load_dataset("digits"), load_dataset("digits")
    assert split.same_classes
    assert split.train.class_names == split.test.class_names == tuple("0123456789")
    train, test = np.bincount(split.train.labels), np.bincount(split.test.labels)
    np.testing.assert_allclose(test / (train + test), 0.2, atol=0.003)
    np.testing.assert_array_equal(split.test.arrays, again.test.arrays)
    # Random images, because the last images of a class are from other writers than the first.
    images, labels = load_digits(return_X_y=True)
    threes = split.test.arrays[split.test.labels == 3].reshape(-1, 64)
    last = images[labels == 3][-len(threes) :]
    assert not np.array_equal(threes, np.round(last * (255 / 16)))


@pytest.mark.parametrize("name", ["data_dir", "train_classes", "test_classes"])
def test_arguments_that_digits_does_not_take(name):
    with pytest.raises(ValueError, match=rf"{name} must not be set with digits.*{name}=5"):
        load_dataset("digits", **{name: 5})


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", ["digits_ce", pytest.param("digits_spce", marks=pytest.mark.slow)]
)
def test_a_short_run_records_accuracy_everywhere(recipe, tmp_path, capsys):
    folder = tmp_path / "run"
    shorter = ["--steps_per_epoch=3", "--epochs=2", "--eval_every=1", "--filters=8"]
    arguments = [f"--flagfile={recipe}.flags", f"--output_dir={folder}", *shorter]
    assert run_command(run.main, ["run", *arguments]) == 0
    printed = capsys.readouterr().out
    history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(history) == 2
    assert all(0 <= row["test/accuracy"] <= 1 for row in history)
    result = json.loads((folder / "result.json").read_text())
    # The saved model has the highest accuracy.
    assert result["accuracy"] == max(row["test/accuracy"] for row in history)
    shown = f"{100 * result['accuracy']:.1f}"
    assert f"accuracy on the training classes: {shown} %" in printed
    assert "359 of the same to test" in printed
    report = (folder / "report.html").read_text()
    assert f'<b>{shown}<small> %</small></b><span class="soft">accuracy' in report
    assert "Accuracy on the test images" in report
