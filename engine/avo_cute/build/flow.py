"""Basic blocks, dominators and natural loops of a list of instructions.

Textbook definitions (Aho, Lam, Sethi, Ullman, *Compilers*, chapter 9): a back edge goes to a block
that dominates its source; the natural loop of a header is every block that reaches one of its back
edges without passing the header. Unreachable blocks belong to no loop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Flow = tuple[bool, tuple[int, ...]]  # (falls through, addresses it may jump to)


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions `start` to `stop` (excluded); `dominator` is the immediate one, -1 for none."""

    start: int
    stop: int
    successors: tuple[int, ...]
    dominator: int


@dataclass(frozen=True, slots=True)
class Loop:
    """A natural loop. `always` are the blocks that every iteration passes; `depth` 0 is outermost.

    `parent` is the index of the smallest loop around it, -1 for none.
    """

    header: int
    blocks: frozenset[int]
    always: frozenset[int]
    depth: int
    parent: int


def analyse_flow(
    flows: Sequence[Flow], addresses: Sequence[int]
) -> tuple[tuple[Block, ...], tuple[Loop, ...]]:
    """Blocks in address order, and loops, outer before inner."""
    if not flows:
        return (), ()
    where = {a: n for n, a in enumerate(addresses)}
    starts = _leaders(flows, where)
    edges = _edges(flows, where, starts)
    order = _reverse_postorder(edges)
    idom = _dominators(edges, order)
    stops = [*starts[1:], len(flows)]
    blocks = tuple(
        Block(a, b, tuple(e), d) for a, b, e, d in zip(starts, stops, edges, idom, strict=True)
    )
    return blocks, _loops(edges, idom, order)


def _leaders(flows: Sequence[Flow], where: Mapping[int, int]) -> list[int]:
    leaders = {0}
    for n, (falls, targets) in enumerate(flows):
        leaders.update(where[t] for t in targets if t in where)
        if (targets or not falls) and n + 1 < len(flows):
            leaders.add(n + 1)
    return sorted(leaders)


def _edges(flows: Sequence[Flow], where: Mapping[int, int], starts: list[int]) -> list[list[int]]:
    edges = []
    for n, stop in enumerate([*starts[1:], len(flows)]):
        falls, targets = flows[stop - 1]
        out = [n + 1] if falls and stop < len(flows) else []
        out += [bisect_right(starts, where[t]) - 1 for t in targets if t in where]
        edges.append(list(dict.fromkeys(out)))
    return edges


def _reverse_postorder(edges: list[list[int]]) -> list[int]:
    seen, done = {0}, []
    stack = [(0, iter(edges[0]))]
    while stack:
        node, rest = stack[-1]
        fresh = next((s for s in rest if s not in seen), None)
        if fresh is None:
            done.append(node)
            stack.pop()
        else:
            seen.add(fresh)
            stack.append((fresh, iter(edges[fresh])))
    return done[::-1]


def _dominators(edges: list[list[int]], order: list[int]) -> list[int]:
    """Immediate dominators (Cooper, Harvey, Kennedy, "A simple, fast dominance algorithm")."""
    rank = {b: n for n, b in enumerate(order)}
    before = _predecessors(edges, rank)
    idom: dict[int, int] = {order[0]: order[0]}
    changed = True
    while changed:
        changed = False
        for b in order[1:]:
            known = [p for p in before[b] if p in idom]
            new = known[0]
            for p in known[1:]:
                new = _meet(new, p, idom, rank)
            if idom.get(b) != new:
                idom[b], changed = new, True
    return [-1 if b == order[0] else idom.get(b, -1) for b in range(len(edges))]


def _meet(a: int, b: int, idom: dict[int, int], rank: dict[int, int]) -> int:
    while a != b:
        while rank[a] > rank[b]:
            a = idom[a]
        while rank[b] > rank[a]:
            b = idom[b]
    return a


def _predecessors(edges: list[list[int]], reachable: dict[int, int]) -> list[list[int]]:
    before: list[list[int]] = [[] for _ in edges]
    for b in reachable:
        for s in edges[b]:
            before[s].append(b)
    return before


def _loops(edges: list[list[int]], idom: list[int], order: list[int]) -> tuple[Loop, ...]:
    rank = {b: n for n, b in enumerate(order)}
    before = _predecessors(edges, rank)
    latches: dict[int, list[int]] = {}
    for b in order:
        for header in edges[b]:
            if rank[header] <= rank[b] and header in _chain(b, idom):
                latches.setdefault(header, []).append(b)
    bodies = {h: _body(h, ends, before) for h, ends in latches.items()}
    headers = sorted(bodies, key=lambda h: (-len(bodies[h]), h))
    loops: list[Loop] = []
    for n, h in enumerate(headers):
        around = [m for m in range(n) if h in bodies[headers[m]]]
        always = frozenset.intersection(*(_chain(end, idom) for end in latches[h])) & bodies[h]
        parent = around[-1] if around else -1
        loops.append(Loop(h, bodies[h], always, len(around), parent))
    return tuple(loops)


def _chain(block: int, idom: list[int]) -> frozenset[int]:
    """Every dominator of `block`, itself included."""
    chain = set()
    while block >= 0:
        chain.add(block)
        block = idom[block]
    return frozenset(chain)


def _body(header: int, latches: list[int], before: list[list[int]]) -> frozenset[int]:
    body, stack = {header}, list(latches)
    while stack:
        b = stack.pop()
        if b not in body:
            body.add(b)
            stack.extend(before[b])
    return frozenset(body)
