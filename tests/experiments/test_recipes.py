"""Recipes: hyperparameters and printed scores of the papers, and two steps of each recipe."""

import json
import math

import numpy as np
import pytest
import tiers
from hub_presets import preset
from official_layouts import write_cars_devkit, write_cub, write_groceries, write_inshop, write_sop
from photo_search import picture
from tiny_run import command, history

from experiments import recipes
from experiments.evaluation.measurement import PAPER
from experiments.evaluation.result import keyed
from experiments.options import RunOptions, declarations, parse, resolved
from experiments.options.declared import value_of
from experiments.options.loss_flags import flags_of_losses
from keras_dml import losses

# Hyperparameters from the papers and the authors' code. Other hyperparameters are left out.
JITTERLESS = {"jitter": ("0", "0", "0", "0"), "flip": True}
CROSS_ENTROPY = {
    "image_size": 224, "crop": "area", "crop_area": ("0.16", "1"), "flip": True,
    "sampler": "random", "batch_size": 128, "backbone": "resnet50_v1_5", "weights": "imagenet",
    "frozen_batch_norm": None, "embedding_size": None, "dropout": 0.5, "loss": "ce",
    "label_smoothing": 0.1, "optimizer": "sgd", "weight_decay": 5e-4, "decayed": "kernels",
    "pretrained_factor": 1.0, "schedule": "warm_cosine", "warmup_steps": 100, "pooling": "average",
}  # fmt: skip
SMOOTH = {"momentum": 0.0, "nesterov": False}
LARGE = CROSS_ENTROPY | {
    "resize": "256x256", "crop_aspect": ("0.75", "1.3333333"), "jitter": ("0", "0", "0", "0"),
    "feature_batch_norm": True, "learning_rate": 0.003, "momentum": 0.99, "nesterov": True,
    "velocity": "torch", "epochs": 100,
}  # fmt: skip
ICE = JITTERLESS | {
    "image_size": 227, "resize": "256x256", "crop": "fixed", "sampler": "balanced",
    "batch_size": 60, "images_per_class": 10, "backbone": "bn_inception", "weights": "imagenet",
    "embedding_size": 512, "loss": "ice", "scale": 64.0, "optimizer": "sgd", "momentum": 0.8,
    "velocity": "keras", "learning_rate": 0.01, "pretrained_factor": 0.1, "weight_decay": 1e-5,
    "epochs": 20, "steps_per_epoch": 200,
}  # fmt: skip
RANKMI = JITTERLESS | {
    "sampler": "balanced", "batch_size": 120, "images_per_class": 5, "backbone": "resnet50_v1_5",
    "weights": "imagenet", "embedding_size": 128, "loss": "rankmi", "statistics_hidden": 128,
    "statistics_depth": 2, "statistics_slope": 0.1, "statistics_residual": True, "k": 1,
    "beta": 1.0, "alpha": 0.2, "sampling": "distance_weighted", "optimizer": "adam",
    "learning_rate": 1e-3, "statistics_learning_rate": None, "pretrained_factor": 0.01,
    "weight_decay": 1e-4, "decayed": "all", "recall_at": ("1", "2", "4", "8"),
}  # fmt: skip
REALITY_CHECK = JITTERLESS | {
    "dataset": "cub", "image_size": 227, "resize": "256", "crop": "area",
    "crop_area": ("0.16", "1"), "sampler": "balanced", "batch_size": 32, "images_per_class": 4,
    "backbone": "bn_inception", "weights": "imagenet", "frozen_batch_norm": True,
    "embedding_size": 128, "optimizer": "rmsprop", "learning_rate": 1e-6, "schedule": "constant",
    "patience": 9, "eval_every": 1,
}  # fmt: skip
CLASSIFIED = REALITY_CHECK | {"images_per_class": 1}
LEVELS = ("inception_3c_output", "inception_4e_output", "inception_5b_output")
SMALL_KS, LARGE_KS = ("1", "2", "4", "8", "16", "32"), ("1", "10", "100", "1000")
SOP_ICE = ICE | {
    "dataset": "sop", "batch_size": 180, "images_per_class": 2, "steps_per_epoch": 1000,
    "recall_at": LARGE_KS,
}  # fmt: skip
NUMBERS = {
    "cub": CROSS_ENTROPY | SMOOTH | {
        "dataset": "cub", "resize": "256", "crop_aspect": ("0.75", "1.3333333"),
        "jitter": ("0.25", "0.25", "0.25", "0"), "feature_batch_norm": False,
        "learning_rate": 0.02, "epochs": 30, "recall_at": SMALL_KS,
    },
    "cars": CROSS_ENTROPY | SMOOTH | {
        "dataset": "cars", "resize": "256x256", "crop_aspect": ("1", "1"),
        "jitter": ("0.3", "0.3", "0.3", "0.1"), "feature_batch_norm": True,
        "learning_rate": 0.05, "epochs": 100, "recall_at": SMALL_KS,
    },
    "sop": LARGE | {"dataset": "sop", "recall_at": LARGE_KS},
    "inshop": LARGE | {"dataset": "inshop", "recall_at": ("1", "10", "20", "30", "40", "50")},
    "cub_ice": ICE | {"dataset": "cub"},
    "cars_ice": ICE | {"dataset": "cars"},
    "sop_ice": SOP_ICE,
    "cub_ice_lmh": ICE | {"dataset": "cub", "levels": LEVELS},
    "cars_ice_lmh": ICE | {"dataset": "cars", "levels": LEVELS},
    "sop_ice_lmh": SOP_ICE | {"levels": LEVELS},
    "cub_rankmi": RANKMI | {"dataset": "cub"},
    "cars_rankmi": RANKMI | {"dataset": "cars"},
    "sop_rankmi": RANKMI | {"dataset": "sop", "images_per_class": 2, "recall_at": LARGE_KS},
}  # fmt: skip
MNIST = {
    "dataset": "tfds:mnist", "filters": ("32", "64"), "embedding_size": 100, "optimizer": "adam",
    "batch_size": 128, "learning_rate": 1e-4, "weight_decay": 1e-4, "schedule": "warm_cosine",
    "warmup_steps": 1,
}  # fmt: skip
PAIRS = (
    "pce", "spce", "center", "contrastive", "snca", "multi_similarity", "triplet", "quadruplet",
    "fastap", "lifted_structure", "n_pairs",
)  # fmt: skip
NUMBERS |= {
    "cub_multi_similarity": {"dataset": "cub"},
    "mnist_ce": MNIST | {"loss": "ce", "label_smoothing": 0.0},
    "mnist_spce": MNIST | {"loss": "spce", "label_smoothing": None},
    "reality_check": REALITY_CHECK,
    "reality_check_multi_similarity": REALITY_CHECK | {"alpha": 0.01, "beta": 50.6, "base": 0.56},
    "reality_check_contrastive": REALITY_CHECK | {
        "loss": "contrastive", "margin": 0.3841, "positive_margin": -0.2, "power": 1,
        "normalize": True,
    },
    "reality_check_triplet": REALITY_CHECK | {"loss": "triplet", "margin": 0.0961},
    "reality_check_nt_xent": REALITY_CHECK | {"loss": "nt_xent", "temperature": 0.0091},
    "reality_check_fastap": REALITY_CHECK | {"loss": "fastap", "num_bins": 17},
    "reality_check_cosface": CLASSIFIED | {
        "loss": "cosface", "margin": 0.6182, "scale": 100.0, "proxies_factor": 2530.0,
    },
    "reality_check_arcface": CLASSIFIED | {
        "loss": "arcface", "margin": round(math.radians(23.22), 4), "scale": 100.0,
        "proxies_factor": 5130.0,
    },
    "reality_check_norm_softmax": CLASSIFIED | {
        "loss": "norm_softmax", "temperature": 0.1087, "proxies_factor": 4460.0,
    },
}  # fmt: skip


