"""The benchmark runs and says what it takes; what it measures is not a test."""

from experiments import benchmark
from experiments.command_line import run_command


def test_the_losses_benchmark_prints_every_row(monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "SIZES", (8, 16))
    monkeypatch.setattr(benchmark, "SECONDS", 0.0)
    assert run_command(benchmark.main, ["benchmark", "losses"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        [name, size]
        for size in ("8", "16")
        for name in ("(floor)", "contrastive", "multi_similarity")
    ]


def test_an_unknown_benchmark(capsys):
    assert run_command(benchmark.main, ["benchmark", "speed"]) == 2
    assert "name a benchmark: losses. Received: speed" in capsys.readouterr().err
