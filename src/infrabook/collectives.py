"""What ranks say to each other: the six collectives as explicit steps, their bytes and their time.

Public, and stable for the modules that build on it (``parallel``): ``bytes_sent`` and ``steps`` of the busiest rank,
``time_s``, ``bus_factor``, ``algorithm_bandwidth`` and ``bus_bandwidth``; ``plan`` gives the steps themselves and
``run`` carries them out on plain lists. All costs are also those of the steps: a test adds them up.

One size serves every operation, as in nccl-tests: ``size_bytes`` is the whole buffer S. That is what an all-reduce
takes and gives, what an all-gather gives, what a reduce-scatter takes, and what one rank sends in an all-to-all,
its own share included. An all-gather of n shards of x bytes has S = n·x.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise, zip_longest
from typing import Any, TypeAlias

from . import hardware
from .errors import InfrabookError
from .units import Exact, exact, positive

OPS = ("broadcast", "reduce", "all-reduce", "reduce-scatter", "all-gather", "all-to-all")

# Which algorithm is known here for which operation. A ring's all-to-all sends to the rank k further on in step k.
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "ring": OPS,
    "tree": ("broadcast", "reduce", "all-reduce"),
    "double-tree": ("all-reduce",),
    "halving-doubling": ("all-reduce", "reduce-scatter", "all-gather"),
    "doubling": ("all-reduce",),
    "scatter-gather": ("broadcast", "reduce"),
    "hierarchical": ("all-reduce", "reduce-scatter", "all-gather"),
}


# -- steps -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Send:
    """One message: ``source`` sends ``chunks`` to ``target``, which adds them to its own or keeps them as they are."""

    source: int
    target: int
    chunks: tuple[int, ...]
    add: bool = False


Step: TypeAlias = tuple[Send, ...]


@dataclass(frozen=True)
class Plan:
    """A collective as steps: all messages of a step go at once, each rank sending and receiving at most one.

    ``parts``: into how many equal chunks the buffer S is cut. ``ranks_per_node`` tells messages inside a node from
    those across, 0 where there is one node.
    """

    op: str
    algorithm: str
    ranks: int
    parts: int
    steps: tuple[Step, ...]
    root: int = 0
    ranks_per_node: int = 0

    def crosses(self, send: Send) -> bool:
        """Whether a message leaves its node."""
        each = self.ranks_per_node
        return bool(each) and send.source // each != send.target // each

    def sent(self, size_bytes: Exact) -> list[Exact]:
        """Bytes that each rank sends, in the order of ranks."""
        return self._bytes(size_bytes, lambda send: send.source)

    def received(self, size_bytes: Exact) -> list[Exact]:
        """Bytes that each rank receives."""
        return self._bytes(size_bytes, lambda send: send.target)

    def across(self, size_bytes: Exact) -> list[Exact]:
        """Bytes that each rank sends to other nodes."""
        return self._bytes(size_bytes, lambda send: send.source, self.crosses)

    def time_s(
        self, size_bytes: Exact, *, latency_s: Exact | float, bandwidth_bytes_per_s: Exact | float,
        across_latency_s: Exact | float | None = None, across_bandwidth_bytes_per_s: Exact | float | None = None,
    ) -> Fraction:  # fmt: skip
        """Seconds: each step lasts as long as its longest message, latency + bytes / bandwidth.

        Messages to another node take the ``across`` figures where they are given.
        """
        chunk = Fraction(size_bytes) / self.parts
        inside = Fraction(exact(latency_s)), Fraction(exact(bandwidth_bytes_per_s))
        outside = (
            inside[0] if across_latency_s is None else Fraction(exact(across_latency_s)),
            inside[1] if across_bandwidth_bytes_per_s is None else Fraction(exact(across_bandwidth_bytes_per_s)),
        )

        def lasts(send: Send) -> Fraction:
            latency, bandwidth = outside if self.crosses(send) else inside
            return latency + len(send.chunks) * chunk / bandwidth

        return sum((max(map(lasts, step)) for step in self.steps if step), Fraction())

    def _bytes(
        self, size_bytes: Exact, whose: Callable[[Send], int], counts: Callable[[Send], bool] = lambda send: True
    ) -> list[Exact]:
        chunks = [0] * self.ranks
        for step in self.steps:
            for send in step:
                if counts(send):
                    chunks[whose(send)] += len(send.chunks)
        return [exact(Fraction(size_bytes) * number / self.parts) for number in chunks]


def plan(
    op: str, *, ranks: int, algorithm: str = "ring", root: int = 0, pieces: int = 1, ranks_per_node: int = 0
) -> Plan:
    """The steps of ``op`` among ``ranks``.

    ``pieces``: into how many a ring's broadcast or reduce cuts the buffer, and a double tree each half of it, so that
    ranks further on can start early.
    ``ranks_per_node`` is needed by the hierarchical algorithm, and tells the others which messages leave a node.

    >>> len(plan("all-reduce", ranks=8).steps), plan("all-reduce", ranks=8).sent(64)[0]
    (14, 112)
    """
    op = _checked(op, ranks, algorithm, pieces, ranks_per_node)
    positive("root", root, zero=True)
    if root >= ranks:
        raise InfrabookError(f"root {root} does not exist: {ranks} ranks are counted from 0")
    if ranks == 1:
        return Plan(op, algorithm, 1, 1, (), root, ranks_per_node)
    everyone, single = list(range(ranks)), [(chunk,) for chunk in range(ranks)]
    parts = ranks
    steps: list[Step] = []
    if op == "all-to-all":
        steps = list(_exchange(ranks))
    elif algorithm == "hierarchical":
        steps = _hierarchical(op, ranks, ranks_per_node)
    elif algorithm == "halving-doubling":
        if op != "all-gather":
            steps += _halving(ranks)
        if op != "reduce-scatter":
            steps += _doubling(ranks)
    elif algorithm == "doubling":
        parts, steps = 1, [_pairs(ranks, 1 << i) for i in range(ranks.bit_length() - 1)]
    elif algorithm == "tree":
        parts = 1
        if op != "broadcast":
            steps += _tree_reduce(ranks, root)
        if op != "reduce":
            steps += _tree_broadcast(ranks, root)
    elif algorithm == "double-tree":
        parts, steps = 2 * pieces, list(_double_tree(ranks, pieces))
    elif algorithm == "scatter-gather":
        steps = _scatter_gather(op, ranks, root)
    elif op in ("broadcast", "reduce"):
        parts, steps = pieces, list(_chain(op, ranks, root, pieces))
    else:
        if op != "all-gather":
            steps += _ring_reduce_scatter(everyone, single)
        if op != "reduce-scatter":
            steps += _ring_all_gather(everyone, single)
    return Plan(op, algorithm, ranks, parts, tuple(steps), root, ranks_per_node)


def _ring_reduce_scatter(members: Sequence[int], groups: Sequence[tuple[int, ...]]) -> list[Step]:
    """Each member sends one group of chunks to the next, which adds it; member i ends with the sum of group i."""
    n = len(members)
    return [
        tuple(Send(members[i], members[(i + 1) % n], groups[(i - 1 - k) % n], True) for i in range(n))
        for k in range(n - 1)
    ]


def _ring_all_gather(members: Sequence[int], groups: Sequence[tuple[int, ...]]) -> list[Step]:
    """Each member begins with its own group and passes on what it received last."""
    n = len(members)
    return [tuple(Send(members[i], members[(i + 1) % n], groups[(i - k) % n]) for i in range(n)) for k in range(n - 1)]


def _chain(op: str, ranks: int, root: int, pieces: int) -> Iterator[Step]:
    """Broadcast from the root along the ring, or reduce towards it, piece after piece."""
    line = [(root + i) % ranks for i in range(ranks)]
    if op == "reduce":  # the root comes last
        line = line[1:] + line[:1]
    for k in range(ranks - 2 + pieces):
        yield tuple(
            Send(line[i], line[i + 1], (k - i,), op == "reduce") for i in range(ranks - 1) if 0 <= k - i < pieces
        )


def _tree_broadcast(ranks: int, root: int) -> list[Step]:
    """A binomial tree: in each step every rank that has the buffer sends it to one that has not."""
    return [
        tuple(Send((root + i) % ranks, (root + i + d) % ranks, (0,)) for i in range(d) if i + d < ranks)
        for d in _powers_below(ranks)
    ]


def _tree_reduce(ranks: int, root: int) -> list[Step]:
    """The same tree backwards, adding."""
    return [
        tuple(Send(send.target, send.source, send.chunks, True) for send in step)
        for step in reversed(_tree_broadcast(ranks, root))
    ]


def _scatter_gather(op: str, ranks: int, root: int) -> list[Step]:
    """A broadcast as scatter and all-gather, a reduce as reduce-scatter and gather; the root's part is direct."""
    everyone, single = list(range(ranks)), [(chunk,) for chunk in range(ranks)]
    others = [(root + i) % ranks for i in range(1, ranks)]
    if op == "broadcast":
        return [(Send(root, rank, (rank,)),) for rank in others] + _ring_all_gather(everyone, single)
    return _ring_reduce_scatter(everyone, single) + [(Send(rank, root, (rank,)),) for rank in others]


