"""What the flags describe of the learning: model, loss, optimizer."""

import keras

from experiments import flags
from keras_dml import losses, models, optimizers
from keras_dml.metrics import LossPart

# The losses that train a classifier over the embedding.
CLASSIFYING = ("ce", "center")


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
        options.backbone,
        options.image_size,
        weights,
        options.frozen_batch_norm,
        None if options.filters is None else flags.whole_numbers("filters", options.filters),
    )
    return backbone, models.embedding_model(
        backbone, options.embedding_size, options.feature_batch_norm, options.pooling
    )


def training_model(options, embedding, num_classes):
    """The model that is fitted: the embedding, a classifier over it, or (center) both."""
    if options.loss in CLASSIFYING:
        classifier = models.classifier_model(
            embedding, num_classes, options.dropout, seed=options.seed
        )
        if options.loss == "ce":
            return classifier
        outputs = {"embeddings": embedding.output, "logits": classifier.output}
        return keras.Model(embedding.input, outputs, name="training")
    if options.dropout:
        raise ValueError(
            f"dropout is before the classifier, which only losses {', '.join(CLASSIFYING)} have. "
            f"Received: dropout={options.dropout}"
        )
    # Same layers in a model of its own: what is compiled would be saved with its optimizer.
    return keras.Model(embedding.input, embedding.output, name="training")


def compiled(options):
    """What `compile` takes beside the optimizer: the loss, and its parts as metrics.

    The center loss has no contrastive part of its own; it is trained beside a cross-entropy, which
    is that part in Boudiaf et al. 2020, Table 2.
    """
    chosen = loss(options)
    if options.loss != "center":
        parts = [LossPart(chosen, "tightness"), LossPart(chosen, "contrastive")]
        return {"loss": chosen, "metrics": parts}
    return {
        "loss": {"embeddings": chosen, "logits": losses.get("ce")},
        "loss_weights": {"embeddings": options.center_weight, "logits": 1.0},
    }


def targets(options, batches):
    """The batches with the class ids for each output of the model."""
    if options.loss != "center":
        return batches
    return batches.map(lambda images, ids: (images, {"embeddings": ids, "logits": ids}))


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
