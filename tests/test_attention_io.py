"""Attention's accesses against a memory that counts them while the algorithm computes, and the paper's own numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from infrabook import attention_io as io
from infrabook.attention_io import Blocks
from infrabook.errors import InfrabookError
from infrabook.measure import traffic

SHAPES = [(7, 4), (64, 8), (100, 16)]
BLOCKS = [Blocks(1, 1), Blocks(3, 5), Blocks(16, 4), Blocks(4, 16), Blocks(7, 100), Blocks(128, 128)]


def tensors(s: int, d: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(s)
    return tuple(torch.randn(s, d, generator=generator, dtype=torch.float64) for _ in range(4))


@pytest.mark.parametrize(("s", "d"), SHAPES)
def test_standard_attention_moves_what_its_kernels_read_and_write(s: int, d: int) -> None:
    q, k, v, g = tensors(s, d)
    assert traffic.standard_forward(q, k, v).total == io.standard_forward(sequence=s, head_dim=d).total
    assert traffic.standard_backward(q, k, v, g).total == io.standard_backward(sequence=s, head_dim=d).total
    assert io.standard_forward(sequence=s, head_dim=d).total == 4 * s * s + 4 * s * d
    assert io.standard_backward(sequence=s, head_dim=d).total == 7 * s * s + 8 * s * d


@pytest.mark.parametrize(("s", "d"), SHAPES)
@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("causal", [False, True])
def test_blocked_attention_is_exact_and_moves_what_was_predicted(s: int, d: int, blocks: Blocks, causal: bool) -> None:
    q, k, v, g = tensors(s, d)
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    wanted = F.scaled_dot_product_attention(*inputs, is_causal=causal)
    wanted.backward(g)
    given = {"sequence": s, "head_dim": d, "blocks": blocks, "causal": causal}
    for outer in ("columns", "rows"):
        memory = traffic.flash_forward(q, k, v, blocks, outer=outer, causal=causal)
        assert (memory.tensors["O"] - wanted).abs().max() < 1e-12
        assert memory.total == io.flash_forward(**given, outer=outer).total
    memory = traffic.flash_backward(q, k, v, g, blocks, causal=causal)
    for name, x in zip(("dQ", "dK", "dV"), inputs, strict=True):
        assert (memory.tensors[name] - x.grad).abs().max() < 1e-12
    assert memory.total == io.flash_backward(**given).total


def test_rows_of_a_block_do_not_matter_when_columns_are_outside() -> None:
    counts = {io.flash_forward(sequence=512, head_dim=32, blocks=Blocks(rows, 64)).total for rows in (1, 16, 100, 512)}
    assert len(counts) == 1


@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_constants_of_the_theorem_are_12_and_20(head_dim: int) -> None:
    m, s = 98_304, 2**18
    blocks = io.paper_blocks(sram_elements=m, head_dim=head_dim)
    theorem = io.theorem(sequence=s, head_dim=head_dim, sram_elements=m)
    forward = io.flash_forward(sequence=s, head_dim=head_dim, blocks=blocks)
    backward = io.flash_backward(sequence=s, head_dim=head_dim, blocks=blocks)
    two = sum(row.value for row in forward if "maximum" not in row.name)
    assert float(two / theorem) == pytest.approx(12, rel=0.01)
    five = sum(row.value for row in backward if "maximum" not in row.name)
    assert float(five / theorem) == pytest.approx(20, rel=0.01)


def test_wide_heads_move_more_with_the_papers_blocks() -> None:
    m = 98_304
    for head_dim in (128, 160, 192, 256):
        blocks = io.paper_blocks(sram_elements=m, head_dim=head_dim)
        flash = io.flash_forward(sequence=2**17, head_dim=head_dim, blocks=blocks).total
        more = flash > io.standard_forward(sequence=2**17, head_dim=head_dim).total
        assert more == (head_dim > io.break_even_head_dim(sram_elements=m))


def test_most_columns_fit_and_one_step_more_does_not() -> None:
    room = {"head_dim": 128, "element_bytes": 2, "score_bytes": 4}
    columns = io.most_columns(shared_bytes=227 * 1024, rows=64, **room)
    assert io.on_chip(Blocks(64, columns), **room).total <= 227 * 1024
    assert io.on_chip(Blocks(64, columns + 16), **room).total > 227 * 1024


def test_the_papers_blocks_leave_no_room_for_heads_of_128() -> None:
    for head_dim, fits in ((64, True), (128, False), (256, False)):
        blocks = io.paper_blocks(sram_elements=98_304, head_dim=head_dim)
        assert (io.on_chip(blocks, head_dim=head_dim).total <= 192 * 1024) == fits


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: io.standard_forward(sequence=0, head_dim=64), "sequence has to be greater than 0"),
        (lambda: Blocks(0, 4), "rows has to be greater than 0"),
        (lambda: io.most_columns(shared_bytes=10_000, head_dim=256, rows=128), "no room for 16 columns"),
        (lambda: io.theorem(sequence=8, head_dim=64, sram_elements=10), "do not hold 64"),
        (lambda: io.flash_forward(sequence=8, head_dim=4, blocks=Blocks(2, 2), outer="both"), "columns or rows"),
        (
            lambda: io.flash_forward(sequence=8, head_dim=4, blocks=Blocks(2, 2), outer="rows", initialise=True),
            "nothing is initialised",
        ),
        (lambda: io.work(sequence=8, head_dim=4, passes="sideways"), "forward, backward or both"),
        (lambda: io.saved(sequence=8, head_dim=4, kind="lazy"), "eager or flash"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_in_a_sentence(call: object, words: str) -> None:
    with pytest.raises(InfrabookError, match=words):
        call()