Tree: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]  # of each rank: its parent (-1 at the root), its children


@lru_cache(maxsize=64)
def two_trees(ranks: int) -> tuple[Tree, Tree]:
    """NCCL's two binary trees: a rank that passes sums on in one is a leaf of the other.

    The second is the first mirrored, or for an odd number of ranks shifted by one.
    Source: NCCL, src/graph/trees.cc; Sanders, Speck and Träff, Two-tree algorithms (2009).

    >>> two_trees(4)[0]
    ((-1, (2,)), (2, ()), (0, (1, 3)), (2, ()))
    """

    def parent(rank: int) -> int:
        if rank == 0:
            return -1
        bit = rank & -rank
        up = (rank ^ bit) | (bit << 1)
        return up if up < ranks else rank ^ bit

    def tree(place: Callable[[int], int]) -> Tree:
        up = {place(rank): -1 if parent(rank) < 0 else place(parent(rank)) for rank in range(ranks)}
        return tuple((up[r], tuple(child for child in range(ranks) if up[child] == r)) for r in range(ranks))

    return tree(lambda rank: rank), tree(lambda rank: (rank + 1) % ranks if ranks % 2 else ranks - 1 - rank)


@lru_cache(maxsize=256)
def _double_tree(ranks: int, pieces: int) -> tuple[Step, ...]:
    """Half of the buffer up and down one tree, half through the other, in ``pieces`` each.

    Who may send what is the trees'; in which step is ours: early pieces and those with a long way to go first, one
    message in and one out of every rank at a time. No published schedule is claimed.
    """
    trees = two_trees(ranks)
    below = [_heights(tree) for tree in trees]
    above = [_depths(tree) for tree in trees]
    highest = [max(depths) for depths in above]
    # An edge of a tree, up or down, carries its pieces in order; ``had`` counts what has come in, by edge.
    edges = [
        (t, r, parent, True) if up else (t, parent, r, False)
        for t, tree in enumerate(trees) for r, (parent, _) in enumerate(tree) if parent >= 0 for up in (True, False)
    ]  # fmt: skip
    far = {
        (t, source, target, up): above[t][source] + highest[t] if up else 1 + below[t][target]
        for t, source, target, up in edges
    }
    done = dict.fromkeys(edges, 0)

    def ready(edge: tuple[int, int, int, bool]) -> bool:
        t, source, _, up = edge
        parent, children = trees[t][source]
        needs = [done[t, child, source, True] for child in children] if up or parent < 0 else []
        if not up and parent >= 0:
            needs = [done[t, parent, source, False]]
        return done[edge] < pieces and all(have > done[edge] for have in needs)

    found = []
    while any(sent < pieces for sent in done.values()):
        sending, receiving, step = set(), set(), []
        for edge in sorted(filter(ready, edges), key=lambda edge: (done[edge] - far[edge], not edge[3], edge)):
            _, source, target, _ = edge
            if source not in sending and target not in receiving:
                sending.add(source)
                receiving.add(target)
                step.append(edge)
        found.append(tuple(Send(s, d, (t * pieces + done[t, s, d, up],), up) for t, s, d, up in step))
        for edge in step:
            done[edge] += 1
    return tuple(found)


