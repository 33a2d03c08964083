"""`python -m keras_dml.losses` prints the README's table of the losses."""

from keras_dml.losses import catalog

print(catalog.table(), end="")
