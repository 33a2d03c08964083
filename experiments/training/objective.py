"""What the flags describe of the learning: model, loss, optimizer."""

from experiments.options.errors import UsageError
from experiments.options.values import whole_numbers
from keras_dml import losses, models, optimizers
from keras_dml.metrics import LossPart
from keras_dml.models.statistics_network import check_beta

# The losses that train a classifier over the embedding.
CLASSIFYING = ("ce", "center")


def loss(options):
    """The loss, with the hyper-parameters that were given.

    Raises:
        UsageError: unknown loss, or a flag that belongs to another loss.
    """
    return losses.get(options.loss, **options.loss_arguments)


def embedding_model(options):
    """The model from images to embeddings."""
    weights = None if options.weights == "none" else options.weights
    backbone = models.build_backbone(
        options.backbone,
        options.image_size,
        weights,
        options.frozen_batch_norm,
        None if options.filters is None else whole_numbers("filters", options.filters),
    )
    return backbone, models.embedding_model(
        backbone,
        options.embedding_size,
        options.feature_batch_norm,
        options.pooling,
        options.levels,
    )


def _losses_of_their_own(options):
    """The levels that have one: those of losses over pairs, as Wang et al. 2019a train theirs."""
    together = options.loss in (*CLASSIFYING, "rankmi")
    return [] if together or not options.levels else options.levels


def training_model(options, embedding, num_classes):
    """The model that is fitted: the embedding, a classifier over it, or (center) both.

    RankMI's alternates between the embedding and a statistics network.
    """
    if options.loss in CLASSIFYING:
        classifier = models.classifier_model(
            embedding, num_classes, options.dropout, seed=options.seed
        )
        outputs = {"embeddings": embedding.output, "logits": classifier.output}
        if options.loss == "ce":
            outputs = classifier.output
        return models.DistributedModel(embedding.input, outputs, name="training")
    if options.dropout:
        raise UsageError(
            f"dropout is before the classifier, which only losses {', '.join(CLASSIFYING)} have. "
            f"Received: dropout={options.dropout}"
        )
    if options.loss == "rankmi":
        given = options.loss_arguments
        check_beta("beta", given.get("beta", 1.0))
        network = models.StatisticsNetwork(
            **options.statistics, zero_at=given.get("beta", 1.0), seed=options.seed
        )
        return models.RankMI(embedding, network, seed=options.seed, **given)
    levels = _losses_of_their_own(options)
    outputs = {level: embedding.get_layer(f"{level}_embeddings").output for level in levels}
    # Same layers in a model of its own: what is compiled would be saved with its optimizer.
    return models.DistributedModel(embedding.input, outputs or embedding.output, name="training")


def compiled(options, total_steps):
    """What `compile` takes beside the optimizer: the loss, and its parts as metrics.

    RankMI brings its loss along, and wants an optimizer for its second network.

    The center loss has no contrastive part of its own; it is trained beside a cross-entropy, which
    is that part in Boudiaf et al. 2020, Table 2.
    """
    if options.loss == "rankmi":
        return {"statistics_optimizer": _statistics_optimizer(options, total_steps)}
    chosen = loss(options)
    if options.loss != "center":
        levels = _losses_of_their_own(options)
        if levels:
            return {
                "loss": dict.fromkeys(levels, chosen),
                "metrics": {level: _parts(chosen) for level in levels},
            }
        return {"loss": chosen, "metrics": _parts(chosen)}
    return {
        "loss": {"embeddings": chosen, "logits": losses.get("ce")},
        "loss_weights": {"embeddings": options.center_weight, "logits": 1.0},
    }


def _parts(chosen):
    return [LossPart(chosen, "tightness"), LossPart(chosen, "contrastive")]


def targets(options, batches):
    """The batches with the class ids for each output of the model."""
    outputs = _losses_of_their_own(options)
    if options.loss == "center":
        outputs = ["embeddings", "logits"]
    if not outputs:
        return batches
    return batches.map(lambda images, ids: (images, dict.fromkeys(outputs, ids)))


def updates(options, steps):
    """How often the embedding has been updated after so many steps: RankMI alternates."""
    if options.loss != "rankmi":
        return steps
    phases = 1 + options.loss_arguments.get("k", 1)
    return -(-steps // phases)


def learning_rate(options, total_steps):
    """The learning rate of each update of the embedding: a number, or a schedule."""
    return _scheduled(options, options.learning_rate, updates(options, total_steps))


def rate_after(options, rate, steps):
    """The learning rate that the embedding's last update in so many steps had."""
    return float(rate(updates(options, steps) - 1) if callable(rate) else rate)


def _scheduled(options, rate, total_updates):
    if options.schedule == "warm_cosine":
        return optimizers.WarmCosine(rate, total_updates, options.warmup_steps)
    return rate


def _statistics_optimizer(options, total_steps):
    rate = options.statistics_learning_rate
    rate = options.learning_rate if rate is None else rate
    total_updates = max(total_steps - updates(options, total_steps), 1)
    return _optimizer(options, _scheduled(options, rate, total_updates))


def optimizer(options, backbone, rate):
    """The optimizer of the embedding, with its learning rate or schedule."""
    factors = None
    if options.pretrained_factor != 1.0:
        factors = optimizers.multipliers(backbone, options.pretrained_factor)
    return _optimizer(options, rate, learning_rate_multipliers=factors)


def _optimizer(options, rate, **arguments):
    arguments |= {
        "learning_rate": rate,
        "coupled_weight_decay": options.weight_decay,
        "decayed": options.decayed,
    }
    if options.optimizer == "sgd":
        arguments |= {"momentum": options.momentum, "nesterov": options.nesterov}
    elif options.momentum or options.nesterov:
        raise UsageError(
            f"momentum and nesterov are for --optimizer=sgd. Received: {options.optimizer}"
        )
    return optimizers.OPTIMIZERS[options.optimizer](**arguments)
