"""Minimum cut of a directed graph with integer capacities (Dinic, 1970)."""

from __future__ import annotations

from collections import deque

__all__ = ["INFINITE", "Network"]

INFINITE = 1 << 60
"""A capacity that no minimum cut crosses."""


class Network:
    """A flow network over vertices numbered from 0; vertex 0 is the source, 1 the sink."""

    __slots__ = ("_edges", "_heads", "_room")

    def __init__(self) -> None:
        self._heads: list[int] = []  # edge -> vertex it enters; edge ^ 1 is its reverse
        self._room: list[int] = []  # edge -> capacity left
        self._edges: list[list[int]] = [[], []]  # vertex -> edges leaving it

    def vertex(self) -> int:
        """A new vertex."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, tail: int, head: int, capacity: int) -> None:
        """Add an edge; one of capacity 0 is left out."""
        if capacity <= 0:
            return
        number = len(self._heads)
        self._heads += (head, tail)
        self._room += (min(capacity, INFINITE), 0)
        self._edges[tail].append(number)
        self._edges[head].append(number + 1)

    def min_cut(self) -> tuple[int, list[bool]]:
        """The cut's capacity and, for each vertex, whether it is on the sink's side.

        Of all minimum cuts it takes the one nearest the sink: a vertex is on that side only if it must be.
        Raises ``OverflowError`` when every cut crosses an infinite edge.
        """
        total = 0
        while True:
            level = self._levels()
            if level[1] < 0:
                break
            total += self._blocking_flow(level)
            if total >= INFINITE:
                raise OverflowError("no finite cut separates source and sink")
        return total, self._sink_side()

    def _levels(self) -> list[int]:
        """Distance of every vertex from the source over edges with room; -1 where there is no way."""
        heads, room, edges = self._heads, self._room, self._edges
        level = [-1] * len(edges)
        level[0] = 0
        queue = deque([0])
        while queue:
            vertex = queue.popleft()
            if vertex == 1:
                break
            deeper = level[vertex] + 1
            for edge in edges[vertex]:
                head = heads[edge]
                if room[edge] and level[head] < 0:
                    level[head] = deeper
                    queue.append(head)
        return level

    def _blocking_flow(self, level: list[int]) -> int:
        """Saturate every shortest path, depth first without recursion."""
        heads, room, edges = self._heads, self._room, self._edges
        turn = [0] * len(edges)
        total, path, vertex = 0, list[int](), 0
        while True:
            if vertex == 1:
                amount = min(room[edge] for edge in path)
                total += amount
                cut = 0
                for position in range(len(path) - 1, -1, -1):
                    edge = path[position]
                    room[edge] -= amount
                    room[edge ^ 1] += amount
                    if not room[edge]:
                        cut = position
                vertex = heads[path[cut] ^ 1]
                del path[cut:]
                continue
            leaving, at, deeper = edges[vertex], turn[vertex], level[vertex] + 1
            while at < len(leaving):
                edge = leaving[at]
                if room[edge] and level[heads[edge]] == deeper:
                    break
                at += 1
            turn[vertex] = at
            if at < len(leaving):
                path.append(leaving[at])
                vertex = heads[leaving[at]]
            elif path:
                edge = path.pop()
                vertex = heads[edge ^ 1]
                turn[vertex] += 1
            else:
                return total

    def _sink_side(self) -> list[bool]:
        """Vertices that still reach the sink over edges with room."""
        heads, room, edges = self._heads, self._room, self._edges
        side = [False] * len(edges)
        side[1] = True
        stack = [1]
        while stack:
            for edge in edges[stack.pop()]:
                tail = heads[edge]
                if room[edge ^ 1] and not side[tail]:
                    side[tail] = True
                    stack.append(tail)
        return side
