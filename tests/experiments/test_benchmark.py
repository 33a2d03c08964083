"""The benchmark runs and says what it takes; what it measures is not a test."""

import random
import re

import numpy as np
import pytest
import tiers
import torchvision_model
from PIL import Image
from scipy import stats

from experiments import benchmark
from experiments.benchmarks import loss as benchmark_loss
from experiments.benchmarks import pil as benchmark_pil
from experiments.benchmarks import pipeline as benchmark_pipeline
from experiments.benchmarks import timing
from experiments.benchmarks import training as benchmark_training
from experiments.options.command_line import RunError, run_command
from keras_dml import losses
from pipelines import EvaluationTransform


@pytest.mark.thorough
@pytest.mark.slow
def test_the_losses_benchmark_prints_a_row_for_each_size(capfd):
    arguments = ["benchmark", "losses", "--losses=contrastive", "--sizes=16,8"]
    assert run_command(benchmark.main, arguments) == 0
    rows = [line.split() for line in capfd.readouterr().out.splitlines()[1:]]
    assert [row[:2] for row in rows] == [["contrastive", "8"], ["contrastive", "16"]]
    # Milliseconds, with and without XLA, passes over n × n, and over the floor.
    assert all(min(map(float, row[2:6])) > 0 and len(row) == 8 for row in rows)


def test_what_a_step_reads_and_writes_is_counted_in_additions():
    rows = np.zeros((5, 2), "float32")
    ids = np.array([0, 0, 1, 1, 2])
    passes = {
        name: benchmark_loss._passes(
            benchmark_loss._value_and_gradient(name, ids, rows).function, 5
        )
        for name in ("addition", "transposition", "contrastive")
    }
    # One addition; a transposed matrix is written before it is read.
    assert passes["addition"] == 1.0
    assert passes["transposition"] == pytest.approx(5 / 3)
    assert passes["contrastive"] > 5


@pytest.mark.slow
@pytest.mark.gate_cases(3)
@tiers.parametrize("name", benchmark_loss.names(), ("contrastive", "rankmi"))
def test_every_loss_can_be_measured(name, monkeypatch, capsys):
    monkeypatch.setattr(timing, "SECONDS", 0.0)
    benchmark_loss.main(name, 8, True, [16])
    assert '"n": 16' in capsys.readouterr().out


def test_a_loss_that_cannot_be_measured_stops_no_other(monkeypatch, capsys):
    def rows(module, name, *words):
        if name == "ice":
            raise RunError("killed")
        assert words == ("128", "0", "8192")
        yield {
            "n": 8192, "ms": 3.0, "xla": None, "passes": 5.04, "floor": 1.0, "peer": None, "mb": 7.0
        }  # fmt: skip

    monkeypatch.setattr(benchmark, "json_rows", rows)
    arguments = ["--losses=ice,snca", "--sizes=8192", "--dimensions=128", "--noxla"]
    assert run_command(benchmark.main, ["benchmark", "losses", *arguments]) == 1
    said = capsys.readouterr()
    lines = [line.split() for line in said.out.splitlines()[1:]]
    assert lines == [["ice", "killed"], ["snca", "8192", "3.00", "–", "5.0", "3.00", "–", "7"]]
    assert said.err == "stopped: ice could not be measured; why stands above\n"


