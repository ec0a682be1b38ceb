"""Functions with open axes, how they are scheduled, and what they compute at one size after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
from tvm import te, tirx  # noqa: E402

from tunehub.compiler.schedule.ladder import Scheduling  # noqa: E402
from tunehub.kernels.symbolic.schedule import by_tiles  # noqa: E402
from tunehub.tir.symbols import extent_at  # noqa: E402

from ....amx_emulation import emulated, emulation  # noqa: E402, F401
from ....cpu_features import host  # noqa: E402
from ...compiler.conftest import FakeHub  # noqa: E402

Array = np.ndarray[Any, Any]
SIZES = (1, 2, 3, 5, 6, 7, 8, 13, 16, 17, 61)


@dataclass(frozen=True, kw_only=True)
class OpenCase:
    """A function: ``mod``, and the shapes of its parameters for values of its symbols, the last of which it writes."""

    mod: Any
    shapes: Callable[..., list[tuple[int, ...]]]
    symbols: int
    dtypes: tuple[str, ...]


def open_case(
    make: Callable[..., Any], *shapes: Sequence[Any], symbols: int = 1, dtypes: Sequence[str] = ()
) -> OpenCase:
    """The function that ``make`` describes of parameters with ``shapes``; strings in them are names of symbols."""
    names = [f"s{i}" for i in range(symbols)]
    variables = {name: tirx.Var(name, "int64") for name in names}
    kinds = [*dtypes, *["float32"] * (len(shapes) - len(dtypes))]
    parameters = [
        te.placeholder(
            [variables[each] if isinstance(each, str) else tirx.const(each, "int64") for each in shape],
            kind,
            name=f"p{i}",
        )
        for i, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))
    ]
    result = make(*parameters)

    def shapes_at(*values: int) -> list[tuple[int, ...]]:
        known = dict(zip(names, values, strict=True))
        symbols = {hash(variables[name]): value for name, value in known.items()}
        given = [tuple(known.get(extent, extent) for extent in shape) for shape in shapes]
        return [*given, tuple(extent_at(extent, symbols) for extent in result.shape)]

    mod = tvm.IRModule({"main": te.create_prim_func([*parameters, result], index_dtype_override="int64")})
    return OpenCase(mod=mod, shapes=shapes_at, symbols=symbols, dtypes=tuple(kinds))


def scheduled(case: OpenCase, target: Any) -> Any:
    """What :func:`by_tiles` makes of a function; None when it does not serve it."""

    def schedule(tile: Any) -> tuple[Any, Any]:
        inner = Scheduling(tile, target, FakeHub())
        return inner.function, inner.served

    return by_tiles(case.mod["main"], target, schedule)


def compiled(mod: Any, target: Any) -> Any:
    return tvm.compile(mod, target=target)["main"]


def outputs(function: Any, case: OpenCase, values: Sequence[int], rng: Any) -> tuple[list[Array], Array]:
    """Random inputs for these values of the symbols, and what is written where NaN was before."""
    *inputs, last = case.shapes(*values)
    arrays = [
        rng.uniform(-1, 1, shape).astype("float32") if kind == "float32" else rng.integers(0, 5, shape).astype(kind)
        for shape, kind in zip(inputs, case.dtypes, strict=True)
    ]
    return arrays, written(function, arrays, last)


def written(function: Any, arrays: Sequence[Array], shape: Sequence[int]) -> Array:
    result = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    function(*[tvm.runtime.tensor(array) for array in arrays], result)
    return np.asarray(result.numpy())


@pytest.fixture(scope="session")
def cpu() -> Any:
    """This machine, two cores."""
    return host(2)


@pytest.fixture(scope="session")
def opened() -> Any:
    """The functions of this file."""
    return sys.modules[__name__]
