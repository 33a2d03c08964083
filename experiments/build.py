"""What the flags describe: devices, data, transforms, sampler, model, loss, optimizer."""

import keras
import numpy as np
import tensorflow as tf

import pipelines
from experiments import flags
from keras_dml import losses, models, optimizers

BAD_IMAGES = "bad_images.txt"


def devices(options):
    """Seed, determinism, precision; returns the strategy. Comes before anything uses TensorFlow.

    Raises:
        ValueError: a batch that the devices cannot share equally.
    """
    if options.logical_devices > 1 and options.strategy == "one":
        raise ValueError(
            "logical_devices needs --strategy=mirrored. "
            f"Received: logical_devices={options.logical_devices}"
        )
    keras.utils.set_random_seed(options.seed)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if options.logical_devices > 1:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * options.logical_devices,
        )
    half = "mixed_float16" if gpus else "mixed_bfloat16"
    keras.config.set_dtype_policy(half if options.mixed_precision else "float32")
    if options.strategy == "one":
        return tf.distribute.get_strategy()
    strategy = tf.distribute.MirroredStrategy(
        [device.name for device in tf.config.list_logical_devices("CPU")] if not gpus else None
    )
    if options.batch_size % strategy.num_replicas_in_sync:
        raise ValueError(
            f"batch_size must be a multiple of the {strategy.num_replicas_in_sync} devices. "
            f"Received: batch_size={options.batch_size}"
        )
    return strategy


def data(options, folder):
    """The training and the test table, and the lines that tell which bad images were left out.

    A run that is continued leaves out what it left out at its start.
    """
    if options.dataset is None:
        raise ValueError(
            f"dataset must be one of {', '.join(pipelines.DATASETS)} "
            "(or give a recipe: --flagfile=glyphs.flags). Received: no dataset"
        )
    split = pipelines.load_dataset(
        options.dataset,
        data_dir=options.data_dir,
        train_classes=options.train_classes,
        test_classes=options.test_classes,
    )
    if not options.skip_bad_images or split.train.paths is None:
        return split, []
    listed = folder.file(BAD_IMAGES)
    lines = listed.read_text().splitlines() if listed.is_file() else _bad_images(split)
    left_out = [line.split("\t")[0] for line in lines]
    train = _without("training", split.train, left_out)
    return pipelines.Split(train, _without("test", split.test, left_out)), lines


def _bad_images(split):
    lines = []
    for table in (split.train, split.test):
        for _, path, reason in pipelines.find_bad_images(table):
            lines.append(f"{path}\t{reason}")
            print(f"left out: {path} ({reason})")
    return lines


def _without(name, table, left_out):
    kept = np.flatnonzero(~np.isin(table.paths, left_out))
    if not len(kept):
        raise ValueError(f"data_dir has no {name} image that can be read ({len(table)} left out)")
    return table.select(kept).select_classes(np.unique(table.labels[kept]))


def describe(data, model, steps_per_epoch, options, state):
    """One line of what is about to happen."""
    train, test = data.train, data.test
    text = (
        f"{len(train):,} images of {train.num_classes:,} classes to train, "
        f"{len(test):,} of {test.num_classes:,} others to test; "
        f"{model.count_params():,} parameters; "
        f"{options.epochs} epochs of {steps_per_epoch} steps"
    )
    return f"{text}; continued after epoch {state.epoch}" if state.epoch else text


def transforms(options):
    """The training and the evaluation transform."""
    resize = _resize(options.resize)
    train = pipelines.TrainTransform(
        image_size=options.image_size,
        resize=resize,
        crop=options.crop,
        area=_numbers("crop_area", options.crop_area, 2),
        aspect=_numbers("crop_aspect", options.crop_aspect, 2),
        flip=options.flip,
        jitter=_numbers("jitter", options.jitter, 4),
    )
    return train, pipelines.EvaluationTransform(image_size=options.image_size, resize=resize)


