"""Flags that need or exclude other flags."""

import pytest

from experiments.options import RunOptions, UsageError, parse
from experiments.options.together import check_together

CACHED = ["--cache_features", "--freeze_backbone"]
REFUSED = [
    (["--freeze_backbone", "--lora_rank=2"], "freeze_backbone must be false with --lora_rank"),
    (["--freeze_backbone", "--head_epochs=2"], "freeze_backbone .* with --head_epochs"),
    (["--freeze_backbone", "--rematerialize"], "freeze_backbone .* with --rematerialize"),
    (["--lora_rank=2", "--layer_decay=0.5"], "lora_rank must be unset with --layer_decay"),
    (["--lora_layers=query"], "lora_layers must be unset without --lora_rank=.*query"),
    (["--cache_features"], "cache_features must be false without --freeze_backbone.*true"),
    ([*CACHED, "--levels=stage1"], "cache_features must be false with --levels"),
    ([*CACHED, "--strategy=multi_worker"], "cache_features .* with --strategy=multi_worker"),
    (["--cached_views=2"], "cached_views must be unset without --cache_features.*2"),
    (["--cache_dir=x", "--freeze_backbone"], "cache_dir must be unset without --cache_features"),
    (["--chunk_statistics"], "chunk_statistics must be false without --chunk_size=..."),
    (["--strategy=auto", "--logical_devices=2"], "logical_devices .*without --strategy=mirrored"),
    (["--classifier_steps=3"], "classifier_steps must be 500 without --objective=.*3"),
    (["--also=tcm", "--matryoshka=4,8"], "also must be unset with --matryoshka.*tcm"),
    ([*CACHED, "--training_size=192"], "training_size must be unset with --cache_features.*192"),
    (["--objective=alternating", "--also=tcm"], "objective must be unset with --also"),
    (["--workers=2"], "workers must be unset without --engine=ray.*2"),
    (["--matryoshka=4,8", "--levels=a,b"], "matryoshka must be unset with --levels"),
    (["--patience=2"], "patience must be 0 without --fold=.*2"),
    (["--measured_in=x"], "measured_in must be unset without --class_split=every_class"),
    (["--refit", "--class_split=every_class"], "refit must be false with --class_split=every"),
    (["--refit", "--strategy=multi_worker"], "refit must be false with --strategy=multi_worker"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_conflicting_flags(words, message):
    with pytest.raises(UsageError, match=message):
        check_together(parse(RunOptions, ["run", *words]))


def test_flags_that_fit_each_other():
    for words in ([], CACHED, ["--nofreeze_backbone", "--lora_rank=2"], ["--workers=none"]):
        check_together(parse(RunOptions, ["run", *words]))
