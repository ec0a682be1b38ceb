"""TVM's tensor intrinsics, only those of the device at hand: all of them take some seconds to import."""

from __future__ import annotations

from tunehub.tir.intrinsics import import_intrinsics


def load_cpu_intrinsics() -> None:
    """Register the tensor intrinsics of x86 only.

    The package's ``__init__`` imports every architecture, so its submodules are loaded under a bare package module. It
    stays: TVM's TuneContext imports the package for its effect (``s_tir/meta_schedule/tune_context.py``), and whoever
    needs another architecture imports its submodule by name.
    """
    import sys
    import types
    from pathlib import Path

    import tvm

    name = "tvm.s_tir.tensor_intrin"
    if name in sys.modules:
        return
    package = types.ModuleType(name)
    package.__path__ = [str(Path(tvm.__file__).parent / "s_tir" / "tensor_intrin")]
    sys.modules[name] = package
    try:
        for module in ("dot_product_common", "x86"):
            import_intrinsics(f"{name}.{module}")
    except BaseException:
        del sys.modules[name]
        raise


def load_cuda_intrinsics() -> None:
    """Register the tensor intrinsics of CUDA, which takes some seconds once; those of other devices are left out."""
    load_cpu_intrinsics()
    import_intrinsics("tvm.s_tir.tensor_intrin.cuda")
