"""Metrics of whole sets of embeddings, and the parts of a loss in `fit`."""

from keras_dml._common.deprecation import renamed_attributes
from keras_dml.metrics.accuracy import class_mean_accuracy
from keras_dml.metrics.audit import (
    ConfusedClasses,
    LabelVotes,
    confused_classes,
    duplicate_groups,
    label_errors,
    label_votes,
    outlier_scores,
)
from keras_dml.metrics.clustering import clustering_scores
from keras_dml.metrics.distances import DistanceHistograms, distance_histograms
from keras_dml.metrics.evaluation import evaluate
from keras_dml.metrics.information_scores import information, information_intervals
from keras_dml.metrics.loss_part import LossPart
from keras_dml.metrics.mutual_information import MutualInformationBound, mutual_information_bound
from keras_dml.metrics.neighbors import nearest_neighbors
from keras_dml.metrics.open_set import Identification, IdentificationPoint, identification
from keras_dml.metrics.pair_verification import (
    OperatingPoint,
    Verification,
    verification,
)
from keras_dml.metrics.positives_per_anchor import PositivesPerAnchor
from keras_dml.metrics.precision import PrecisionAtR, precision_at_r
from keras_dml.metrics.ranking import ranking_scores
from keras_dml.metrics.rates import pairs_needed
from keras_dml.metrics.recall import recall_at_k
from keras_dml.metrics.trec import write_trec

__getattr__ = renamed_attributes(__name__, nearest_neighbours="nearest_neighbors")

__all__ = [
    "ConfusedClasses",
    "DistanceHistograms",
    "Identification",
    "IdentificationPoint",
    "LabelVotes",
    "LossPart",
    "MutualInformationBound",
    "OperatingPoint",
    "PositivesPerAnchor",
    "PrecisionAtR",
    "Verification",
    "class_mean_accuracy",
    "clustering_scores",
    "confused_classes",
    "distance_histograms",
    "duplicate_groups",
    "evaluate",
    "identification",
    "information",
    "information_intervals",
    "label_errors",
    "label_votes",
    "mutual_information_bound",
    "nearest_neighbors",
    "outlier_scores",
    "pairs_needed",
    "precision_at_r",
    "ranking_scores",
    "recall_at_k",
    "verification",
    "write_trec",
]
