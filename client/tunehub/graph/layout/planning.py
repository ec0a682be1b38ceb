"""Layouts for a whole network: every operator gets the layout that makes the sum of kernels and transforms least.

Runs on a simplified Relax module, before legalisation. A convolution is fastest on blocked tensors
(:mod:`tunehub.kernels.te.blocked`), other operators need plain ones; between them transforms cost a pass over memory.
The operators with their choices and the tensors between them make a graph that :mod:`tunehub.graph.layout.choice_graph`
solves. Inputs and outputs of functions keep their layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.layout.channel_sums import sum_channels_by_tiles
from tunehub.graph.layout.choice_graph import ChoiceGraph, Plan
from tunehub.graph.layout.costs import PLAIN, LayoutCosts, ModelCosts
from tunehub.graph.layout.dense import pack_dense
from tunehub.graph.layout.images import filled, image_shape, is_view, transform
from tunehub.graph.layout.narrowing import Narrowing, read_narrow
from tunehub.graph.layout.operators import Choice, Operator, Rules
from tunehub.graph.layout.rules import ELEMENTWISE, recognise
from tunehub.graph.layout.sequences import as_images
from tunehub.graph.layout.shuffles import fold_shuffles
from tunehub.graph.layout.tokens import images_of_tokens
from tunehub.graph.origins import named, names_of
from tunehub.kernels.cpu.dot_product import DotProduct
from tunehub.kernels.te.grouped import TILES_INT8
from tunehub.tir.nodes import operator_of, tensor_type, variables_in

if TYPE_CHECKING:
    from tunehub.graph.types import Binding, BindingBlock, Call, Expr, Function, Var
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, Mutator

_SMALLEST_BLOCK = 4  # elements of the smallest vectors, of SSE and NEON
_UNFUSED = 2.0  # what an elementwise operator costs more in a kernel with a transform than after a convolution


def plan_layouts(
    mod: IRModule,
    target: Target,
    costs: LayoutCosts | None = None,
    *,
    blocks: Iterable[int] | None = None,
    narrowing: Narrowing | None = None,
) -> IRModule:
    """Return ``mod`` with the operators of its Relax functions in the layouts that cost least for ``target``.

    ``costs``: the model for the target by default. ``blocks``: sizes of blocks to choose from; by default the
    elements of a vector, and half of them. A target that is no CPU, and functions with more than blocks of dataflow and
    calls between them (with branches, say), are left as they are. Constant weights of matmuls are packed
    (:mod:`tunehub.graph.layout.dense`). ``narrowing``: which operators have operands in bfloat16.
    """
    if target.kind.name != "llvm":
        return mod
    from tunehub.kernels.cpu.base import machine_of
    from tunehub.kernels.cpu.dot_product import dot_product_of

    machine, dot = machine_of(target), dot_product_of(target)
    costs = costs or ModelCosts(vector=machine.vector, cores=machine.cores)
    sizes = tuple(blocks or (block for block in (machine.vector, machine.vector // 2) if block >= _SMALLEST_BLOCK))
    sizes += narrowing.blocks if narrowing is not None else ()
    rewriter: Mutator | None = None
    mod = images_of_tokens(as_images(mod, ELEMENTWISE), ELEMENTWISE, narrowing)
    if narrowing is not None and narrowing.tiles:
        mod = sum_channels_by_tiles(fold_shuffles(mod))
    for variable, function in mod.functions.items():
        if not isinstance(function, relax.Function):
            continue
        parts = _dataflow(function)
        known = _values(function.body.blocks) if parts else {}
        given = _Given(blocks=sizes + _of_integers(function, dot), dot=dot, narrowing=narrowing)
        networks = [_Network(block, known, function.body.body, given, costs) for block in parts]
        chosen = {name: choice for network in networks for name, choice in network.choose().items()}
        if any(choice.source or choice.result for choice in chosen.values()):
            rewriter = rewriter or _LayoutRewriter(mod)
            rewriter.begin({name: each for network in networks for name, each in network.operators.items()}, chosen)
            rewriter.builder_.update_func(variable, rewriter.visit_expr(function))
    planned = mod if rewriter is None else relax.transform.DeadCodeElimination()(rewriter.builder_.get())
    packed = pack_dense(planned, machine.vector, dot, narrowing)
    return packed if narrowing is None else read_narrow(packed, joined=narrowing.narrow_bytes)


def _of_integers(function: Function, dot: DotProduct | None) -> tuple[int, ...]:
    """The block of channels that instructions for matrices of integers want, where a convolution has integers."""
    values = _values(_dataflow(function)).values() if dot is not None and dot.tiles else ()
    convolutions = [each for each in values if operator_of(each) == "relax.nn.conv2d"]
    whole = any(str(tensor_type(each.args[0]).dtype) == "uint8" for each in convolutions)
    return (TILES_INT8.depth,) if whole else ()


def _dataflow(function: Function) -> list[BindingBlock]:
    """The blocks of dataflow of a function; none of one with branches. What crosses their borders stays plain."""
    blocks = list(getattr(function.body, "blocks", ()))
    branches = any(isinstance(each.value, relax.If) for block in blocks for each in block.bindings)
    return [] if branches else [block for block in blocks if isinstance(block, relax.DataflowBlock)]


def _values(blocks: Iterable[BindingBlock]) -> dict[Expr, Expr]:
    """What the variables of some blocks are bound to."""
    return {each.var: each.value for block in blocks for each in block.bindings if isinstance(each, relax.VarBinding)}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Given:
    """What a machine has: sizes of blocks, an instruction for products of integers, and what it has in bfloat16."""

    blocks: tuple[int, ...]
    dot: DotProduct | None
    narrowing: Narrowing | None


class _Network:
    """The operators of a block of dataflow that have choices, and who reads what."""

    def __init__(
        self,
        block: BindingBlock,
        known: dict[Expr, Expr],
        result: Expr,
        given: _Given,
        costs: LayoutCosts,
    ) -> None:
        """``known``: what variables are bound to in the whole function, which returns ``result``."""
        self._costs = costs
        self._transform_costs: dict[tuple[Var, int, int], float] = {}
        self._shapes: dict[Expr, tuple[int, int, int, int] | None] = {}
        self._bindings = list(block.bindings)
        values = _values([block])
        rules = Rules(
            blocks=given.blocks,
            costs=costs,
            value_of=lambda expression: _followed(expression, known),
            dot=given.dot,
            narrowing=given.narrowing,
        )
        self.operators: dict[Var, Operator] = {}
        for variable, value in values.items():
            operator = recognise(rules, value)
            if operator is not None and len(operator.choices) > 1:
                self.operators[variable] = operator
        self._plain = self._needed_plain(result)
        self._readers: dict[Var, list[Var]] = {}
        for variable, operator in self.operators.items():
            for image in dict.fromkeys(operator.inputs):
                self._readers.setdefault(image, []).append(variable)

    def choose(self) -> dict[Expr, Choice]:
        """The best choice for each operator."""
        graph = ChoiceGraph()
        nodes = {variable: graph.add_node(self._own_costs(variable)) for variable in self.operators}
        baseline = [0] * len(nodes)
        for variable, readers in self._readers.items():
            if variable in nodes and len(readers) == 1 and variable not in self._plain:
                self._connect(graph, nodes, variable, readers[0])
            else:
                baseline.append(self._share(graph, nodes, variable))
        plan: Plan = graph.solve(baseline)
        return {
            variable: operator.choices[plan.choices[nodes[variable]]] for variable, operator in self.operators.items()
        }

    def _own_costs(self, variable: Var) -> list[float]:
        """Costs of the choices; a result that nobody reads in its layout is transformed at once."""
        choices = self.operators[variable].choices
        seconds = [choice.seconds for choice in choices]
        if variable in self._readers or self._shape(variable) is None:
            return seconds
        return [own + self._transform(variable, c.result, PLAIN) for own, c in zip(seconds, choices, strict=True)]

    def _connect(self, graph: ChoiceGraph, nodes: Mapping[Expr, int], producer: Expr, reader: Expr) -> None:
        """A tensor with one reader: what the transform between the two costs, and that it keeps them from fusing."""
        results = [choice.result for choice in self.operators[producer].choices]
        operator = self.operators[reader]

        def between(result: int, choice: Choice) -> float:
            unfused = _UNFUSED * choice.seconds if operator.fuses and result != choice.source else 0.0
            return self._transform(producer, result, choice.source) + unfused

        costs = [[between(result, choice) for choice in operator.choices] for result in results]
        graph.add_edge(nodes[producer], nodes[reader], costs)

    def _share(self, graph: ChoiceGraph, nodes: Mapping[Expr, int], variable: Var) -> int:
        """A tensor with several readers exists in a set of layouts, each made once. Returns the set that is plain."""
        readers = self._readers[variable]
        made = [choice.result for choice in self.operators[variable].choices] if variable in nodes else [PLAIN]
        wanted = {choice.source for reader in readers for choice in self.operators[reader].choices}
        sets = _subsets({*wanted, PLAIN})
        allowed = [0.0 if PLAIN in each or variable not in self._plain else np.inf for each in sets]
        making = np.array([[self._transforms(variable, result, each) for each in sets] for result in made])
        if variable in nodes:
            node = graph.add_node(allowed)
            graph.add_edge(nodes[variable], node, making)
        else:
            node = graph.add_node(np.array(allowed) + making[0])
        for reader in readers:
            sources = [choice.source for choice in self.operators[reader].choices]
            reading = [[0.0 if source in each else np.inf for source in sources] for each in sets]
            graph.add_edge(node, nodes[reader], reading)
        return sets.index((PLAIN,))

    def _transforms(self, variable: Var, source: int, results: Iterable[int]) -> float:
        return sum(self._transform(variable, source, result) for result in results)

    def _transform(self, variable: Var, source: int, result: int) -> float:
        if source == result:
            return 0.0
        known = self._transform_costs.get((variable, source, result))
        if known is None:
            shape = self._shape(variable)
            known = 0.0
            if shape is not None and not is_view(shape, (source, result)):
                known = self._costs.transform(max(filled(shape, source), filled(shape, result)))
            self._transform_costs[variable, source, result] = known
        return known

    def _shape(self, variable: Var) -> tuple[int, int, int, int] | None:
        """As `image_shape`, which asks TVM for every extent; kept, because it is asked for every pair of layouts."""
        if variable not in self._shapes:
            self._shapes[variable] = image_shape(variable)
        return self._shapes[variable]

    def _needed_plain(self, result: Expr) -> set[Expr]:
        """The variables that something reads that has no choice; tuples count where somebody reads the tuple."""
        plain = set(variables_in(result))
        for binding in reversed(self._bindings):
            if not isinstance(binding.var, relax.DataflowVar):
                plain.add(binding.var)
            unread = isinstance(binding.value, relax.Tuple) and binding.var not in plain
            if binding.var not in self.operators and not unread:
                plain.update(variables_in(binding.value))
        return plain


def _followed(expression: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """What a variable is bound to, followed to the end; other expressions are themselves."""
    while isinstance(expression, relax.Var) and expression in values:
        expression = values[expression]
    return expression


def _subsets(layouts: Iterable[int]) -> list[tuple[int, ...]]:
    """The sets of layouts that are not empty."""
    ordered = sorted(layouts)
    return [each for size in range(1, len(ordered) + 1) for each in itertools.combinations(ordered, size)]


@mutator
class _LayoutRewriter(PyExprMutator):  # type: ignore[misc]
    """Writes a function with the chosen layouts; a tensor is transformed where it is first needed in a layout."""

    def begin(self, operators: Mapping[Expr, Operator], chosen: Mapping[Expr, Choice]) -> None:
        """Take over the plan for the function that is visited next."""
        self._operators = operators
        self._chosen = {variable: choice for variable, choice in chosen.items() if choice.source or choice.result}
        self._written: dict[Var, dict[int, Var]] = {}  # variable -> layout -> its value

    def visit_dataflow_block_(self, block: BindingBlock) -> BindingBlock:
        self._written = {}  # what is written in one block of dataflow is not known in the next
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: Binding) -> None:
        variable = binding.var
        choice = self._chosen.get(variable)
        if choice is None:
            super().visit_var_binding_(binding)
            return
        operator = self._operators[variable]
        inputs = [self._in_layout(image, choice.source) for image in operator.inputs]
        written = named(operator.write(self.builder_, choice, inputs), names_of(variable, binding.value))
        if isinstance(variable, relax.DataflowVar):
            self._written[variable] = {choice.result: self.builder_.emit(written)}
            return
        if choice.result:
            written = self._transformed(variable, self.builder_.emit(written), (choice.result, PLAIN))
        super().visit_var_binding_(relax.VarBinding(variable, written))

    def visit_call_(self, call: Call) -> Expr:
        """Two reshapes in a row, the first of them a transform, become one: what remains is a view."""
        call = super().visit_call_(call)
        if getattr(call.op, "name", "") != "relax.reshape" or not isinstance(call.args[0], relax.Var):
            return call
        before = self.lookup_binding(call.args[0])
        if operator_of(before) != "relax.reshape":
            return call
        return relax.op.reshape(before.args[0], call.args[1])

    def visit_dataflow_var_(self, variable: Var) -> Expr:
        if variable in self._written:
            return self._in_layout(variable, PLAIN)
        return super().visit_dataflow_var_(variable)

    def _in_layout(self, variable: Var, layout: int) -> Expr:
        if variable not in self._written:
            self._written[variable] = {PLAIN: self.visit_expr(variable)}
        known = self._written[variable]
        if layout not in known:
            made = next(iter(known))  # the first layout is that in which the tensor was made
            known[layout] = self.builder_.emit(self._transformed(variable, known[made], (made, layout)))
        return known[layout]

    def _transformed(self, variable: Var, expression: Expr, layouts: tuple[int, int]) -> Expr:
        """The value of ``variable``, given in the first layout, in the second."""
        shape = image_shape(variable)
        return expression if shape is None else transform(self.builder_, expression, shape, layouts)
