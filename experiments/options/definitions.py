"""The runner's flags, in the groups that the help shows them in."""

from absl import flags

FLAGS = flags.FlagValues()
GROUPS: dict[str, list[str]] = {}

_define = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    list: flags.DEFINE_list,
}


def _flag(group, kind, name, default, text, **limits):
    GROUPS.setdefault(group, []).append(name)
    _define[kind](name, default, text, flag_values=FLAGS, **limits)


def _choice(group, name, default, choices, text):
    GROUPS.setdefault(group, []).append(name)
    flags.DEFINE_enum(name, default, choices, text, flag_values=FLAGS)


_flag(
    "Data", str, "dataset", None,
    "glyphs (built in) | digits (built in; tests the classes it trains on) | cub | cars | sop | "
    "inshop | folder (one folder a class) | tfds:NAME or tfds:NAME:CONFIG (tensorflow-datasets).",
)  # fmt: skip
_flag(
    "Data", str, "data_dir", None,
    "Folder that holds the dataset's files. tfds: default ~/tensorflow_datasets.",
)  # fmt: skip
_flag(
    "Data", int, "train_classes", None,
    "The first N classes train, those behind them test. Default: the dataset's own split; "
    "for a folder, half of the classes. tfds: pools the set's own splits first.", lower_bound=1,
)  # fmt: skip
_flag(
    "Data", int, "test_classes", None,
    "How many classes test. Default: all that do not train.", lower_bound=1,
)  # fmt: skip
_flag(
    "Data", bool, "crop_to_box", False,
    "cub, cars: cut every image down to its bounding box first; most papers do not.",
)  # fmt: skip
_flag(
    "Data", bool, "skip_bad_images", False,
    "Before training, try to decode every image; leave out and list the files that are no images.",
)  # fmt: skip

_flag("Images", int, "image_size", 224, "Height and width that the model sees.", lower_bound=8)
_flag(
    "Images", str, "resize", None,
    "Before the crop: N (shortest side) or HxW (exactly). Default: shortest side = image_size.",
)  # fmt: skip
_choice(
    "Images", "crop", "area", ["area", "fixed", "none"],
    "Training crop: area = random area and aspect; fixed = image_size pixels at a random place; "
    "none = the centre.",
)  # fmt: skip
_flag("Images", list, "crop_area", ["0.16", "1"], "Share of the image that an area crop covers.")
_flag("Images", list, "crop_aspect", ["0.75", "1.3333"], "Width over height of an area crop.")
_flag("Images", bool, "flip", True, "Mirror half of the training images.")
_flag(
    "Images", list, "jitter", ["0", "0", "0", "0"],
    "Strength of brightness, contrast, saturation and hue changes.",
)  # fmt: skip

_choice(
    "Sampling", "sampler", "random", ["random", "balanced"],
    "random = each image once an epoch; balanced = batch_size/images_per_class classes a batch.",
)  # fmt: skip
_flag("Sampling", int, "batch_size", 128, "Images in a batch, over all devices.", lower_bound=1)
_flag("Sampling", int, "images_per_class", 4, "Images of each class in a balanced batch.",
      lower_bound=1)  # fmt: skip

_flag(
    "Model", str, "backbone", "resnet50",
    "small_convnet, bn_inception, resnet50_v1_5, or any keras.applications model.",
)  # fmt: skip
_flag(
    "Model", list, "filters", None,
    "small_convnet: widths of its stages, two convolutions each. Default: 32,64,128.",
)  # fmt: skip
_flag(
    "Model", str, "weights", "imagenet",
    "imagenet | none | a weights file of the backbone; bn_inception, resnet50_v1_5: also their "
    "public PyTorch checkpoint, .pth or .npz.",
)  # fmt: skip
_flag(
    "Model", bool, "frozen_batch_norm", None,
    "Backbone batch norm keeps its stored statistics in training. Default: with trained weights.",
)  # fmt: skip
_choice("Model", "pooling", "average", ["average", "max"], "Pooling of the last feature maps.")
_flag(
    "Model", bool, "feature_batch_norm", False,
    "Batch norm without scale and offset on the pooled features.",
)  # fmt: skip
_flag("Model", int, "embedding_size", None,
      "Size of a dense projection. Default: none, the pooled features are the embedding.",
      lower_bound=1)  # fmt: skip
_flag(
    "Model", list, "levels", None,
    "Layers of the backbone, each with a pooling and a projection of its own; the embedding is all "
    "of them in a row. Losses over pairs are summed over the levels. Default: the last layer.",
)  # fmt: skip
_flag(
    "Model", float, "dropout", 0.0, "Dropout before the classifier (ce, center).", lower_bound=0.0
)

