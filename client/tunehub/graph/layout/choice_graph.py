"""Choosing one of a few alternatives for every node of a graph, at the least total cost.

The problem (partitioned Boolean quadratic programming, PBQP): each node has a cost for each of its choices, each edge
a cost for each pair of choices of its ends; the sum is to be minimal. Layouts of a network's operators are such
choices; the edges are the transforms between them. A node with at most two neighbours can be taken out of the graph
without losing the optimum (reductions R0, RI, RII), which solves trees and series-parallel graphs, and so most
networks, exactly. Where only nodes with more neighbours are left, one is decided by a heuristic (RN).

Sources: B. Scholz, E. Eckstein, "Register allocation for irregular architectures", LCTES 2002; L. Hames, B. Scholz,
"Nearly optimal register allocation with PBQP", JMLC 2006.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

_Costs = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One choice a node, in the order the nodes were added. ``exact``: no plan costs less."""

    choices: tuple[int, ...]
    cost: float
    exact: bool


class ChoiceGraph:
    """Nodes with costs by choice and edges with costs by pair of choices. Infinite costs forbid; none is negative
    infinity or not a number."""

    def __init__(self) -> None:
        self._nodes: list[_Costs] = []
        self._edges: dict[tuple[int, int], _Costs] = {}

    def add_node(self, costs: Sequence[float] | _Costs) -> int:
        """Add a node with the cost of each choice; returns its number. Raises ValueError without any choice."""
        vector = np.array(costs, dtype=np.float64)
        if vector.ndim != 1 or not vector.size or np.isnan(vector).any():
            raise ValueError(f"a node needs the cost of at least one choice, none of them NaN: {vector}")
        self._nodes.append(vector)
        return len(self._nodes) - 1

    def add_edge(self, first: int, second: int, costs: npt.ArrayLike) -> None:
        """Add ``costs[choice of first, choice of second]`` to the total; edges between one pair add up.

        Raises ValueError when the two are one node or the shape is not that of their choices.
        """
        matrix = np.array(costs, dtype=np.float64)
        expected = (self._nodes[first].size, self._nodes[second].size)
        if first == second or matrix.shape != expected or np.isnan(matrix).any():
            raise ValueError(f"an edge {first}-{second} needs a matrix {expected} without NaN: {matrix.shape}")
        if first > second:
            first, second, matrix = second, first, matrix.T
        self._edges[first, second] = self._edges.get((first, second), np.zeros_like(matrix)) + matrix

    def cost(self, choices: Sequence[int]) -> float:
        """The total cost of a plan."""
        nodes = sum(float(costs[choice]) for costs, choice in zip(self._nodes, choices, strict=True))
        return nodes + sum(float(matrix[choices[a], choices[b]]) for (a, b), matrix in self._edges.items())

    def solve(self, baseline: Sequence[int] | None = None) -> Plan:
        """Return the best plan found; never one that costs more than ``baseline``, if that is given."""
        choices, exact = _Reduction(self._nodes, self._edges).solve()
        if exact:
            return Plan(choices=tuple(choices), cost=self.cost(choices), exact=True)
        starts = [choices] if baseline is None else [choices, list(baseline)]
        best = min((self._improved(start) for start in starts), key=self.cost)
        return Plan(choices=tuple(best), cost=self.cost(best), exact=False)

    def _improved(self, start: Sequence[int]) -> list[int]:
        """Change single nodes as long as that lowers the cost."""
        adjacent = _adjacency(len(self._nodes), self._edges)
        choices = list(start)
        changed = True
        while changed:
            changed = False
            for node, costs in enumerate(self._nodes):
                total = _conditional(costs, adjacent[node], choices)
                best = int(np.argmin(total))
                if total[best] < total[choices[node]] - 1e-12 * abs(total[best]):
                    choices[node] = best
                    changed = True
        return choices


@dataclass(frozen=True, slots=True)
class _Removed:
    """A node taken out of the graph, with what decides it once its neighbours then are decided."""

    node: int
    costs: _Costs
    adjacent: Mapping[int, _Costs]


