"""A module made ready for schedules: simplified, in chosen layouts, legalised and fused. Its functions are workloads.

The order of passes is TVM's own (``relax/backend/*/pipeline.py``) with the hub's steps in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tunehub.kernels.template_fit import machine_for
from tunehub.tir.nodes import calls_in, is_constant, operator_of

if TYPE_CHECKING:
    from tunehub.graph.layout.narrowing import Narrowing
    from tunehub.options import Layout, Precision
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, Pass, PassContext

DEFAULT_SCHEDULE = "ApplyDefaultSchedule"  # TVM's pass, which comes later here
NARROW_PRECISIONS = ("bf16", "auto")  # that may round operands to bfloat16


def prepare(
    mod: IRModule,
    target: Target,
    *,
    layout: Layout = "keep",
    channels_last: bool = False,
    precision: Precision = "float32",
    winograd: bool = False,
    note: Callable[[str], None] | None = None,
) -> IRModule:
    """Return ``mod`` simplified, legalised and fused as a compile does it: what remains are workloads.

    The builder tunes the functions of this module, so that a package and a compile agree on what a workload is. On CPUs
    constant arguments are marked as free to change their layout (weights are packed at compile time), and
    ``layout="auto"`` chooses the layouts of operators (:mod:`tunehub.graph.layout.planning`), packs the weights of
    matmuls and writes exp, erf and the like as polynomials (:mod:`tunehub.graph.numerics.fast_math`); modules for
    targets that are no CPUs keep theirs. With it, quantised models compute in integers where the target has
    instructions for that (:mod:`tunehub.graph.quantised.integers`), and ``note`` is told how much of them.
    ``channels_last``: channels are last (:mod:`tunehub.graph.layout.cuda.channels_last`). ``precision``: ``tf32`` gives
    products in float32 weights that tensor cores can read; ``bf16`` rounds operands of products and convolutions on
    CPUs that multiply these faster, but of those that :mod:`tunehub.graph.winograd` makes faster (``winograd``) not;
    ``auto`` does so where that is known.
    """
    import tvm
    from tvm import relax

    from tunehub.graph.boolean_sums import boolean_sums_as_integers
    from tunehub.graph.chosen_rows import chosen_rows
    from tunehub.graph.effects import keep_effects, plain_casts
    from tunehub.graph.long_concats import shorter_concats
    from tunehub.graph.quantised.taken_rows import quantised_rows
    from tunehub.graph.shapes.bounds import within_bounds
    from tunehub.graph.shapes.reshapes import reshapes_are_views

    simplify = simplifying_passes(mod)
    planning = [_layout_pass(target, precision=precision, winograd=winograd)] if layout == "auto" and simplify else []
    passes = [
        within_bounds,
        keep_effects,
        *(_quantised_passes(target, note) if planning else []),
        *simplify,
        *([shorter_concats] if target.kind.name == "llvm" else []),
        chosen_rows,
        quantised_rows,
        *_attention_passes(target, channels_last=channels_last),
        *(_integer_passes(target) if planning else []),
        *_channels_last_passes(wanted=channels_last),
        *_accuracy_passes(target, precision),
        *(_packed_passes(target, precision, note) if planning else []),
        *planning,
        boolean_sums_as_integers,
        *relax.pipeline.library_dispatch_passes(target),
        *_legalizing_passes(target),
        plain_casts,
        reshapes_are_views,
    ]
    if target.kind.name == "llvm":
        passes.append(relax.transform.AttachAttrLayoutFreeBuffers())
    with target:
        return tvm.transform.Sequential(passes)(mod)


def simplifying_passes(mod: IRModule) -> list[Pass]:
    """Batch norms in inference mode go into convolutions. A module with one in training mode keeps what TVM decomposes,
    but for those of constants, which standardise weights: TVM's pass takes each for one in inference mode."""
    from tvm import relax

    from tunehub.graph.raising import raise_kernels
    from tunehub.graph.simplify import simplify

    norms = [call for call in calls_in(mod) if operator_of(call) == "relax.nn.batch_norm"]
    training = any(call.attrs.training and not all(map(is_constant, call.args[:3])) for call in norms)
    return [
        relax.transform.CanonicalizeBindings(),
        simplify,
        raise_kernels,
        *([] if training else [relax.transform.DecomposeOpsForInference()]),
        relax.transform.CanonicalizeBindings(),
    ]