def _heights(tree: Tree) -> list[int]:
    """How many edges lie below each rank."""

    def height(rank: int) -> int:
        return max((1 + height(child) for child in tree[rank][1]), default=0)

    return [height(rank) for rank in range(len(tree))]


def _depths(tree: Tree) -> list[int]:
    """How many edges lie above each rank."""

    def depth(rank: int) -> int:
        return 0 if tree[rank][0] < 0 else 1 + depth(tree[rank][0])

    return [depth(rank) for rank in range(len(tree))]


def _halving(ranks: int) -> list[Step]:
    """Reduce-scatter: exchange half with the rank n/2 away, half of the rest with n/4 away, and so on."""
    steps = []
    for distance in reversed(_powers_below(ranks)):
        steps.append(
            tuple(Send(r, r ^ distance, _block(r ^ distance, distance), True) for r in range(ranks))
        )  # fmt: skip
    return steps


def _doubling(ranks: int) -> list[Step]:
    """All-gather: exchange what one has with the rank 1 away, then twice as much with 2 away, and so on."""
    return [
        tuple(Send(r, r ^ distance, _block(r, distance)) for r in range(ranks)) for distance in _powers_below(ranks)
    ]


def _block(rank: int, distance: int) -> tuple[int, ...]:
    """The ``distance`` chunks around ``rank``'s own, which its half of so many ranks ends up with."""
    start = rank // distance * distance
    return tuple(range(start, start + distance))


