"""What kernels are run on to compare and time them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

BYTES = {"uint8": (0, 256), "int8": (-127, 128)}  # numbers of 8 bits: the least, and one more than the largest
_PERIOD = 1_000_003  # numbers that fill larger arrays; a prime, so that no tile repeats with it


def random_array(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    dtype: str,
    positive: bool,
    *,
    whole: bool = False,
    scale: float | None = None,
) -> npt.NDArray[Any]:
    """Numbers of either sign unless ``positive``; zeros and ones for types that are not floating, but with ``whole``
    all numbers of those of 8 bits, which nobody has for indices. Numbers of ``dtype`` are multiplied by ``scale``.

    Large arrays repeat themselves: drawing numbers would take longer than the run.
    """
    import numpy as np

    count = min(int(np.prod(shape, dtype=np.int64)), _PERIOD)
    values: npt.NDArray[Any]
    if whole and dtype in BYTES:
        values = rng.integers(*BYTES[dtype], size=count)
    elif not dtype.startswith(("float", "bfloat")):
        values = rng.integers(0, 2, size=count)  # valid as indices and as masks
    else:
        values = rng.uniform(0.1, 1.0, count) if positive else rng.standard_normal(count, dtype="float32")
    drawn = values.astype(dtype)
    return np.resize(drawn if scale is None else (drawn * scale).astype(dtype), shape)


def words_of(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.uint32]:
    """Words of 32 bits, all of which are random: packed numbers."""
    import numpy as np

    count = min(int(np.prod(shape, dtype=np.int64)), _PERIOD)
    return np.resize(rng.integers(0, 1 << 32, size=count, dtype=np.uint32), shape)