NAMES = [name.removesuffix(".flags") for name in recipes.names()]
BENCHMARKS = ("cub", "cars", "sop", "inshop", "reality")
GROCERIES = [name for name in NAMES if name.startswith(("groceries", "cached"))]
CACHED = [name for name in NAMES if name.startswith("cached_groceries_")]


def parsed(name):
    return parse(RunOptions, ["run", f"--flagfile={name}.flags"])


def scores_of(name):
    return recipes.paper_scores(recipes.find_recipe(f"{name}.flags"))


@pytest.fixture(scope="module")
def data_dirs(tmp_path_factory):
    """Each dataset in its official layout, with enough classes and images for its recipes."""
    root = tmp_path_factory.mktemp("data")
    train, test = np.arange(1, 25).repeat(10).tolist(), [101, 102, 103] * 3
    pairs, tested = np.arange(1, 91).repeat(2).tolist(), np.arange(91, 95).repeat(3).tolist()
    folders = {
        # Enough classes for batches of 32 classes, also without one of four folds.
        "cub": write_cub(root / "cub", np.arange(1, 45).repeat(10).tolist() + test),
        "cars": write_cars_devkit(root / "cars", train + test, [1, 104, 104]),
        "sop": write_sop(root / "sop", pairs, tested),
        "inshop": write_inshop(root / "inshop", pairs, range(91, 95), tested),
        "groceries": write_groceries(
            root / "groceries", np.arange(30).repeat(4).tolist(), [41, 42], [41, 42, 43] * 2
        ),
    }
    for number, path in enumerate(sorted(root.rglob("*.[jJ][pP][gG]"))):
        picture(number % 20, (50, 40)).save(path)
    return folders


