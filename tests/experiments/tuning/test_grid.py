"""Grids of settings, and the printed scores next to ours."""

import pytest

from experiments import study
from experiments.options.command_line import run_command
from experiments.options.errors import UsageError
from experiments.recipes import find_recipe
from experiments.tuning.grid import printed_scores, printed_table, read_grid


def test_a_grid_is_every_combination_of_values():
    found = read_grid(["scale=1,16", "seed=3,4"])
    assert [setting.name for setting in found] == [
        "scale=1 seed=3", "scale=1 seed=4", "scale=16 seed=3", "scale=16 seed=4",
    ]  # fmt: skip
    assert found[1].words == ["--scale=1", "--seed=4"]
    assert [setting.name for setting in read_grid([])] == [""]


@pytest.mark.parametrize("word", ["scale", "scale=", "no_flag=1", "scale=1,1"])
def test_mistakes_of_a_grid(word):
    with pytest.raises(UsageError, match="^grid must .*, but got"):
        read_grid([word])


def test_ice_has_the_printed_scores_of_tables_2_4_5_and_6():
    recipe = find_recipe("sop_ice.flags")
    words = {"scale": "1,16,32,48,64,80", "images_per_class": "2,3,4,5"}
    words |= {"batch_size": "180,160,140,120,100", "embedding_size": "64,128,256,512"}
    for name, values in words.items():
        settings = read_grid([f"{name}={values}"])
        found = printed_scores([recipe], settings)
        assert len(found) == len(values.split(","))
        assert all(scores.keys() == {"R@1", "R@10", "R@100"} for scores in found.values())
    found = printed_scores([recipe], read_grid(["scale=16,2"]))
    assert found == {"sop_ice, scale=16": {"R@1": 71.0, "R@10": 85.6, "R@100": 93.8}}


@pytest.mark.parametrize("dataset", ["cub", "cars", "sop"])
@pytest.mark.parametrize("loss", ["ce", "triplet", "lifted_structure", "n_pairs", "proxy_nca"])
def test_baselines_of_ice_have_the_printed_scores_of_table_3(dataset, loss):
    recipe = find_recipe(f"{dataset}_bn_{loss}.flags")
    assert "R@1" in printed_scores([recipe], read_grid([]))[f"{dataset}_bn_{loss}"]


def test_printed_scores_are_next_to_the_means_of_ours():
    results = {"a, scale=1": [{"scores": {"recall@1/cosine": 0.5}}] * 2, "a, scale=2": [{}, {}]}
    head, first, second = printed_table(results, {"a, scale=1": {"R@1": 42.0, "NMI": 60.0}})
    assert head == ["setting", "R@1", "R@1, paper", "NMI", "NMI, paper"]
    assert first == ["a, scale=1", "50.0 ± 0.0", "42.0", "–", "60.0"]
    assert second == ["a, scale=2", "–", "–", "–", "–"]
    assert printed_table(results, {}) == []


def test_a_grid_and_a_search_are_refused_together(tmp_path, capsys):
    words = ["study", "--recipes=glyphs_ice.flags", "--grid=scale=1,2", "--search=scale=1:2"]
    assert run_command(study.main, [*words, f"--output_dir={tmp_path}"]) == 2
    assert "grid must not be given with search" in capsys.readouterr().err
