"""Which records are for templates as this client has them."""

from __future__ import annotations

from tunehub.kernels.cpu import KnobError, version_of
from tunehub_registry.template_record import TemplateRecord


def is_current(record: TemplateRecord) -> bool:
    """Whether this client has the template of a record, in its version."""
    try:
        return record.version == version_of(record.template)
    except KnobError:  # a template that this client does not have
        return False