def _quantised_passes(target: Target, note: Callable[[str], None] | None) -> list[Pass]:
    """Models in QDQ form in integers; on CPUs what they quantise by its own extremes in one kernel each."""
    import tvm
    from tvm import relax

    if target.kind.name not in ("llvm", "cuda"):
        return []
    from tunehub.graph.attention.cuda.integers import IntegerAttentions
    from tunehub.graph.leading_axes import reshapes_behind_rows
    from tunehub.graph.quantised.constants import constants_in_float
    from tunehub.graph.quantised.dynamic import extremes_of_rows, quantised_at_once
    from tunehub.graph.quantised.integers import in_integers
    from tunehub.graph.quantised_tensors import QUANTIZE
    from tunehub.kernels.cpu.dot_product import dot_product_of
    from tunehub.kernels.cuda.integer_unit import tensor_cores_of

    @tvm.transform.module_pass(opt_level=0, name="tunehub.in_integers")  # type: ignore[untyped-decorator]
    def quantised(mod: IRModule, _context: PassContext) -> IRModule:
        if target.kind.name == "cuda":
            rows = extremes_of_rows(mod)
            if any(operator_of(call) == QUANTIZE for call in calls_in(mod)):
                rows = reshapes_behind_rows(rows)
            return in_integers(rows, tensor_cores_of(target), note, IntegerAttentions)
        return quantised_at_once(in_integers(mod, dot_product_of(target), note), target)

    return [relax.transform.CanonicalizeBindings(), quantised, constants_in_float]


def _integer_passes(target: Target) -> list[Pass]:
    """On GPUs: quantising as operators on elements, and images of integers in the order that tensor cores read."""
    import tvm
    from tvm import relax

    if target.kind.name != "cuda":
        return []
    from tunehub.graph.layout.cuda.channels_last import integers_channels_last
    from tunehub.graph.layout.cuda.whole_channels import whole_channels
    from tunehub.graph.layout.shuffles import fold_shuffles
    from tunehub.graph.quantised.elements import quantise_by_element
    from tunehub.graph.quantised.integer_readers import averages_of_integers
    from tunehub.graph.quantised.numbers import numbers_without_axes
    from tunehub.graph.quantised.residuals import residuals_in_one_step

    @tvm.transform.module_pass(opt_level=0, name="tunehub.integers_on_gpus")  # type: ignore[untyped-decorator]
    def convert(mod: IRModule, _context: PassContext) -> IRModule:
        quantised = quantise_by_element(mod)
        if quantised.same_as(mod):
            return mod
        last = integers_channels_last(whole_channels(fold_shuffles(quantised)))
        return averages_of_integers(residuals_in_one_step(numbers_without_axes(last)))

    return [convert, relax.transform.CanonicalizeBindings()]


def _packed_passes(target: Target, precision: Precision, note: Callable[[str], None] | None) -> list[Pass]:
    """Products with weights in groups of 4 or 8 bits as they lie, on CPUs."""
    import tvm

    if target.kind.name != "llvm":
        return []
    from tunehub.graph.quantised.packed_products import with_packed_products

    @tvm.transform.module_pass(opt_level=0, name="tunehub.packed_products")  # type: ignore[untyped-decorator]
    def packed(mod: IRModule, _context: PassContext) -> IRModule:
        return with_packed_products(mod, target, narrow=precision in NARROW_PRECISIONS, note=note)

    return [packed]


def _legalizing_passes(target: Target) -> list[Pass]:
    """TVM's own; before it folds constants, those that need no code are."""
    from tvm import relax

    from tunehub.graph.constants import evaluate_constants
    from tunehub.graph.gathers import quiet_gathers
    from tunehub.graph.joins import joins_apart
    from tunehub.graph.origins import fused_with_names, spread_names
    from tunehub.graph.side_steps import side_steps_in_epilogues
    from tunehub.graph.small_reductions import small_reductions_apart, small_reductions_apart_on_cpus

    found = []
    for each in relax.pipeline.legalize_passes(target):
        name = str(each.info.name)
        found += [evaluate_constants] if name == "FoldConstant" else []
        found += [spread_names] if name in ("LegalizeOps", "FuseOps") else []
        found += [quiet_gathers] if name == "LegalizeOps" else []
        found += [] if DEFAULT_SCHEDULE in name else [fused_with_names(each) if name == "FuseOps" else each]
    own = {"cuda": [side_steps_in_epilogues, small_reductions_apart], "llvm": [small_reductions_apart_on_cpus]}
    return [*found, *own.get(target.kind.name, []), joins_apart, spread_names]


