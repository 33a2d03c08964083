"""A transformer of two blocks for images of 16 pixels, with blocks of a class in this module."""

import keras

WIDTH = 8


@keras.saving.register_keras_serializable("tests")
class Block(keras.layers.Layer):
    """Attention and a net over each token, each with a norm and a shortcut."""

    def __init__(self, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.dropout = dropout
        self.norm1 = keras.layers.LayerNormalization(name="norm1")
        self.attention = keras.layers.MultiHeadAttention(2, WIDTH // 2, dropout=dropout, name="mha")
        self.norm2 = keras.layers.LayerNormalization(name="norm2")
        self.up = keras.layers.Dense(2 * WIDTH, activation="gelu", name="up")
        self.down = keras.layers.Dense(WIDTH, name="down")

    def call(self, x, training=None):
        # Like KerasHub's blocks, it has a keyword that Keras passes on.
        y = self.norm1(x)
        x = x + self.attention(y, y)
        return x + self.down(self.up(self.norm2(x)))

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout}


def tiny_transformer(blocks=2, dropout=0.0, seed=0):
    """Return a model from images `[n, 16, 16, 3]` to tokens `[n, 16, 8]`."""
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((16, 16, 3), name="images")
    x = keras.layers.Rescaling(1 / 127.5, offset=-1.0)(inputs)
    x = keras.layers.Conv2D(WIDTH, 4, strides=4, name="patches")(x)
    x = keras.layers.Reshape((16, WIDTH))(x)
    for number in range(blocks):
        x = Block(dropout, name=f"block_{number}")(x)
    x = keras.layers.LayerNormalization(name="norm")(x)
    return keras.Model(inputs, x, name="tiny_transformer")
