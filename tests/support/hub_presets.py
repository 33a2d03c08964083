"""Tiny random presets of KerasHub, with their image converters, as folders."""

SCALE, OFFSET = (0.017, 0.018, 0.019), (-2.1, -2.0, -1.8)
SIZE, PATCH = 24, 4
IMAGE_KINDS = ("dinov2", "dinov3", "vit", "siglip", "resnet")


def kinds(size=SIZE):
    """Return functions that build a backbone for images of this size, by name."""
    from keras_hub import models

    vit = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8}
    shape = (size, size, 3)

    def siglip():
        text = models.SigLIPTextEncoder(11, 8, 8, 1, 2, 16, max_sequence_length=4)
        return models.SigLIPBackbone(
            models.SigLIPVisionEncoder(PATCH, 8, 2, 2, 16, image_shape=shape), text
        )

    return {
        "dinov2": lambda: models.DINOV2Backbone(
            patch_size=PATCH, intermediate_dim=16, num_register_tokens=2, image_shape=shape,
            position_embedding_shape=shape, **vit,
        ),
        "dinov3": lambda: models.DINOV3Backbone(
            patch_size=PATCH, intermediate_dim=16, image_shape=shape, **vit
        ),
        "vit": lambda: models.ViTBackbone(
            image_shape=shape, patch_size=PATCH, mlp_dim=16, **vit
        ),
        "siglip": siglip,
        "resnet": lambda: models.ResNetBackbone(
            [64], [3], [64], [1], [1], "basic_block", use_pre_activation=False
        ),
        "bert": lambda: models.BertBackbone(20, 1, 2, 8, 16),
    }  # fmt: skip


def preset(kind, folder, converter=True):
    """Write a preset of this kind into `folder` and return its backbone."""
    import keras
    import keras_hub

    keras.utils.set_random_seed(0)
    backbone = kinds()[kind]()
    backbone.save_to_preset(str(folder))
    if converter:
        layer = keras_hub.layers.ImageConverter(scale=list(SCALE), offset=list(OFFSET))
        layer.save_to_preset(str(folder))
    return backbone


def image_encoder(backbone):
    """Return the part of a backbone that takes images."""
    return getattr(backbone, "vision_encoder", backbone)


def called(encoder, images):
    """Return the output of an image encoder as an array."""
    given = dict.fromkeys(encoder.input, images) if isinstance(encoder.input, dict) else images
    return encoder(given, training=False).numpy()


def text_preset(folder, longest=16):
    """Write a preset of a tiny BERT with its tokenizer into `folder` and return its embedder."""
    import keras
    from keras_hub import models

    keras.utils.set_random_seed(0)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "green", "apple", "milk"]
    words += ["kind", "##s", *map(str, range(10))]
    backbone = models.BertBackbone(len(words), 2, 2, 8, 16, max_sequence_length=longest)
    tokens = models.BertTextEmbedderPreprocessor(models.BertTokenizer(words, lowercase=True), 8)
    embedder = models.BertTextEmbedder(backbone, tokens)
    embedder.save_to_preset(str(folder))
    return embedder
