from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tunehub.exceptions import (
    HubWarning,
    RegistryUnreadableError,
    RequirementError,
    ResolutionError,
    SettingError,
    UnknownTargetError,
    UnsupportedRegistryError,
    UserRecordsError,
)
from tunehub.hub import Hub, open_hub
from tunehub.report import WorkloadReport

from .conftest import A76, SKYLAKE, ZNVER5, RegistryFolder, key, lines, make_record


def quiet_open(registry: RegistryFolder, target: object = ZNVER5, **options: object) -> Hub:
    """Open a hub where no warning is expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return open_hub(target, registry=str(registry.root), tvm_version="0.27.0.post1", **options)  # type: ignore[arg-type]


def test_exact_package_serves(registry: RegistryFolder) -> None:
    registry.publish()
    hub = quiet_open(registry)
    found = hub.lookup.by_exact(key(1))
    assert found is not None
    assert (found.rung, found.package, found.record) == ("exact", "llvm-znver5 0.1.0", make_record())
    assert hub.lookup.by_exact(key(2)) is None
    (anchored,) = hub.lookup.by_anchor(key(1001))
    assert anchored.rung == "anchor"
    assert anchored.anchored
    assert hub.report().package == "llvm-znver5 0.1.0"