def _pairs(ranks: int, distance: int) -> Step:
    """Every two ranks ``distance`` apart exchange their whole sums and add."""
    return tuple(Send(r, r ^ distance, (0,), True) for r in range(ranks))


def _exchange(ranks: int) -> Iterator[Step]:
    """All-to-all: in step k everybody sends to the rank k further on. Chunk r·n + j goes from r to j."""
    for k in range(1, ranks):
        yield tuple(Send(r, (r + k) % ranks, (r * ranks + (r + k) % ranks,)) for r in range(ranks))


def _hierarchical(op: str, ranks: int, each: int) -> list[Step]:
    """Inside each node, then between ranks of the same place in all nodes, then inside again."""
    nodes = ranks // each
    inside = [[node * each + i for i in range(each)] for node in range(nodes)]
    across = [[node * each + i for node in range(nodes)] for i in range(each)]
    columns = [tuple(members) for members in across]  # chunks whose sums a place in a node is responsible for
    steps: list[Step] = []
    if op != "all-gather":
        steps += _together(_ring_reduce_scatter(members, columns) for members in inside)
        steps += _together(_ring_reduce_scatter(members, [(r,) for r in members]) for members in across)
    if op != "reduce-scatter":
        steps += _together(_ring_all_gather(members, [(r,) for r in members]) for members in across)
        steps += _together(_ring_all_gather(members, columns) for members in inside)
    return steps


def _together(rings: Iterable[list[Step]]) -> list[Step]:
    """Several rings at the same time."""
    return [tuple(send for step in steps for send in step) for steps in zip_longest(*rings, fillvalue=())]


def _powers_below(ranks: int) -> list[int]:
    return [1 << i for i in range((ranks - 1).bit_length())]


# -- carrying the steps out -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Run:
    """What each rank has at the end, and how many elements it sent and received."""

    results: list[list[float]]
    sent: list[int]
    received: list[int]


def run(collective: Plan, buffers: Sequence[Sequence[float]]) -> Run:
    """Carry out a plan on plain lists, one a rank: what ``torch.distributed`` takes and gives, concatenated by rank.

    All messages of a step are read before any is written. A rank that sends what it does not have, or would add to
    nothing, is an error.

    >>> run(plan("reduce-scatter", ranks=2), [[1, 2], [10, 20]]).results
    [[11], [22]]
    """
    state, sent, received = start(collective, buffers), [0] * collective.ranks, [0] * collective.ranks
    for step in collective.steps:
        state = after(state, step)
        for send in step:
            for chunk in send.chunks:
                sent[send.source] += len(state[send.target][chunk])
                received[send.target] += len(state[send.target][chunk])
    return Run(finish(collective, state), sent, received)


Chunks: TypeAlias = dict[int, list[float]]


def start(collective: Plan, buffers: Sequence[Sequence[float]]) -> list[Chunks]:
    """What each rank has before the first step: its buffer by chunk."""
    if len(buffers) != collective.ranks:
        raise InfrabookError(f"{collective.ranks} ranks need as many buffers, and there are {len(buffers)}")
    if len({len(buffer) for buffer in buffers}) > 1:
        raise InfrabookError(f"buffers have to be of one length, and are {[len(buffer) for buffer in buffers]}")
    op, n = collective.op, collective.ranks
    if op == "all-gather":
        return [{r: list(buffers[r])} for r in range(n)]
    if op == "all-to-all":
        if len(buffers[0]) % n:
            raise InfrabookError(f"{n} ranks do not divide a buffer of {len(buffers[0])} elements")
        return [{r * n + j: part for j, part in enumerate(_cut(buffers[r], n))} for r in range(n)]
    if op == "reduce-scatter" and len(buffers[0]) % n:
        raise InfrabookError(f"{n} ranks do not divide a buffer of {len(buffers[0])} elements")
    holds = range(n) if op != "broadcast" else (collective.root,)
    return [dict(enumerate(_cut(buffers[r], collective.parts))) if r in holds else {} for r in range(n)]


