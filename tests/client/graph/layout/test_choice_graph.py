"""The PBQP solver against brute force."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunehub.graph.layout.choice_graph import ChoiceGraph

pytestmark = pytest.mark.fast


def _random_graph(seed: int, sizes: list[int], edges: list[tuple[int, int]], *, forbidden: bool = False) -> ChoiceGraph:
    rng = np.random.default_rng(seed)
    graph = ChoiceGraph()
    for size in sizes:
        graph.add_node(rng.integers(0, 20, size).astype(float))
    for first, second in edges:
        matrix = rng.integers(0, 20, (sizes[first], sizes[second])).astype(float)
        if forbidden:  # the first choices stay possible, so that some plan is finite
            mask = rng.uniform(size=matrix.shape) < 0.3
            mask[0, 0] = False
            matrix[mask] = np.inf
        graph.add_edge(first, second, matrix)
    return graph


def _brute_force(graph: ChoiceGraph, sizes: list[int]) -> float:
    return min(graph.cost(choices) for choices in itertools.product(*map(range, sizes)))


@st.composite
def _trees(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]]]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=7))
    edges = [(draw(st.integers(0, node - 1)), node) for node in range(1, len(sizes))]
    return sizes, edges


@st.composite
def _series_parallel(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]]]:
    """Start with an edge; put nodes into edges, or beside them."""
    edges = [(0, 1)]
    count = draw(st.integers(2, 7))
    for node in range(2, count):
        first, second = edges[draw(st.integers(0, len(edges) - 1))]
        if draw(st.booleans()):
            edges.remove((first, second))
        edges += [(first, node), (node, second)]
    return draw(st.lists(st.integers(1, 3), min_size=count, max_size=count)), edges


@st.composite
def _any_graphs(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]]]:
    sizes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=7))
    pairs = list(itertools.combinations(range(len(sizes)), 2))
    return sizes, draw(st.lists(st.sampled_from(pairs), max_size=18))


@settings(deadline=None)
@given(_trees() | _series_parallel(), st.integers(0, 10**6), st.booleans())
def test_trees_and_series_parallel_graphs_are_solved_exactly(
    shape: tuple[list[int], list[tuple[int, int]]], seed: int, forbidden: bool
) -> None:
    sizes, edges = shape
    graph = _random_graph(seed, sizes, edges, forbidden=forbidden)
    plan = graph.solve()
    assert plan.exact
    assert plan.cost == graph.cost(plan.choices) == _brute_force(graph, sizes)


@settings(deadline=None)
@given(_any_graphs(), st.integers(0, 10**6), st.booleans())
def test_no_plan_is_worse_than_the_baseline_and_exact_ones_are_optimal(
    shape: tuple[list[int], list[tuple[int, int]]], seed: int, forbidden: bool
) -> None:
    sizes, edges = shape
    graph = _random_graph(seed, sizes, edges, forbidden=forbidden)
    baseline = [0] * len(sizes)
    plan = graph.solve(baseline)
    best = _brute_force(graph, sizes)
    assert best <= plan.cost == graph.cost(plan.choices) <= graph.cost(baseline)
    if plan.exact:
        assert plan.cost == best


def test_the_heuristic_is_near_the_optimum_on_dense_graphs() -> None:
    sizes = [3] * 7
    edges = list(itertools.combinations(range(7), 2))
    ratios = []
    for seed in range(40):
        graph = _random_graph(seed, sizes, edges)
        ratios.append(graph.solve().cost / _brute_force(graph, sizes))
    assert np.mean(ratios) < 1.15


def test_edges_between_one_pair_add_up_in_either_direction() -> None:
    graph = ChoiceGraph()
    first, second = graph.add_node([0, 0]), graph.add_node([0, 0, 0])
    graph.add_edge(first, second, [[1, 2, 3], [4, 5, 6]])
    graph.add_edge(second, first, [[10, 40], [20, 50], [30, 60]])
    assert [graph.cost((i, j)) for i in range(2) for j in range(3)] == [11, 22, 33, 44, 55, 66]


def test_an_empty_graph_has_an_empty_plan() -> None:
    assert ChoiceGraph().solve().choices == ()


@pytest.mark.parametrize("costs", [[], [float("nan")], [[1.0]]])
def test_a_node_needs_costs(costs: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one choice"):
        ChoiceGraph().add_node(costs)


def test_an_edge_needs_a_matrix_of_its_nodes_choices() -> None:
    graph = ChoiceGraph()
    first, second = graph.add_node([0, 1]), graph.add_node([0])
    with pytest.raises(ValueError, match=r"0-1 needs a matrix \(2, 1\)"):
        graph.add_edge(first, second, [[1, 2]])
    with pytest.raises(ValueError, match="0-0"):
        graph.add_edge(first, first, np.zeros((2, 2)))


def test_a_deep_chain_with_residuals_is_solved_in_a_moment() -> None:
    sizes = [7] * 1000
    edges = [(node, node + 1) for node in range(999)] + [(node, node + 3) for node in range(0, 996, 3)]
    graph = _random_graph(0, sizes, edges)
    started = time.perf_counter()
    assert graph.solve().exact
    assert time.perf_counter() - started < 20
