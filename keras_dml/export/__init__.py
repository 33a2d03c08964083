"""Export of embedding models, with or without an index, as SavedModels. Needs TensorFlow."""

from keras_dml.export.float32 import float32_copy as float32_copy
from keras_dml.export.mteb_encoder import MTEBEncoder as MTEBEncoder
from keras_dml.export.saved_model import check_export as check_export
from keras_dml.export.saved_model import export_saved_model as export_saved_model

__all__ = ["MTEBEncoder", "check_export", "export_saved_model", "float32_copy"]