@pytest.mark.parametrize("name", NUMBERS)
def test_hyperparameters_equal_the_papers(name):
    options = parsed(name)
    given = {flag: value_of(options, flag) for flag in NUMBERS[name]}
    assert given == NUMBERS[name]


# SPCE needs long embeddings or a feature batch norm. PCE also needs more images than dimensions.
NEEDED = {
    "spce": {"feature_batch_norm"},
    "pce": {"feature_batch_norm", "embedding_size", "batch_size", "images_per_class"},
}


def test_only_recipes_of_papers_choose_the_epoch_by_test_images():
    """The CUB recipes that replace only the loss also choose the epoch by test images.

    The rows of ICE's Table 3 all keep the last epoch.
    """
    of_papers = {name for name in NAMES if scores_of(name) and "_ice" not in name}
    choosing = {name for name in NAMES if parsed(name).keep == "best_test"}
    assert choosing == of_papers | {f"cub_{loss}" for loss in PAIRS}


@pytest.mark.parametrize(
    ("shared", "names", "own"),
    [
        ("cub_multi_similarity", [f"cub_{loss}" for loss in PAIRS], set()),
        # The classifier has a dropout, and losses have their own learning rates.
        ("cached_groceries", CACHED, {"learning_rate", "dropout"}),
    ],
)
def test_recipes_of_a_series_differ_only_in_flags_of_the_loss(shared, names, own):
    own = own | {"loss", "center_weight", "flagfile", *(flag.name for flag in flags_of_losses())}
    settings = parsed(shared)
    for name in names:
        options = parsed(name)
        assert name.endswith(f"_{options.loss}")
        for flag in set(declarations(RunOptions)) - own - NEEDED.get(options.loss, set()):
            assert value_of(options, flag) == value_of(settings, flag), (name, flag)


@pytest.mark.parametrize("name", ["glyphs_pce", "cub_pce", "cached_groceries_pce"])
def test_pce_has_more_images_than_dimensions_and_computes_lambda(name):
    options = parsed(name)
    assert options.batch_size >= 3 * options.embedding_size
    assert "lam" not in options.loss_arguments


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.slow
def test_lambda_of_pce_is_above_its_floor_in_the_first_steps_on_glyphs(tmp_path):
    words = ["--flagfile=glyphs_pce.flags", "--epochs=1", "--steps_per_epoch=5"]
    words += ["--test_classes=4", "--recall_at=1", f"--output_dir={tmp_path / 'run'}"]
    assert command(*words) == 0
    [row] = history(tmp_path / "run")
    assert row["train/lambda_of_batch"] > 1.5 * losses.PairwiseCrossEntropyLoss().lam_floor


@pytest.mark.parametrize(
    "name", ["glyphs_spce", "cub_spce", "digits_spce", "cached_groceries_spce", "groceries_spce"]
)
def test_spce_has_long_embeddings_or_a_feature_batch_norm(name):
    """On unit vectors, the loss of SPCE stays within 0.1 of log K."""
    options = parsed(name)
    assert options.levels is None  # their embeddings have unit length
    assert options.feature_batch_norm or (options.embedding_size or 1_280) >= 100


SMALL = ["--weights=none", "--image_size=32", "--resize=40x36", "--epochs=1"]
SMALL += ["--steps_per_epoch=2", "--recall_at=1,2"]