def sampler(options, table):
    """Batch number to row numbers of the training table."""
    if options.sampler == "random":
        return pipelines.RandomSampler(len(table), options.batch_size, seed=options.seed)
    if options.batch_size % options.images_per_class:
        raise ValueError(
            f"batch_size must be a multiple of images_per_class={options.images_per_class}. "
            f"Received: batch_size={options.batch_size}"
        )
    return pipelines.BalancedSampler(
        table.labels,
        classes_per_batch=options.batch_size // options.images_per_class,
        images_per_class=options.images_per_class,
        seed=options.seed,
    )


def loss(options):
    """The loss, with the hyper-parameters that were given.

    Raises:
        ValueError: unknown loss, or a flag that belongs to another loss.
    """
    given = {
        name: options[name].value
        for name in flags.LOSS_ARGUMENTS
        if options[name].value is not None
    }
    taken = losses.get(options.loss).get_config()
    for name in given:
        if name not in taken:
            own = [argument for argument in flags.LOSS_ARGUMENTS if argument in taken]
            raise ValueError(
                f"{name} is no argument of loss {options.loss}, which takes {', '.join(own)}. "
                f"Received: {name}={given[name]}"
            )
    return losses.get(options.loss, **given)


def embedding_model(options):
    """The model from images to embeddings."""
    weights = None if options.weights == "none" else options.weights
    backbone = models.build_backbone(
        options.backbone, options.image_size, weights, options.frozen_batch_norm
    )
    return backbone, models.embedding_model(
        backbone, options.embedding_size, options.feature_batch_norm, options.pooling
    )


def training_model(options, embedding, num_classes):
    """The model that is fitted: the embedding itself, or a classifier over it for loss ce."""
    if options.loss == "ce":
        return models.classifier_model(embedding, num_classes, options.dropout, seed=options.seed)
    if options.dropout:
        raise ValueError(
            "dropout is before the classifier, which only loss ce has. "
            f"Received: dropout={options.dropout}"
        )
    # Same layers in a model of its own: what is compiled would be saved with its optimizer.
    return keras.Model(embedding.input, embedding.output, name="training")


def learning_rate(options, total_steps):
    """The learning rate of each step: a number, or a schedule from step to number."""
    if options.schedule == "warm_cosine":
        return optimizers.WarmCosine(options.learning_rate, total_steps, options.warmup_steps)
    return options.learning_rate


def optimizer(options, backbone, rate):
    """The optimizer with its learning rate or schedule."""
    arguments = {
        "learning_rate": rate,
        "coupled_weight_decay": options.weight_decay,
        "learning_rate_multipliers": (
            optimizers.multipliers(backbone, options.pretrained_factor)
            if options.pretrained_factor != 1.0
            else None
        ),
    }
    if options.optimizer == "adam":
        if options.momentum or options.nesterov:
            raise ValueError("momentum and nesterov are for --optimizer=sgd. Received: adam")
        return optimizers.Adam(**arguments)
    return optimizers.SGD(momentum=options.momentum, nesterov=options.nesterov, **arguments)


def recall_at(options, num_test_images):
    """The K of recall at K, sorted."""
    ks = sorted({int(k) for k in _numbers("recall_at", options.recall_at, None)} | {1})
    if ks[0] < 1 or ks[-1] >= num_test_images:
        raise ValueError(
            f"recall_at must be between 1 and {num_test_images - 1}, the other test images. "
            f"Received: recall_at={','.join(options.recall_at)}"
        )
    return ks


def _resize(text):
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdigit() for side in sides):
        raise ValueError(
            f"resize must be N or HxW, such as 256 or 256x256. Received: resize={text}"
        )
    return int(text) if len(sides) == 1 else (int(sides[0]), int(sides[1]))


def _numbers(name, words, how_many):
    try:
        numbers = tuple(float(word) for word in words)
    except ValueError:
        numbers = ()
    if not numbers or how_many not in (None, len(numbers)):
        raise ValueError(
            f"{name} must be {how_many or 'some'} numbers with commas between them. "
            f"Received: {name}={','.join(words)}"
        )
    return numbers