def after(state: Sequence[Chunks], step: Step) -> list[Chunks]:
    """What each rank has after one more step."""
    new = [dict(chunks) for chunks in state]
    for send in step:
        for chunk in send.chunks:
            if chunk not in state[send.source]:
                raise InfrabookError(f"rank {send.source} sends chunk {chunk}, which it does not have")
            moved = state[send.source][chunk]
            if send.add:
                if chunk not in state[send.target]:
                    raise InfrabookError(f"rank {send.target} would add chunk {chunk} to nothing")
                moved = [a + b for a, b in zip(new[send.target][chunk], moved, strict=True)]
            new[send.target][chunk] = list(moved)
    return new


def finish(collective: Plan, state: Sequence[Chunks]) -> list[list[float]]:
    """What the operation gives each rank; an empty list where it promises nothing (reduce, off the root)."""
    op, n = collective.op, collective.ranks

    def joined(rank: int, wanted: Iterable[int]) -> list[float]:
        return [value for chunk in wanted for value in state[rank][chunk]]

    if op == "reduce-scatter":
        return [joined(r, (r,)) for r in range(n)]
    if op == "all-to-all":
        return [joined(r, (j * n + r for j in range(n))) for r in range(n)]
    return [joined(r, range(collective.parts)) if op != "reduce" or r == collective.root else [] for r in range(n)]