def two_steps(name, data_dirs, folder, *more, own_backbone=False):
    """Run two steps of a recipe on small images, with a small backbone."""
    options = parsed(name)
    small = [] if own_backbone else ["--backbone=small_convnet", "--filters=4,8,8"]
    if options.backbone.startswith("hub:"):
        pytest.importorskip("keras_hub")
        preset("dinov2", folder.parent / "preset")
        small = [f"--backbone=hub:{folder.parent / 'preset'}", "--batch_size=8"]
        # Embeddings of single colors are so close that bfloat16 changes their order.
        small += ["--images_per_class=2", "--nomixed_precision"]
    if options.levels is not None and not own_backbone:
        small.append("--levels=stage1_conv2_relu,stage2_conv2_relu,stage3_conv2_relu")
    if options.cache_features:
        small += [f"--cache_dir={folder.parent / 'features'}", "--cached_views=1"]
    if options.patience:
        small.append("--fold=1/4")
    words = [f"--flagfile={name}.flags", *SMALL, f"--data_dir={data_dirs[options.dataset]}"]
    assert command(*words, *small, *more, f"--output_dir={folder}") == 0
    result = json.loads((folder / "result.json").read_text())
    [row] = history(folder)
    assert row["step"] == 2
    assert result["recall"]["embedding, cosine"]["1"] == row["test/recall@1/cosine"]
    page = (folder / "report.html").read_text()
    assert (f"{PAPER}, cosine" in page) == bool(scores_of(name))


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.slow
@tiers.parametrize(
    "name",
    [*GROCERIES, *(name for name in NAMES if name.startswith(BENCHMARKS))],
    ["sop_ice_lmh"],
    pytest.mark.thorough,
)
def test_two_steps_of_every_recipe(name, data_dirs, tmp_path):
    """Use a small backbone, because tracing ResNet-50 takes half a minute."""
    more = ["--crop_to_box", "--train_classes=24"] if name == "cars_rankmi" else []
    two_steps(name, data_dirs, tmp_path / "run", *more)


@tiers.thorough
@pytest.mark.parametrize("name", ["cub", "sop_rankmi", "cub_ice_lmh"])
def test_two_steps_with_the_backbone_of_a_recipe(name, data_dirs, tmp_path):
    two_steps(name, data_dirs, tmp_path / "run", own_backbone=True)


def test_groceries_recipes_are_scored_only_at_the_end():
    """Otherwise, the test classes would choose the epoch that they score."""
    shared = parsed("cached_groceries")
    assert shared.freeze_backbone and shared.cache_features
    for name in GROCERIES:
        options = parsed(name)
        assert options.eval_every >= options.epochs, name
        assert options.weights == "packaged", name
        # Losses are compared at one image size. The best recipe uses larger images.
        assert options.image_size == (320 if name == "groceries" else 224), name
        assert options.training_size == (256 if name == "groceries" else None), name
        assert options.resize == f"{options.image_size}x{options.image_size}", name


def test_recipes_list_the_printed_scores():
    """A recipe that includes another recipe, such as `cub_center.flags`, has no scores."""
    rows, clusterings = {}, {}
    for name in NAMES:
        found = scores_of(name)
        if "nmi" in found:
            clusterings[name] = found["nmi"]
        for each in keyed(found, PAPER):
            if each.distance is not None:
                rows.setdefault((name, each.distance), {})[each.name] = each.value
    # As printed in the papers.
    l2 = [0.808, 0.912, 0.957, 0.981]
    assert rows["sop", "l2"] == dict(zip([f"recall@{k}" for k in (1, 10, 100, 1000)], l2))
    cosine = [0.906, 0.980, 0.986, 0.989, 0.991, 0.992]
    assert list(rows["inshop", "cosine"].values()) == cosine
    with_l2 = {name for name, row in rows if row == "l2"}
    assert len(rows) == 17 and with_l2 == {"cub", "cars", "sop", "inshop"}
    assert clusterings == {"cub_rankmi": 0.713, "cars_rankmi": 0.694, "sop_rankmi": 0.905}


def test_comments_without_scores(tmp_path):
    lines = ["# Paper: to be written, R@1 high, NMI 71", "# Paper: R@1 0.7", "# Paper, l2: NMI 0.7"]
    (tmp_path / "mine.flags").write_text("\n".join([*lines, "--seed=1"]))
    assert recipes.paper_scores(tmp_path / "mine.flags") == {}


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_says_what_it_is_and_is_a_run(name, tmp_path):
    text = recipes.find_recipe(f"{name}.flags").read_text()
    head = " ".join(line for line in text.splitlines() if line.startswith("#"))
    _, _, expected = head.partition("# Expected: ")
    assert text.startswith("# ") and f"--flagfile={name}.flags" in head and expected
    options = parsed(name)
    assert options.name == name
    benchmark = options.dataset in BENCHMARKS
    assert ("not run here" in expected) == benchmark and not (benchmark and "minutes" in expected)
    # The flags of the run are a flag file for the same options.
    (tmp_path / "flags.txt").write_text(resolved(options))
    again = parse(RunOptions, ["run", f"--flagfile={tmp_path / 'flags.txt'}"])
    assert resolved(again) == resolved(options)
    assert again.loss_arguments == options.loss_arguments
    for choice in ("sampler", "optimizer", "schedule"):
        of_run, of_file = (getattr(each, f"{choice}_arguments") for each in (options, again))
        assert of_run.items() <= of_file.items()
