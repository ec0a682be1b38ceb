"""tunehub_builder: tunes networks, distils and checks the records, packs and publishes them."""

from __future__ import annotations
