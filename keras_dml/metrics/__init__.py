"""Metrics of whole sets of embeddings, and the parts of a loss in `fit`."""

from keras_dml._common.deprecation import renamed_names
from keras_dml._common.exports import public_names
from keras_dml.metrics.accuracy import class_mean_accuracy as class_mean_accuracy
from keras_dml.metrics.audit import ConfusedClasses as ConfusedClasses
from keras_dml.metrics.audit import LabelVotes as LabelVotes
from keras_dml.metrics.audit import confused_classes as confused_classes
from keras_dml.metrics.audit import duplicate_groups as duplicate_groups
from keras_dml.metrics.audit import label_errors as label_errors
from keras_dml.metrics.audit import label_votes as label_votes
from keras_dml.metrics.audit import outlier_scores as outlier_scores
from keras_dml.metrics.clustering import clustering_scores as clustering_scores
from keras_dml.metrics.distances import DistanceHistograms as DistanceHistograms
from keras_dml.metrics.distances import distance_histograms as distance_histograms
from keras_dml.metrics.evaluation import evaluate as evaluate
from keras_dml.metrics.in_batch_recall import InBatchRecall as InBatchRecall
from keras_dml.metrics.information_scores import information as information
from keras_dml.metrics.information_scores import information_intervals as information_intervals
from keras_dml.metrics.loss_part import LossPart as LossPart
from keras_dml.metrics.mutual_information import InformationBound as InformationBound
from keras_dml.metrics.mutual_information import (
    mutual_information_bound as mutual_information_bound,
)
from keras_dml.metrics.nearest_classes import nearest_classes as nearest_classes
from keras_dml.metrics.neighbors import nearest_neighbors as nearest_neighbors
from keras_dml.metrics.open_set import Identification as Identification
from keras_dml.metrics.open_set import IdentificationPoint as IdentificationPoint
from keras_dml.metrics.open_set import identification as identification
from keras_dml.metrics.pair_verification import OperatingPoint as OperatingPoint
from keras_dml.metrics.pair_verification import VerificationResult as VerificationResult
from keras_dml.metrics.pair_verification import verification as verification
from keras_dml.metrics.positives_per_anchor import PositivesPerAnchor as PositivesPerAnchor
from keras_dml.metrics.rates import pairs_needed as pairs_needed
from keras_dml.metrics.retrieval_scores import PrecisionScores as PrecisionScores
from keras_dml.metrics.retrieval_scores import precision_at_r as precision_at_r
from keras_dml.metrics.retrieval_scores import ranking_scores as ranking_scores
from keras_dml.metrics.retrieval_scores import recall_at_k as recall_at_k
from keras_dml.metrics.trec import write_trec as write_trec

__all__ = public_names(__name__)
__getattr__ = renamed_names(
    __name__,
    PrecisionAtR="PrecisionScores",
    Verification="VerificationResult",
    MutualInformationBound="InformationBound",
)