def _cut(buffer: Sequence[float], parts: int) -> list[list[float]]:
    """``buffer`` in so many parts, as equal as whole elements allow."""
    ends = [len(buffer) * i // parts for i in range(parts + 1)]
    return [list(buffer[low:high]) for low, high in pairwise(ends)]


# -- costs in closed form ----------------------------------------------------------------------------------------
def steps(op: str, *, ranks: int, algorithm: str = "ring", pieces: int = 1, ranks_per_node: int = 0) -> int:
    """How many messages follow one another: the factor of the latency.

    >>> steps("all-reduce", ranks=8), steps("all-reduce", ranks=8, algorithm="tree")
    (14, 6)
    """
    op = _checked(op, ranks, algorithm, pieces, ranks_per_node)
    if ranks == 1:
        return 0
    passes = 2 if op == "all-reduce" else 1
    rounds = (ranks - 1).bit_length()
    if algorithm == "doubling":
        return rounds
    if algorithm in ("tree", "halving-doubling"):
        return passes * rounds
    if algorithm == "double-tree":
        return len(_double_tree(ranks, pieces))
    if algorithm == "scatter-gather":
        return 2 * (ranks - 1)
    if algorithm == "hierarchical":
        return passes * (ranks_per_node - 1 + ranks // ranks_per_node - 1)
    if op in ("broadcast", "reduce"):
        return ranks - 2 + pieces
    return passes * (ranks - 1)


def bytes_sent(op: str, *, size_bytes: Exact, ranks: int, algorithm: str = "ring", ranks_per_node: int = 0) -> Exact:
    """Bytes that the busiest rank sends, of a buffer of ``size_bytes``; with a ring every rank is as busy.

    (n-1)/n·S for reduce-scatter, all-gather and all-to-all, twice that for all-reduce: for many ranks S and 2S.
    Broadcast and reduce send S along a ring, where one rank sends nothing.

    >>> bytes_sent("all-reduce", size_bytes=64, ranks=8), bytes_sent("all-gather", size_bytes=64, ranks=8)
    (112, 56)
    """
    op = _checked(op, ranks, algorithm, 1, ranks_per_node)
    positive("size_bytes", size_bytes, whole=False, zero=True)
    if ranks == 1:
        return 0
    size, passes, rounds = Fraction(size_bytes), 2 if op == "all-reduce" else 1, (ranks - 1).bit_length()
    if algorithm == "doubling" or (algorithm == "tree" and op != "reduce"):
        return exact(rounds * size)
    if algorithm == "double-tree":
        trees = two_trees(ranks)
        return exact(
            max(sum((up >= 0) + len(down) for up, down in both) for both in zip(*trees, strict=True)) * size / 2
        )
    if algorithm == "scatter-gather" and op == "broadcast":  # the root takes part in the all-gather too
        return exact(2 * size * (ranks - 1) / ranks)
    if op in ("broadcast", "reduce"):
        return exact(size)
    return exact(passes * size * (ranks - 1) / ranks)


def time_s(
    op: str, *, size_bytes: Exact, ranks: int, link: str | hardware.Link | None = None, algorithm: str = "ring",
    latency_s: Exact | float | None = None, bandwidth_bytes_per_s: Exact | float | None = None, pieces: int = 1,
    ranks_per_node: int = 0, across: str | hardware.Link | None = None,
) -> Fraction:  # fmt: skip
    """Seconds that ``op`` takes: steps × latency + bytes one after another / bandwidth (α–β).

    ``link`` gives latency and one-directional bandwidth of each rank; ``latency_s`` and ``bandwidth_bytes_per_s``
    replace either. With ``ranks_per_node``, messages that leave a node take the link ``across`` (one per rank), and
    a flat algorithm is as slow in each step as its slowest message.

    >>> round(float(1e3 * time_s("all-reduce", size_bytes=10**9, ranks=8, link="nvlink4")), 3)
    3.936
    """
    op = _checked(op, ranks, algorithm, pieces, ranks_per_node)
    positive("size_bytes", size_bytes, whole=False, zero=True)
    inside = _alpha_beta(link, latency_s, bandwidth_bytes_per_s)
    if ranks == 1:
        return Fraction(0)
    several = 0 < ranks_per_node < ranks
    outside = inside if across is None or not several else _alpha_beta(across, None, None)
    size, passes = Fraction(size_bytes), 2 if op == "all-reduce" else 1
    if algorithm == "hierarchical":
        nodes = ranks // ranks_per_node
        within = _cost(ranks_per_node - 1, size * (ranks_per_node - 1) / ranks_per_node, inside)
        return passes * (within + _cost(nodes - 1, size * (nodes - 1) / ranks, outside))
    if several and across is not None and (algorithm != "ring" or _chained(op)):
        parts, profile = _profile(op, algorithm, ranks, pieces, ranks_per_node)
        chunk = size / parts
        return sum(
            (
                count * max(_cost(bool(near), near * chunk, inside), _cost(bool(far), far * chunk, outside))
                for (near, far), count in profile
            ),
            Fraction(),
        )
    number = steps(op, ranks=ranks, algorithm=algorithm, pieces=pieces)
    if algorithm in ("tree", "doubling"):
        moved = number * size
    elif algorithm == "double-tree":
        moved = number * size / (2 * pieces)
    elif algorithm == "scatter-gather":
        moved = 2 * size * (ranks - 1) / ranks
    elif _chained(op):
        moved = number * size / pieces
    else:
        moved = passes * size * (ranks - 1) / ranks
    return max(_cost(number, moved, inside), _cost(number, moved, outside))


@lru_cache(maxsize=256)
def _profile(
    op: str, algorithm: str, ranks: int, pieces: int, ranks_per_node: int
) -> tuple[int, tuple[tuple[tuple[int, int], int], ...]]:
    """Chunks of the longest message inside a node and across, and how many steps are alike."""
    collective = plan(op, ranks=ranks, algorithm=algorithm, pieces=pieces, ranks_per_node=ranks_per_node)
    alike: Counter[tuple[int, int]] = Counter()
    for step in collective.steps:
        longest = [0, 0]
        for send in step:
            crosses = collective.crosses(send)
            longest[crosses] = max(longest[crosses], len(send.chunks))
        alike[longest[0], longest[1]] += 1
    return collective.parts, tuple(alike.items())


def best_pieces(op: str, *, algorithm: str, most: int = 32, **given: Any) -> int:
    """The power of two up to ``most`` that makes ``time_s`` least; 1 where nothing is cut. ``given`` as there.

    >>> best_pieces("broadcast", algorithm="ring", size_bytes=10**8, ranks=8, link="nvlink4")
    16
    """
    if algorithm != "double-tree" and not (algorithm == "ring" and _chained(op)):
        return 1
    tried = [1 << i for i in range(most.bit_length())]
    return min(tried, key=lambda pieces: time_s(op, algorithm=algorithm, pieces=pieces, **given))


def _chained(op: str) -> bool:
    return op in ("broadcast", "reduce")


def _cost(number: int, moved: Fraction, link: tuple[Fraction, Fraction]) -> Fraction:
    return number * link[0] + moved / link[1]


def _alpha_beta(
    link: str | hardware.Link | None, latency_s: Exact | float | None, bandwidth: Exact | float | None
) -> tuple[Fraction, Fraction]:
    """Latency and bandwidth, from a link where they are not given."""
    known = hardware.link(link) if isinstance(link, str) else link
    if known is None and bandwidth is None:
        raise InfrabookError("a time needs a link or bandwidth_bytes_per_s, and has neither")
    rate = bandwidth if bandwidth is not None or known is None else known.bytes_per_s
    delay = latency_s if latency_s is not None else (known.latency_s if known else 0)
    assert rate is not None
    positive("bandwidth_bytes_per_s", rate, whole=False)
    positive("latency_s", delay, whole=False, zero=True)
    return Fraction(exact(delay)), Fraction(exact(rate))


# -- as nccl-tests reports it ---------------------------------------------------------------------------------------
def bus_factor(op: str, *, ranks: int) -> Fraction:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests defines it for each operation (doc/PERFORMANCE.md).

    >>> [str(bus_factor(op, ranks=8)) for op in OPS]
    ['1', '1', '7/4', '7/8', '7/8', '7/8']
    """
    op = _checked(op, ranks, "ring", 1, 0)
    if op in ("broadcast", "reduce"):
        return Fraction(1)
    return Fraction(ranks - 1, ranks) * (2 if op == "all-reduce" else 1)


def algorithm_bandwidth(*, size_bytes: Exact, seconds: Exact | float) -> Fraction:
    """Buffer size over time: what the caller sees."""
    positive("size_bytes", size_bytes, whole=False, zero=True)
    positive("seconds", seconds, whole=False)
    return Fraction(size_bytes) / Fraction(exact(seconds))


def bus_bandwidth(op: str, *, size_bytes: Exact, ranks: int, seconds: Exact | float) -> Fraction:
    """Algorithm bandwidth times ``bus_factor``: comparable with a link's one-directional bandwidth for any n."""
    return bus_factor(op, ranks=ranks) * algorithm_bandwidth(size_bytes=size_bytes, seconds=seconds)


# -- checks --------------------------------------------------------------------------------------------------------
def _checked(op: str, ranks: int, algorithm: str, pieces: int, ranks_per_node: int) -> str:
    """``op`` in this module's spelling, if the question makes sense."""
    name = op.replace("_", "-") if isinstance(op, str) else op
    if name not in OPS:
        raise InfrabookError(f"{op!r} is not a collective known here; known are {', '.join(OPS)}")
    if algorithm not in ALGORITHMS:
        raise InfrabookError(f"{algorithm!r} is not an algorithm known here; known are {', '.join(ALGORITHMS)}")
    if name not in ALGORITHMS[algorithm]:
        raise InfrabookError(f"{algorithm} does not do {name}; it does {', '.join(ALGORITHMS[algorithm])}")
    positive("ranks", ranks)
    positive("pieces", pieces)
    positive("ranks_per_node", ranks_per_node, zero=True)
    if pieces > 1 and not (algorithm == "double-tree" or (algorithm == "ring" and _chained(name))):
        raise InfrabookError(
            f"{algorithm} {name} is not cut into {pieces} pieces; a ring's broadcast and reduce are, and a double tree"
        )
    if algorithm in ("halving-doubling", "doubling") and ranks & (ranks - 1):
        raise InfrabookError(f"{algorithm} needs a power of two of ranks, and {ranks} is none")
    if algorithm == "hierarchical" and not ranks_per_node:
        raise InfrabookError("hierarchical needs ranks_per_node: how many ranks a node has")
    if ranks_per_node and ranks > ranks_per_node and ranks % ranks_per_node:
        raise InfrabookError(f"{ranks_per_node} ranks per node do not divide {ranks} ranks")
    if algorithm == "hierarchical" and ranks_per_node > ranks:
        raise InfrabookError(f"a node of {ranks_per_node} is larger than the group of {ranks} ranks")
    return name
