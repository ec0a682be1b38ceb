"""TVM's classes of language models, as type names; those of Relax are in :mod:`tunehub.graph.types`, which says why."""

from __future__ import annotations

from typing import Any, TypeAlias

Tensor: TypeAlias = Any
"""``tvm.relax.frontend.nn.Tensor``: a value while a module is exported."""
NNModule: TypeAlias = Any
"""``tvm.relax.frontend.nn.Module``."""
TETensor: TypeAlias = Any
"""``tvm.te.Tensor``."""
KVCache: TypeAlias = Any
"""``PagedKVCache`` while a module is exported, and the runtime's object of it."""
SizeVar: TypeAlias = Any
"""A size of the cache, known at run time."""
DeviceTensor: TypeAlias = Any
"""``tvm.runtime.Tensor``."""
Device: TypeAlias = Any
"""``tvm.runtime.Device``."""
