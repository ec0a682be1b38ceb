"""The zoo's architectures: which libraries make them, in which form TVM gets them, and what they are fed.

Weights are random (:mod:`benchmarks.zoo.export` seeds them); nothing is downloaded. Widths are those of the real
networks, depths are cut where a network of this kind repeats one block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

Form = Literal["onnx", "program"]
_VOCABULARY = 8192
_WORDS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Feed:
    """An input: standard normal numbers, or whole ones below ``below``, or with ``mask`` ones and at the end zeros."""

    shape: tuple[int, ...]
    below: int = 0
    mask: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """One network. ``form``: how TVM gets it, as an ONNX file or a program of ``torch.export``; ``make`` gives the
    module of PyTorch, whose arguments are ``feeds`` by name, in order. ``note`` says what is special about it. In
    ``half`` precision weights and inputs are float16."""

    name: str
    kind: str
    form: Form
    library: str
    make: Callable[[], Any]
    feeds: Mapping[str, Feed]
    note: str = ""
    half: bool = False


KINDS = ("cnn", "mobile", "vision transformer", "encoder", "decoder", "dense prediction", "audio")


def architectures() -> tuple[Architecture, ...]:
    """All of them, by kind."""
    return _ALL


def at_batch(item: Architecture, batch: int) -> Architecture:
    """``item`` with ``batch`` inputs at once; it is called ``NAME.batchBATCH``."""
    feeds = {name: replace(feed, shape=(batch, *feed.shape[1:])) for name, feed in item.feeds.items()}
    return replace(item, name=f"{item.name}.batch{batch}", feeds=feeds)


def in_half(item: Architecture, batch: int) -> Architecture:
    """``item`` in half precision, ``batch`` inputs at once; it is called ``NAME.halfBATCH``. As ONNX: TVM's importer of
    programs gives convolutions in half precision results in float32, and then fails."""
    return replace(at_batch(item, batch), name=f"{item.name}.half{batch}", form="onnx", half=True)


def architecture(name: str) -> Architecture:
    """The one of this name, at its batch and in half precision when that says so. Raises StopIteration for a name that
    none has."""
    base, _, suffix = name.partition(".")
    found = next(item for item in architectures() if item.name == base)
    for word, variant in (("half", in_half), ("batch", at_batch)):
        if suffix.startswith(word):
            return variant(found, int(suffix.removeprefix(word)))
    return found


def _vision(kind: str, library: str, names: str) -> Iterator[Architecture]:
    """Classifiers by their names in ``library``; ``name@320`` is for 320 pixels, ``name:program`` for that form."""
    for item in names.split():
        text, _, form = item.partition(":")
        name, _, size = text.partition("@")
        shape = (1, 3, int(size or 224), int(size or 224))
        yield Architecture(
            name=name,
            kind=kind,
            form="program" if form else "onnx",
            library=library,
            make=_MAKERS[library](name),
            feeds={"image": Feed(shape=shape)},
        )


def _torchvision(name: str) -> Callable[[], Any]:
    def make() -> Any:
        import torchvision

        options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        return torchvision.models.get_model(name, weights=None, **options)

    return make


def _timm(name: str) -> Callable[[], Any]:
    def make() -> Any:
        import timm

        return timm.create_model(name, pretrained=False)

    return make


_MAKERS = {"torchvision": _torchvision, "timm": _timm}


def _text(
    kind: str, name: str, form: Form = "onnx", *, model: str = "", head: str = "AutoModel", words: int = _WORDS,
    masked: bool = True, **config: Any,
) -> Architecture:  # fmt: skip
    """A network over words of ``transformers``: configuration ``model`` with ``config``."""
    feeds = {"input_ids": Feed(shape=(1, words), below=_VOCABULARY)}
    if masked:
        feeds["attention_mask"] = Feed(shape=(1, words), mask=True)
    settings = {"vocab_size": _VOCABULARY, "pad_token_id": 0, "use_cache": False, **config}
    return Architecture(
        name=name,
        kind=kind,
        form=form,
        library="transformers",
        make=_transformers(model or name, head, settings),
        feeds=feeds,
    )


def _transformers(model: str, head: str, config: Mapping[str, Any], part: str = "") -> Callable[[], Any]:
    def make() -> Any:
        import transformers

        maker = getattr(transformers, head)
        made = transformers.AutoConfig.for_model(model, **config) if model else maker.config_class(**config)
        whole = maker.from_config(made) if head.startswith("Auto") else maker(made)
        return getattr(whole, part) if part else whole

    return make


def _decoder(name: str, form: Form = "onnx", **config: Any) -> Architecture:
    return _text("decoder", name, form, head="AutoModelForCausalLM", words=64, masked=False, **config)


def _other(
    kind: str, name: str, feeds: Mapping[str, Feed], form: Form = "onnx", *, model: str | None = None,
    head: str = "AutoModel", part: str = "", **config: Any,
) -> Architecture:  # fmt: skip
    """Any other network of ``transformers``; ``model`` is "" where ``head`` knows its configuration."""
    return Architecture(
        name=name,
        kind=kind,
        form=form,
        library="transformers",
        make=_transformers(name if model is None else model, head, config, part),
        feeds=feeds,
    )


def _detector(name: str, size: int, form: Form = "onnx") -> Architecture:
    """A detector of torchvision up to its boxes and scores, before what depends on their values."""

    def make() -> Any:
        import torch
        import torchvision

        class Heads(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                whole = torchvision.models.get_model(name, weights=None, weights_backbone=None)
                self.backbone, self.head = whole.backbone, whole.head

            def forward(self, image: Any) -> Any:
                return self.head(list(self.backbone(image).values()))

        return Heads()

    return Architecture(
        name=name,
        kind="dense prediction",
        form=form,
        library="torchvision",
        make=make,
        feeds={"image": Feed(shape=(1, 3, size, size))},
        note="backbone and heads",
    )


def _segmenter(name: str, size: int, form: Form = "onnx") -> Architecture:
    def make() -> Any:
        import torchvision

        return torchvision.models.get_model(name, weights=None, weights_backbone=None)

    return Architecture(
        name=name,
        kind="dense prediction",
        form=form,
        library="torchvision",
        make=make,
        feeds={"image": Feed(shape=(1, 3, size, size))},
    )


_BERT = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 3}
_LLAMA = {
    "hidden_size": 768, "num_attention_heads": 12, "num_key_value_heads": 4, "intermediate_size": 2048,
    "num_hidden_layers": 3, "max_position_embeddings": 512,
}  # fmt: skip
_ENDS = {"bos_token_id": 1, "eos_token_id": 2}
_IMAGE = {"pixel_values": Feed(shape=(1, 3, 224, 224))}
_SOUND = {"input_values": Feed(shape=(1, 16000))}

_ALL = (
    *_vision(
        "cnn",
        "torchvision",
        "resnet18 resnext50_32x4d squeezenet1_1:program densenet121 inception_v3@299 regnet_y_800mf "
        "convnext_tiny:program shufflenet_v2_x1_0:program",
    ),
    *_vision(
        "cnn",
        "timm",
        "convnextv2_nano res2net50_14w_8s:program hrnet_w18_small dla34:program resnest14d:program "
        "resnetv2_50x1_bit cspresnet50:program",
    ),
    *_vision(
        "mobile",
        "torchvision",
        "mobilenet_v2:program mobilenet_v3_small mobilenet_v3_large:program efficientnet_b0",
    ),
    *_vision(
        "mobile",
        "timm",
        "tf_efficientnet_lite0 tf_efficientnet_b0:program ghostnet_100 lcnet_100:program "
        "mobilenetv4_conv_small fastvit_t8@256 edgenext_x_small mobilevit_s@256 "
        "efficientformer_l1:program rexnet_100 efficientvit_b0:program",
    ),
    *_vision(
        "vision transformer",
        "torchvision",
        "swin_t swin_v2_t:program maxvit_t",
    ),
    *_vision(
        "vision transformer",
        "timm",
        "deit_small_patch16_224:program xcit_nano_12_p16_224 pvt_v2_b0:program levit_128s:program "
        "crossvit_tiny_240@240 poolformer_s12 mixer_s16_224:program eva02_tiny_patch14_224:program "
        "convit_tiny davit_tiny:program mvitv2_tiny coatnet_0_rw_224",
    ),
    _text("encoder", "bert", **_BERT),
    _text("encoder", "roberta", "program", **_BERT),
    _text("encoder", "distilbert", dim=768, n_layers=3),
    _text("encoder", "albert", "program", **_BERT, embedding_size=128),
    _text(
        "encoder",
        "deberta_v2",
        model="deberta-v2",
        **_BERT,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=64,
    ),
    _text("encoder", "mpnet", **_BERT),
    _text(
        "encoder",
        "modernbert",
        "program",
        hidden_size=768,
        num_attention_heads=12,
        intermediate_size=1152,
        num_hidden_layers=4,
        **_ENDS,
        cls_token_id=1,
        sep_token_id=2,
        local_attention=32,
    ),
    _text("encoder", "squeezebert", **_BERT),
    _text("encoder", "t5_encoder", "program", model="t5", head="T5EncoderModel", d_model=512, d_ff=2048, num_layers=3),
    _text("encoder", "mobilebert", "program", num_hidden_layers=6),
    _text("encoder", "convbert", **_BERT),
    _decoder("gpt2", n_layer=3),
    _decoder("gpt_neox", **{k: v for k, v in _LLAMA.items() if k != "num_key_value_heads"}),
    _decoder(
        "opt",
        "program",
        hidden_size=768,
        num_hidden_layers=3,
        ffn_dim=3072,
        num_attention_heads=12,
        word_embed_proj_dim=768,
    ),
    _decoder("llama", **_LLAMA),
    _decoder("mistral", **_LLAMA, sliding_window=32),
    _decoder("qwen3", **_LLAMA, head_dim=64),
    _decoder("gemma2", **_LLAMA, head_dim=64, sliding_window=32),
    _decoder("falcon", "program", hidden_size=768, num_attention_heads=12, num_hidden_layers=3),
    _decoder("bloom", hidden_size=768, n_layer=3, n_head=12),
    _decoder("mpt", "program", d_model=768, n_heads=12, n_layers=3),
    _segmenter("lraspp_mobilenet_v3_large", 224),
    _segmenter("deeplabv3_mobilenet_v3_large", 224, "program"),
    _detector("ssdlite320_mobilenet_v3_large", 320),
    _detector("retinanet_resnet50_fpn", 192, "program"),
    _other("dense prediction", "segformer", _IMAGE, head="SegformerForSemanticSegmentation"),
    _other(
        "dense prediction",
        "dpt",
        _IMAGE,
        "program",
        head="DPTForDepthEstimation",
        image_size=224,
        hidden_size=384,
        num_attention_heads=6,
        intermediate_size=1536,
        num_hidden_layers=4,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[48, 96, 192, 384],
        fusion_hidden_size=64,
    ),
    _other(
        "dense prediction",
        "yolos",
        _IMAGE,
        "program",
        head="YolosForObjectDetection",
        image_size=[224, 224],
        hidden_size=192,
        num_attention_heads=3,
        intermediate_size=768,
        num_hidden_layers=6,
    ),
    _other(
        "dense prediction",
        "swin2sr",
        {"pixel_values": Feed(shape=(1, 3, 64, 64))},
        head="Swin2SRForImageSuperResolution",
        depths=[2, 2],
        num_heads=[6, 6],
    ),
    _other("dense prediction", "glpn", _IMAGE, "program", head="GLPNForDepthEstimation"),
    _other(
        "audio",
        "whisper_encoder",
        {"input_features": Feed(shape=(1, 80, 400))},
        model="whisper",
        part="encoder",
        encoder_layerdrop=0.0,
        d_model=384,
        encoder_layers=4,
        encoder_attention_heads=6,
        encoder_ffn_dim=1536,
        max_source_positions=200,
    ),
    _other("audio", "wav2vec2", _SOUND, "program", num_hidden_layers=3),
    _other("audio", "wavlm", _SOUND, num_hidden_layers=3),
    _other(
        "audio",
        "ast",
        {"input_values": Feed(shape=(1, 256, 128))},
        "program",
        model="audio-spectrogram-transformer",
        head="ASTForAudioClassification",
        max_length=256,
        num_hidden_layers=3,
    ),
    _other("audio", "hifigan", {"spectrogram": Feed(shape=(1, 50, 80))}, "program", model="", head="SpeechT5HifiGan"),
    _other("audio", "sew", _SOUND, num_hidden_layers=3),
    _other("audio", "data2vec_audio", _SOUND, "program", model="data2vec-audio", num_hidden_layers=3),
)
