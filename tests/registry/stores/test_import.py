"""Opening a store loads no library that only other stores, or only asking, need."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.fast

CHECK = """
import sys
from tunehub_registry.stores.open import open_store
open_store("/x"); open_store("https://host/x"); open_store("s3://bucket/x")
import tunehub_registry.stores.probe
print([name for name in ("requests", "urllib3", "boto3", "botocore", "filelock", "tuf") if name in sys.modules])
"""


def test_is_lazy() -> None:
    ended = subprocess.run([sys.executable, "-W", "error", "-c", CHECK], check=True, capture_output=True, text=True)
    assert ended.stdout == "[]\n"
