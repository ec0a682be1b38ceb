from __future__ import annotations

import pytest

from .fakes import MemoryStore, Signed, Unsigned


@pytest.fixture
def signed() -> Signed:
    return Signed(MemoryStore()).init()


@pytest.fixture(params=[Signed, Unsigned], ids=["signed", "unsigned"])
def any_registry(request: pytest.FixtureRequest) -> Signed | Unsigned:
    registry: Signed | Unsigned = request.param(MemoryStore())
    return registry.init()