@pytest.mark.thorough
@pytest.mark.slow
def test_the_training_benchmark_prints_three_steps_beside_the_first(monkeypatch, capsys):
    monkeypatch.setattr(benchmark_training, "SECONDS", 0.0)
    monkeypatch.setattr(benchmark_training, "BATCH", 20)
    monkeypatch.setattr(benchmark_training, "BACKBONES", {"small_convnet": 8})
    assert run_command(benchmark.main, ["benchmark", "training"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[2] for row in rows] == ["contrastive", "rankmi,", "rankmi,"]
    assert float(rows[0][-1]) == 1.0
    assert all(float(row[-1]) > 0 for row in rows)


@pytest.mark.thorough
@pytest.mark.slow
def test_the_gpu_benchmark_prints_losses_and_training_steps(monkeypatch, capfd):
    pytest.importorskip("jax")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    arguments = ["--losses=contrastive", "--sizes=16,8", "--dimensions=4", "--batch_size=8"]
    arguments += ["--backbone=small_convnet", "--image_size=8", "--training=ice"]
    assert run_command(benchmark.main, ["benchmark", "gpu", *arguments]) == 0
    _, first, second, _, training = map(str.split, capfd.readouterr().out.splitlines())
    assert [first[:2], second[:2]] == [["contrastive", "8"], ["contrastive", "16"]]
    assert float(first[2]) > 0 and 0 < float(first[7]) < 1e-5
    assert second[7] == "–"
    assert training[0] == "ice" and float(training[2]) > 0


@pytest.mark.thorough
@pytest.mark.slow
def test_the_chunks_benchmark_prints_a_plain_step_and_one_in_pieces(capfd):
    arguments = ["benchmark", "chunks", "--backbone=small_convnet", "--image_size=16"]
    arguments += ["--batch_size=12", "--chunk_size=4"]
    assert run_command(benchmark.main, arguments) == 0
    rows = [line.split() for line in capfd.readouterr().out.splitlines()[1:]]
    assert [row[:2] for row in rows] == [["4", "–"], ["12", "4"]]
    assert all(float(row[2]) > 0 for row in rows)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number in range(12):
        noise = np.random.default_rng(number).integers(0, 256, (5, 4, 3), dtype=np.uint8)
        path = folder / f"class {number % 3}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(noise).resize((60, 50), Image.Resampling.BICUBIC).save(path)
    return folder


@pytest.mark.thorough
@pytest.mark.slow
def test_the_pipeline_benchmark_prints_every_pipeline(photos, monkeypatch, capsys):
    monkeypatch.setattr(benchmark_pipeline, "ROUNDS", 1)
    monkeypatch.setattr(benchmark_pipeline, "IMAGES_PER_ROUND", 4)
    monkeypatch.setattr(benchmark_pipeline, "measure_startup", lambda: ["start-up: see below"])
    arguments = ["benchmark", "pipeline", "--dataset=folder", f"--data_dir={photos}", "--noflip"]
    arguments += ["--image_size=16", "--resize=20", "--batch_size=4", "--train_classes=2"]
    assert run_command(benchmark.main, arguments) == 0
    first, columns, *rows, startup = capsys.readouterr().out.splitlines()
    assert first == "2 classes, 8 images; batches of 4"
    assert columns.split() == ["images/s", "/", "decoding", "/", "PIL"]
    names = ["decoding the crops alone", "pipeline", "PIL", "pipeline, jitter", "PIL, jitter"]
    assert [row[:28].strip() for row in rows] == names
    values = [[float(word.replace(",", "")) for word in row[28:].split()] for row in rows]
    assert [len(row) for row in values] == [2, 3, 2, 3, 2]
    assert values[0][1] == 1.0
    assert min(map(min, values)) > 0
    assert startup == "start-up: see below"


@pytest.mark.thorough
@pytest.mark.slow
def test_the_feeding_benchmark_prints_a_row_for_each_backend(photos, capfd):
    arguments = ["benchmark", "feeding", "--dataset=folder", f"--data_dir={photos}"]
    arguments += ["--image_size=16", "--resize=20", "--batch_size=4", "--train_classes=2"]
    arguments += ["--backends=tensorflow,jax"]
    assert run_command(benchmark.main, arguments) == 0
    first, columns, *rows = capfd.readouterr().out.splitlines()
    assert first == "2 classes, 8 images; batches of 4"
    assert columns.split() == ["images/s", "tf.data", "threads", "processes"]
    assert [row.split()[0] for row in rows] == ["tensorflow", "jax"]
    assert all(min(map(float, row.replace(",", "").split()[1:])) > 0 for row in rows)


@pytest.mark.thorough
@pytest.mark.slow
def test_the_start_up_with_as_many_images_as_stanford_online_products():
    [line] = benchmark_pipeline.measure_startup()
    start, batch = line.split("; ")
    found = re.fullmatch(r"start-up with 120,053 images: (.*) s, (.*) MB", start)
    assert float(found[1]) > 0 and 20 < float(found[2]) < 200
    found = re.fullmatch("a balanced batch of 22,634 classes: (.*) ms", batch)
    assert float(found[1]) > 0


def test_the_pillow_pipeline_follows_torchvision():
    """Places and sizes of its crops, and its colours but for Pillow's rounding to whole levels."""
    limits = (0.16, 1.0), (0.75, 4 / 3)
    draws = {"ours": random.Random(0), "model": np.random.default_rng(0)}
    ours = [benchmark_pil.area_crop(320, 240, draws["ours"], *limits) for _ in range(2000)]
    model = [
        torchvision_model.area_window(240, 320, draws["model"].random(22), *limits)
        for _ in range(2000)
    ]
    for column, of_model in zip(range(4), (1, 0, 3, 2)):
        samples = np.array(ours)[:, column], np.array(model)[:, of_model]
        assert stats.ks_2samp(*samples).pvalue > 1e-3
    pixels = np.random.default_rng(0).integers(0, 256, (6, 7, 3), dtype=np.uint8)
    for kind in range(4):
        jitter = [0.3 * (kind == number) for number in range(4)]
        rng = random.Random(kind)
        seen = benchmark_pil.jittered(Image.fromarray(pixels), rng, jitter)
        rng = random.Random(kind)
        rng.sample(range(4), 4)
        uniform = [rng.random()] * 4 + [0, 1, 2, 3]
        expected = torchvision_model.jittered(pixels, uniform, jitter)
        # Pillow keeps the hue in 256 steps.
        np.testing.assert_allclose(np.asarray(seen), expected, atol=12 if kind == 3 else 1.5)


@pytest.mark.parametrize("crop", ["area", "fixed", "none"])
def test_the_pillow_pipeline_without_chance_is_the_evaluation(crop):
    pixels = np.asarray(Image.radial_gradient("L").resize((64, 48)).convert("RGB"))
    transform = benchmark_pil.PilTransform(
        image_size=32, resize=(32, 32), crop=crop, area=(1.0, 1.0), aspect=(4 / 3, 4 / 3),
        flip=False, jitter=(0, 0, 0, 0),
    )  # fmt: skip
    image = benchmark_pil.transformed(Image.fromarray(pixels), random.Random(0), transform)
    assert image.dtype == np.float32
    np.testing.assert_allclose(image, EvaluationTransform(32, (32, 32))(pixels), atol=1.5)


@pytest.mark.thorough
@pytest.mark.slow
def test_thresholds_of_half_of_the_classes_are_tried_on_the_others(tmp_path, capsys):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(40), 6)
    # Those of the last classes lie close together: calibrated without them it is too low.
    centers = rng.normal(size=(40, 8)) + 6 * (np.arange(40) > 36)[:, None]
    np.savez(tmp_path / "z.npz", embeddings=centers[labels] + 0.1, labels=labels)
    arguments = ["benchmark", "verification", f"--embeddings={tmp_path / 'z.npz'}"]
    assert run_command(benchmark.main, arguments) == 0
    first, _, *rows = capsys.readouterr().out.splitlines()
    assert first == "240 images of 40 classes, 20 halvings of the classes, cosine"
    for row, rate in zip(rows, ("0.01", "0.001"), strict=True):
        asked, median, least, most, within, _, halves = row.split()
        assert (asked, halves) == (rate, "20") and int(within) <= 20
        assert float(least) <= float(median) <= float(most)
    assert float(rows[0].split()[3]) > 0.01