class _Reduction:
    """A graph that shrinks to nothing; the nodes are then decided in the reverse order of their removal."""

    def __init__(self, nodes: Sequence[_Costs], edges: Mapping[tuple[int, int], _Costs]) -> None:
        self._costs = {node: costs.copy() for node, costs in enumerate(nodes)}
        self._adjacent = dict(enumerate(_adjacency(len(nodes), edges)))
        self._by_degree = [(len(adjacent), node) for node, adjacent in self._adjacent.items()]  # a heap, old ones in it
        heapify(self._by_degree)
        self._removed: list[_Removed] = []
        self._exact = True

    def solve(self) -> tuple[list[int], bool]:
        """The choices, and whether they are known to be optimal."""
        choices = [0] * len(self._costs)
        while self._costs:
            node = self._lightest()
            if len(self._adjacent[node]) > 2:
                self._decide(max(self._costs, key=lambda each: len(self._adjacent[each])))
            else:
                self._reduce(node)
        for removed in reversed(self._removed):
            choices[removed.node] = int(np.argmin(_conditional(removed.costs, removed.adjacent, choices)))
        return choices, self._exact

    def _lightest(self) -> int:
        """The node with the fewest neighbours, of several the first."""
        degree, node = self._by_degree[0]
        while node not in self._costs or len(self._adjacent[node]) != degree:
            heappop(self._by_degree)
            degree, node = self._by_degree[0]
        return node

    def _reduce(self, node: int) -> None:
        """R0, RI, RII: what the node's best choice costs becomes a cost of its neighbours."""
        removed = self._take(node)
        neighbours = list(removed.adjacent)
        if len(neighbours) == 1:
            matrix = removed.adjacent[neighbours[0]]
            self._costs[neighbours[0]] += np.min(removed.costs[:, None] + matrix, axis=0)
        elif len(neighbours) == 2:
            first, second = neighbours
            to_first, to_second = removed.adjacent[first], removed.adjacent[second]
            joined = np.min(removed.costs[:, None, None] + to_first[:, :, None] + to_second[:, None, :], axis=0)
            self._connect(first, second, joined)
            self._connect(second, first, joined.T)

    def _decide(self, node: int) -> None:
        """RN: take the choice that is best if each neighbour could follow it regardless of the others."""
        self._exact = False
        removed = self._take(node)
        total = removed.costs.copy()
        for neighbour, matrix in removed.adjacent.items():
            total += np.min(matrix + self._costs[neighbour][None, :], axis=1)
        choice = int(np.argmin(total))
        only = np.full_like(removed.costs, np.inf)
        only[choice] = 0
        self._removed[-1] = _Removed(node, only, {})
        for neighbour, matrix in removed.adjacent.items():
            self._costs[neighbour] += matrix[choice]

    def _take(self, node: int) -> _Removed:
        removed = _Removed(node, self._costs.pop(node), self._adjacent.pop(node))
        for neighbour in removed.adjacent:
            del self._adjacent[neighbour][node]
            self._weigh(neighbour)
        self._removed.append(removed)
        return removed

    def _connect(self, first: int, second: int, matrix: _Costs) -> None:
        known = self._adjacent[first].get(second)
        self._adjacent[first][second] = matrix if known is None else known + matrix
        self._weigh(first)

    def _weigh(self, node: int) -> None:
        heappush(self._by_degree, (len(self._adjacent[node]), node))


def _adjacency(count: int, edges: Mapping[tuple[int, int], _Costs]) -> list[dict[int, _Costs]]:
    """For each node its neighbours, each with costs by (own choice, the neighbour's choice)."""
    adjacent: list[dict[int, _Costs]] = [{} for _ in range(count)]
    for first, second, matrix in _both_ways(edges):
        adjacent[first][second] = matrix
    return adjacent


def _both_ways(edges: Mapping[tuple[int, int], _Costs]) -> Iterator[tuple[int, int, _Costs]]:
    for (first, second), matrix in edges.items():
        yield first, second, matrix
        yield second, first, matrix.T


def _conditional(costs: _Costs, adjacent: Mapping[int, _Costs], choices: Sequence[int]) -> _Costs:
    """The costs of a node's choices when its neighbours have theirs."""
    total: _Costs = costs.copy()
    for neighbour, matrix in adjacent.items():
        total += matrix[:, choices[neighbour]]
    return total
