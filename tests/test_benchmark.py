"""The benchmark runs and says what it takes; what it measures is not a test."""

import re

import pytest

from experiments import benchmark, benchmark_loss, benchmark_training
from experiments.command_line import run_command
from keras_dml import losses


def test_the_losses_benchmark_prints_a_row_for_each_size(capfd):
    arguments = ["benchmark", "losses", "--losses=contrastive", "--sizes=16,8"]
    assert run_command(benchmark.main, arguments) == 0
    rows = [line.split() for line in capfd.readouterr().out.splitlines()[1:]]
    assert [row[:2] for row in rows] == [["contrastive", "8"], ["contrastive", "16"]]
    assert all(float(row[2]) > 0 and float(row[3]) > 0 for row in rows)


@pytest.mark.parametrize("name", benchmark_loss.names())
def test_every_loss_can_be_measured(name, monkeypatch, capsys):
    monkeypatch.setattr(benchmark_loss, "SECONDS", 0.0)
    benchmark_loss.main(name, [16])
    assert '"n": 16' in capsys.readouterr().out


def test_the_training_benchmark_prints_three_steps_beside_the_first(monkeypatch, capsys):
    monkeypatch.setattr(benchmark_training, "SECONDS", 0.0)
    monkeypatch.setattr(benchmark_training, "BATCH", 20)
    monkeypatch.setattr(benchmark_training, "BACKBONES", {"small_convnet": 8})
    assert run_command(benchmark.main, ["benchmark", "training"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[2] for row in rows] == ["contrastive", "rankmi,", "rankmi,"]
    assert float(rows[0][-1]) == 1.0
    assert all(float(row[-1]) > 0 for row in rows)


def test_no_loss_over_pairs_is_left_out():
    assert set(losses.LOSSES) - {"ce"} <= set(benchmark_loss.names())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speed"], "name a benchmark: losses or training. Received: speed"),
        ([], "Received: nothing"),
        (["losses", "--losses=hinge"], "losses must be of .*hinge"),
        (["losses", "--sizes=many"], "sizes must be whole numbers"),
        (["losses", "--sizes=1"], "sizes must be at least 2"),
    ],
)
def test_bad_input(arguments, message, capsys):
    assert run_command(benchmark.main, ["benchmark", *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)
