"""Which records are for templates as this client has them."""

from __future__ import annotations

from tunehub.kernels.cpu import NAMES, template
from tunehub.kernels.cuda.templates import OLDEST_TVM, VERSIONS
from tunehub.target.tvm_generation import find_tvm
from tunehub_registry.template_record import TemplateRecord


def version_of(name: str) -> int | None:
    """The version of the template called ``name``, for CPUs or for CUDA; None when there is none."""
    return template(name).VERSION if name in NAMES else VERSIONS.get(name)


def is_current(record: TemplateRecord) -> bool:
    """Whether this client has the template of a record, in its version, and the installed TVM is new enough for it."""
    tvm, oldest = find_tvm(), OLDEST_TVM.get(record.template, (0, 0))
    return record.version == version_of(record.template) and (tvm is None or tvm.release >= oldest)
