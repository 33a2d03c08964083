"""Flags that need or exclude other flags."""

import pytest

from experiments.options import RunOptions, UsageError, parse
from experiments.options.together import check_together

CACHED = ["--cache_features", "--freeze_backbone"]
REFUSED = [
    (["--freeze_backbone", "--lora_rank=2"], "freeze_backbone must not be set with --lora_rank"),
    (["--freeze_backbone", "--head_epochs=2"], "freeze_backbone .*not .*--head_epochs"),
    (["--freeze_backbone", "--rematerialize"], "freeze_backbone .*not .*--rematerialize"),
    (["--lora_rank=2", "--layer_decay=0.5"], "lora_rank must not be set with --layer_decay"),
    (["--lora_layers=query"], "lora_layers needs --lora_rank=.* Received: lora_layers=query"),
    (["--cache_features"], "cache_features needs --freeze_backbone. .*cache_features=true"),
    ([*CACHED, "--levels=stage1"], "cache_features must not be set with --levels"),
    ([*CACHED, "--strategy=multi_worker"], "cache_features .*not .*--strategy=multi_worker"),
    (["--cached_views=2"], "cached_views needs --cache_features. Received: cached_views=2"),
    (["--cache_dir=x", "--freeze_backbone"], "cache_dir needs --cache_features"),
    (["--chunk_statistics"], "chunk_statistics needs --chunk_size=..."),
    (["--strategy=auto", "--logical_devices=2"], "logical_devices needs --strategy=mirrored"),
    (
        ["--classifier_steps=3"],
        "classifier_steps needs --objective=.*classifier_steps=3",
    ),
    (["--objective=alternating", "--also=tcm"], "objective must not be set with --also"),
    (["--workers=2"], "workers needs --engine=ray. Received: workers=2"),
    (["--matryoshka=4,8", "--levels=a,b"], "matryoshka must not be set with --levels"),
    (["--patience=2"], "patience needs --fold=.* Received: patience=2"),
    (["--measured_in=x"], "measured_in needs --class_split=every_class"),
    (["--refit", "--class_split=every_class"], "refit must not be set with --class_split=every"),
    (["--refit", "--strategy=multi_worker"], "refit must not be set with --strategy=multi_worker"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_conflicting_flags(words, message):
    with pytest.raises(UsageError, match=message):
        check_together(parse(RunOptions, ["run", *words]))


def test_flags_that_fit_each_other():
    for words in ([], CACHED, ["--nofreeze_backbone", "--lora_rank=2"], ["--workers=none"]):
        check_together(parse(RunOptions, ["run", *words]))