def _channels_last_passes(*, wanted: bool) -> list[Pass]:
    """Images in the order that the GPU computes best, with what was transposed twice taken out."""
    import tvm
    from tvm import relax

    if not wanted:
        return []
    from tunehub.graph.layout.cuda.channels_last import channels_last

    @tvm.transform.module_pass(opt_level=0, name="tunehub.channels_last")  # type: ignore[untyped-decorator]
    def convert(mod: IRModule, _context: PassContext) -> IRModule:
        return channels_last(mod)

    return [convert, relax.transform.CanonicalizeBindings()]


def _accuracy_passes(target: Target, precision: Precision) -> list[Pass]:
    """What keeps TVM's code for ``target`` from wrong results, and products as that target computes them best."""
    from tunehub.graph.numerics.wide_sums import wide_sums, wide_sums_of_half

    if target.kind.name != "cuda":
        return [wide_sums_of_half]
    from tunehub.graph.gated import gated_products
    from tunehub.graph.gates import gates_apart
    from tunehub.graph.leading_axes import reshapes_behind_rows
    from tunehub.graph.moved_norms import moved_norms
    from tunehub.graph.numerics.accurate_math import accurate_math
    from tunehub.graph.products import gpu_products, gpu_products_in_tf32
    from tunehub.graph.row_axes import rows_in_one_axis

    products = gpu_products_in_tf32 if precision == "tf32" else gpu_products
    rows = [moved_norms, reshapes_behind_rows]
    return [gates_apart, *rows, accurate_math, wide_sums, rows_in_one_axis, gated_products, products]


def _attention_passes(target: Target, *, channels_last: bool) -> list[Pass]:
    """Attention as one function each. Before images are transposed: TVM's ConvertLayout fails on a ``squeeze`` whose
    axis counts from the end (0.27: ``std::bad_alloc``), as vision transformers have it in front of their heads."""
    if target.kind.name != "cuda":
        return []
    from tunehub.graph.attention.cuda.images import attention_over_pixels
    from tunehub.graph.attention.cuda.joining import join_attention
    from tunehub.kernels.cuda.attention.rule import serves

    if not serves(target):
        return []
    return [attention_over_pixels, join_attention] if channels_last else [join_attention]


def _layout_pass(target: Target, *, precision: Precision, winograd: bool) -> Pass:
    import tvm

    @tvm.transform.module_pass(opt_level=0, name="tunehub.plan_layouts")  # type: ignore[untyped-decorator]
    def planned(mod: IRModule, _context: PassContext) -> IRModule:
        from tunehub.graph.attention.cpu.joining import join_attention
        from tunehub.graph.layout.planning import plan_layouts
        from tunehub.graph.numerics.fast_math import fast_math
        from tunehub.graph.quantised.rounding import quantise_in_vectors
        from tunehub.kernels.cpu.dot_product import dot_product_of

        if target.kind.name != "llvm":
            return mod
        narrowing = _narrowing(target, precision, winograd=winograd)
        mod = plan_layouts(mod, target, narrowing=narrowing)
        joined = fast_math(join_attention(mod, machine_for(target).vector, narrowing))
        return quantise_in_vectors(joined, integers=dot_product_of(target) is not None)

    return planned


def _narrowing(target: Target, precision: Precision, *, winograd: bool) -> Narrowing | None:
    """What has operands in bfloat16 on ``target``; None where that is not wanted or would not be faster."""
    if precision not in NARROW_PRECISIONS:
        return None
    from tunehub.graph.layout.narrowing import Narrowing, doubt
    from tunehub.kernels.cpu import amx, pairs

    machine = machine_for(target)
    if doubt(target, machine, asked=precision == "bf16"):
        return None
    tiles = amx.doubt(target, "bfloat16") is None
    rows_in_tiles = tiles and pairs.doubt(target) is None
    return Narrowing(machine=machine, winograd=winograd, tiles=tiles, rows_in_tiles=rows_in_tiles)
