"""Every structure that is read from others, with hostile values in every field: its own error, or a sound value.

`test_every_structure_and_field_is_tried` finds a structure or a field that nobody put a sample of here.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import pkgutil
import warnings
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
import pytest
import tomli_w

import tunehub_registry
from tunehub_registry import lock
from tunehub_registry.exceptions import FieldError, FormatError, LicenseError, TraceError
from tunehub_registry.graph_log import GraphHeader, encode_graph_header, parse_graph_header
from tunehub_registry.legacy_target import parse_target
from tunehub_registry.licenses import canonical_license
from tunehub_registry.stores.address import UnsupportedAddressError, parse_address
from tunehub_registry.tuning_log import LogLineError

from ..hostile import FEW, VALUES, hostile_forms
from .document_samples import DOCUMENTS, KEY, LOCKED, LOCKED_MODEL, STRUCTURES

pytestmark = pytest.mark.fast

# Structures that are made of what was read, or that only a record's own module sees.
_MADE_HERE = {
    "Accepted", "Rejected", "Tuned", "LogRecord", "LogClass", "StepKnobs", "MeasuredRecord", "Sampled",
    "DeviceProfile",  # of CPUs and GPUs
    "_Direct",  # of pip, about tunehub itself
}  # fmt: skip
# Those of samples that are bytes: the sample below has all of their fields, or the structure is an array.
_IN_BYTES = {
    "_File", "TuningCurve", "GraphHeader", "_SignatureField", "_EnvelopeFields", "_Listed", "MeasureResult",
    "AutotvmLine", "AutotvmInput", "OldInput", "OldConfig", "OldLine", "AnsorInput", "AnsorTask", "AnsorState",
    "AnsorLine", "LockedPackage", "LockedModel", "LockedKernel", "Lock",
    "_Attached",
}  # fmt: skip


def structures() -> Iterator[type[msgspec.Struct]]:
    for found in pkgutil.walk_packages(tunehub_registry.__path__, "tunehub_registry."):
        module = importlib.import_module(found.name)
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__:
                yield value


def fields_of(value: Any, found: dict[str, set[str]]) -> dict[str, set[str]]:
    """By structure the fields that a sample has a value in."""
    if isinstance(value, msgspec.Struct):
        stated = {
            field.name
            for field in msgspec.structs.fields(value)
            if getattr(value, field.name) not in (None, msgspec.UNSET, (), {})
        }
        found.setdefault(type(value).__name__, set()).update(stated)
        for field in msgspec.structs.fields(value):
            fields_of(getattr(value, field.name), found)
    elif isinstance(value, (tuple, list)):
        for item in value:
            fields_of(item, found)
    elif isinstance(value, dict):
        fields_of(tuple(value.values()), found)
    return found


def test_every_structure_and_field_is_tried() -> None:
    tried: dict[str, set[str]] = {}
    for _, sample in STRUCTURES.values():
        fields_of(sample, tried)
    for kind in structures():
        if kind.__name__ in _MADE_HERE | _IN_BYTES:
            continue
        assert kind.__name__ in tried, f"no sample has a {kind.__name__}"
        missing = {field.name for field in msgspec.structs.fields(kind)} - tried[kind.__name__]
        assert not missing, f"no sample of {kind.__name__} has {missing}"


def check_sound(value: Any) -> None:
    """What was read can be used: numbers are finite, and no property of it raises."""
    if isinstance(value, float):
        assert math.isfinite(value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            check_sound(item)
    elif isinstance(value, dict):
        check_sound([*value, *value.values()])
    elif isinstance(value, msgspec.Struct):
        str(value)
        for kind in type(value).__mro__:
            for name, found in vars(kind).items():
                if isinstance(found, property):
                    try:
                        made = getattr(value, name)
                    except LogLineError:
                        assert name in ("config", "config_problem")
                        continue
                    if name != "mean_s" or getattr(value, "is_measured", True):
                        check_sound(made)
        check_sound([getattr(value, field.name) for field in msgspec.structs.fields(value)])


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_parser_refuses_a_hostile_value_or_what_it_gives_is_sound(name: str) -> None:
    parse, document = DOCUMENTS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name != "envelope":  # its payload is none
            check_sound(parse(document, "sample"))
        for done, data in hostile_forms(document):
            try:
                check_sound(parse(data, "hostile"))
            except (FormatError, LogLineError, TraceError) as error:
                assert len(str(error)) < 2000, done
            except Exception as error:
                pytest.fail(f"{done}: {type(error).__name__}: {error}")


@pytest.mark.parametrize("value", VALUES)
def test_a_graph_header_a_target_a_licence_and_an_address_are_refused_or_sound(value: str) -> None:
    header = encode_graph_header(GraphHeader(network="n", fingerprint=KEY))
    for raw in (VALUES[value].encode(), b'"n"' + VALUES[value].encode()):
        found = parse_graph_header(header.replace(b'"n"', raw))
        assert found is None or isinstance(found, GraphHeader)
    text = VALUES[value].strip('"').encode().decode("unicode_escape", "replace")
    for parse, errors in (
        (parse_target, (FieldError, FormatError, LogLineError, ValueError)),
        (canonical_license, (LicenseError,)),
        (parse_address, (UnsupportedAddressError,)),
        (lambda text: parse_address(f"https://{text}/x"), (UnsupportedAddressError,)),
        (lambda text: parse_address(f"s3://bucket/x?endpoint={text}"), (UnsupportedAddressError,)),
    ):
        with contextlib.suppress(*errors):
            parse(text)  # type: ignore[operator]


def test_a_lock_file_is_refused_or_sound() -> None:
    locked = lock.Lock(created_by="x", tvm=("0.27.0",), packages=(LOCKED,), models=(LOCKED_MODEL,))
    document = msgspec.to_builtins(locked, builtin_types=(datetime,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_sound(lock.parse_lock(tomli_w.dumps(document).encode(), "sample"))
        plain = json.dumps(document, default=str).encode()
        for done, data in hostile_forms(plain, FEW):
            try:
                toml = tomli_w.dumps(json.loads(data)).encode()
            except (ValueError, TypeError, AttributeError, RecursionError, UnicodeError):
                continue  # TOML cannot say it
            try:
                check_sound(lock.parse_lock(toml, "hostile"))
            except FormatError as error:
                assert len(str(error)) < 2000, done