_flag(
    "Loss", str, "loss", "multi_similarity",
    "ce | pce | spce | center | contrastive | snca | multi_similarity | triplet | quadruplet | "
    "fastap | lifted_structure | n_pairs | ice | rankmi.",
)  # fmt: skip
LOSS_ARGUMENTS = (
    "epsilon", "margin", "second_margin", "normalize", "pair_reduction", "mining", "average",
    "alpha", "beta", "base", "sigma", "scale", "reweight", "anchor_gradient", "num_bins", "lam",
    "lam_floor", "sampling", "k",
)  # fmt: skip
_flag("Loss", float, "epsilon", None, "ce: label smoothing. multi_similarity: mining margin.")
_flag(
    "Loss", float, "margin", None,
    "contrastive, lifted_structure: distance that negatives should have. triplet, quadruplet: by "
    "how much farther a negative should be than a positive.",
)  # fmt: skip
_flag("Loss", float, "second_margin", None, "quadruplet: the same, for pairs of other anchors.")
_flag(
    "Loss", bool, "normalize", None,
    "contrastive, center, triplet, quadruplet, lifted_structure, n_pairs: normalise embeddings.",
)  # fmt: skip
_flag("Loss", str, "pair_reduction", None, "contrastive, ice: sum | mean over an anchor's pairs.")
_flag("Loss", str, "mining", None, "triplet: all | semihard | hard.")
_flag("Loss", str, "average", None, "triplet: over anchors | triplets.")
_flag(
    "Loss", float, "alpha", None,
    "multi_similarity: sharpness of the positives. rankmi: how far beyond β a pair still counts.",
)  # fmt: skip
_flag(
    "Loss", float, "beta", None,
    "multi_similarity: sharpness of the negatives. rankmi: the first β, a distance.",
)  # fmt: skip
_flag("Loss", float, "base", None, "multi_similarity: similarity that separates them.")
_flag("Loss", float, "sigma", None, "snca: temperature.")
_flag("Loss", float, "scale", None, "ice: scale of the similarities.")
_flag("Loss", bool, "reweight", None, "ice: reweighted gradient.")
_flag("Loss", bool, "anchor_gradient", None, "ice: the anchor itself gets a gradient too.")
_flag("Loss", int, "num_bins", None, "fastap: bins of the distance histogram.")
_flag(
    "Loss", float, "center_weight", 0.1,
    "center: its weight beside the cross-entropy that it is trained with.", lower_bound=0.0,
)  # fmt: skip
_flag("Loss", float, "lam", None, "pce: weight of the regulariser. Default: from the batch.")
_flag("Loss", float, "lam_floor", None, "pce: smallest weight taken from a batch.")
_flag(
    "Loss", str, "sampling", None,
    "rankmi: negatives of an embedding step: distance_weighted | uniform | all.",
)  # fmt: skip
_flag("Loss", int, "k", None, "rankmi: statistics steps for each embedding step.", lower_bound=1)
_flag("Loss", int, "statistics_hidden", 128, "rankmi: width of the statistics network.",
      lower_bound=1)  # fmt: skip
_flag("Loss", int, "statistics_depth", 2, "rankmi: its hidden-to-hidden layers.", lower_bound=0)
_flag("Loss", float, "statistics_slope", 0.1, "rankmi: its leaky ReLU's slope below 0.",
      lower_bound=0.0)  # fmt: skip
_flag("Loss", bool, "statistics_residual", True, "rankmi: it adds to minus the distance.")
_flag(
    "Loss", float, "statistics_learning_rate", None,
    "rankmi: its learning rate. Default: learning_rate.", lower_bound=0.0,
)  # fmt: skip

_choice("Optimizer", "optimizer", "sgd", ["sgd", "adam"], "Optimizer.")
_flag("Optimizer", float, "learning_rate", 0.01, "Learning rate.", lower_bound=0.0)
_flag("Optimizer", float, "momentum", 0.0, "sgd: momentum.", lower_bound=0.0)
_flag("Optimizer", bool, "nesterov", False, "sgd: Nesterov momentum.")
_flag(
    "Optimizer", float, "weight_decay", 0.0,
    "Coupled weight decay (added to the gradient).", lower_bound=0.0,
)  # fmt: skip
_choice(
    "Optimizer",
    "decayed",
    "kernels",
    ["kernels", "all"],
    "What weight_decay acts on: convolution and dense kernels, or every variable.",
)
_flag(
    "Optimizer", float, "pretrained_factor", 1.0,
    "Learning rate of the backbone, as a multiple of the new layers'.", lower_bound=0.0,
)  # fmt: skip
_choice(
    "Optimizer", "schedule", "warm_cosine", ["warm_cosine", "constant"],
    "Learning rate over the steps.",
)  # fmt: skip
_flag("Optimizer", int, "warmup_steps", 100, "warm_cosine: steps of linear warm-up.", lower_bound=1)

_flag("Training", int, "epochs", 30, "Epochs.", lower_bound=1)
_flag(
    "Training", int, "steps_per_epoch", None,
    "Steps between checkpoints. Default: training images / batch_size.", lower_bound=1,
)  # fmt: skip
_choice(
    "Training", "strategy", "one", ["one", "auto", "mirrored", "multi_worker"],
    "Devices: one; mirrored = all of this machine; auto = mirrored where there is a GPU, else one; "
    "multi_worker = all of several machines, which TF_CONFIG names.",
)  # fmt: skip
_flag("Training", int, "logical_devices", 1,
      "Split the CPU into this many devices, to try mirrored without GPUs.",
      lower_bound=1)  # fmt: skip
_flag(
    "Training", bool, "mixed_precision", False,
    "Compute in half precision: float16 on a GPU, bfloat16 on a CPU.",
)  # fmt: skip
_flag("Training", bool, "jit_compile", False, "Compile the training step with XLA.")

_flag("Evaluation", int, "eval_every", 1, "Evaluate every N epochs, and after the last.",
      lower_bound=1)  # fmt: skip
_flag("Evaluation", list, "recall_at", ["1", "2", "4", "8"], "The K of recall at K.")
_flag("Evaluation", int, "eval_batch_size", 64, "Images embedded at once, on each device.",
      lower_bound=1)  # fmt: skip
_flag(
    "Evaluation", bool, "raw_pixels", False,
    "First evaluate nearest neighbours of the pixels themselves, as the floor to beat.",
)  # fmt: skip

_flag("Run", str, "output_dir", None, "The run's folder. Default: runs/RECIPE-seedSEED.")
_flag(
    "Run", int, "seed", 0, "Seed of everything random.", lower_bound=0, upper_bound=2**32 - 1
)  # fmt: skip
_flag(
    "Run", bool, "deterministic", False,
    "Bit-identical results from one run to the next, at some cost in speed.",
)  # fmt: skip
