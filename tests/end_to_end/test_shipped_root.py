"""The root of tunehub's own registry, which the wheel ships: mirrors of that registry are verified with it."""

from __future__ import annotations

import pytest
from tuf.api.metadata import Metadata, Root

from tunehub.registries.embedded import embedded_registry
from tunehub.registries.trust_store import SHIPPED_ROOT

pytestmark = pytest.mark.fast


def test_the_shipped_root_is_signed_by_its_own_keys_two_of_three() -> None:
    root = Metadata[Root].from_bytes((embedded_registry() / SHIPPED_ROOT).read_bytes())
    root.signed.verify_delegate(Root.type, root.signed_bytes, root.signatures)
    grant = root.signed.roles[Root.type]
    assert (grant.threshold, len(grant.keyids)) == (2, 3)
    others = {keyid for role in ("targets", "snapshot", "timestamp") for keyid in root.signed.roles[role].keyids}
    assert not others & set(grant.keyids), "a root key signs nothing else"
