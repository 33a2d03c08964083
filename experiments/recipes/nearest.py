"""Suggestions for unknown words."""

from keras_dml._common.nearest import did_you_mean as did_you_mean
