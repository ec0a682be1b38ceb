"""Records of templates, and a registry opened for them."""

from __future__ import annotations

import warnings
from typing import Any

from tunehub.compiler.hub import Hub, open_hub
from tunehub_registry.template_record import TemplateRecord, encode_template_record

from ..conftest import ZNVER5, RegistryFolder, key

TVM = "0.27.0.post1"


def template_record(number: int = 1, **changes: Any) -> TemplateRecord:
    fields: dict[str, Any] = {
        "exact": key(number), "anchor": key(1000 + number), "op": f"conv{number}", "template": "conv2d", "version": 1,
        "knobs": {"columns": 7, "blocks": 2, "row": 14}, "run_s": (0.001,), "default_s": 0.03, "source": "template",
        **changes,
    }  # fmt: skip
    return TemplateRecord(**fields)


def template_lines(*records: TemplateRecord) -> bytes:
    return b"".join(encode_template_record(record) for record in records)


def opened(registry: RegistryFolder, **options: Any) -> Hub:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return open_hub(ZNVER5, registry=str(registry.root), tvm_version=TVM, **options)