def test_no_loss_over_pairs_is_left_out():
    of_classes = {
        name for name, loss in losses.LOSSES.items() if issubclass(loss, losses.ProxyLoss)
    }
    assert set(losses.LOSSES) - {"ce"} - of_classes <= set(benchmark_loss.names())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speed"], r"name a benchmark first: losses, .*\. Received: speed"),
        (["--sizes=8", "losses"], "name a benchmark first: .*Received: --sizes=8 losses"),
        ([], "Received: nothing"),
        (["training", "--losses=contrastive"], "training takes no flags. Received: --losses="),
        (
            ["losses", "--size=sop"],
            "losses takes --losses, .*--xla. Received: --size=sop",
        ),
        (
            ["losses", "contrastive"],
            "losses takes --losses, .*--xla. Received: contrastive",
        ),
        (["retrieval", "--size=huge"], "size.*huge"),
        (["pipeline", "--epochs=3"], "say what a batch is: .*sampler.* Received: --epochs=3"),
        (["pipeline", "--skip_bad_images"], "Received: --skip_bad_images"),
        (["pipeline", "--sizes=8"], "Received: --sizes=8"),
        (
            ["pipeline", "--flagfile=bird.flags"],
            "Received: flagfile='bird.flags'",
        ),
        (
            ["pipeline", "--flagfile=glyphs.flags"],
            "of image files.* Received: dataset=glyphs",
        ),
        (["pipeline"], "data_dir"),
        (["feeding", "--epochs=3"], "feeding takes .*backends.* Received: --epochs=3"),
        (["feeding", "--backends=numpy"], "backends must be of .*Received: backends=numpy"),
        (["losses", "--losses=hinge"], "losses must be of .*hinge"),
        (["losses", "--sizes=many"], "sizes must be whole numbers"),
        (["losses", "--sizes=1"], "sizes must be at least 2"),
        (["gpu", "--sizes=0"], "sizes must be at least 2"),
        (["gpu"], "on JAX: KERAS_BACKEND=jax .*Received: KERAS_BACKEND="),
    ],
)
def test_bad_input(arguments, message, capsys):
    assert run_command(benchmark.main, ["benchmark", *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)
