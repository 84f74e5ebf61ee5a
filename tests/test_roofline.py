"""Rooflines: bounds, operations against what PyTorch dispatches, waves against a machine that counts tiles."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F

from infrabook import hardware, roofline
from infrabook.errors import InfrabookError
from infrabook.measure.work import dispatched, total


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta", dtype=torch.bfloat16)


@pytest.mark.parametrize(("m", "k", "n"), [(1, 64, 32), (128, 128, 128), (7, 5, 3)])
def test_product_does_and_moves_what_pytorch_dispatches(m: int, k: int, n: int) -> None:
    kernel = roofline.gemm(m, k, n)
    a, b = meta(m, k), meta(k, n)
    assert kernel.flop == total(lambda: a @ b)
    assert kernel.nbytes == sum(moved for _, moved in dispatched(lambda: a @ b))


def test_unfused_softmax_moves_four_times_the_fused_and_the_statistics_besides() -> None:
    x = meta(16, 64)

    def by_hand() -> torch.Tensor:
        powers = (x - x.amax(-1, keepdim=True)).exp()
        return powers / powers.sum(-1, keepdim=True)

    fused, apart = (roofline.softmax(16, 64, fused=how).nbytes for how in (True, False))
    assert sum(moved for _, moved in dispatched(lambda: F.softmax(x, -1))) == fused
    assert sum(moved for _, moved in dispatched(by_hand)) == apart + 4 * 2 * 16
    assert apart == 4 * fused


def test_attention_work_equals_its_two_products() -> None:
    q, k = meta(2, 8, 32, 16), meta(2, 8, 48, 16)
    kernel = roofline.attention(batch=2, queries=32, keys=48, heads=8, kv_heads=8, head_dim=16)
    assert kernel.flop == total(lambda: torch.softmax(q @ k.transpose(-1, -2), -1) @ k)


def test_decode_attention_has_the_intensity_of_its_groups_at_any_batch() -> None:
    for batch in (1, 64):
        long = roofline.attention(batch=batch, queries=1, keys=10**6, heads=64, kv_heads=8, head_dim=128)
        assert abs(long.intensity - 8) < Fraction(1, 1000)


def test_bound_waits_for_the_longer_of_two_times() -> None:
    kernel = roofline.Kernel("k", 1000, 10)
    slow_memory, slow_units = roofline.Bound(kernel, 10**6, 10), roofline.Bound(kernel, 10, 10**6)
    assert (slow_memory.limit, slow_memory.seconds) == ("memory", 1)
    assert (slow_units.limit, slow_units.seconds) == ("compute", 100)
    assert slow_memory.attainable_flop_per_s == 1000
    assert slow_units.peak_share == 1


def test_at_the_ridge_both_limits_meet() -> None:
    card = hardware.gpu("a100-sxm-80gb")
    at = roofline.ridge(card)
    found = roofline.bound(roofline.Kernel("ridge", at * 1000, 1000), card)
    assert found.compute_s == found.memory_s


@pytest.mark.parametrize(("m", "n", "sms"), [(128, 128, 1), (129, 128, 132), (1536, 2816, 132), (5000, 3000, 108)])
def test_waves_equal_a_machine_that_hands_out_tiles(m: int, n: int, sms: int) -> None:
    tiles = [(i, j) for i in range(0, m, 128) for j in range(0, n, 256)]
    rounds = 0
    while rounds * sms < len(tiles):
        rounds += 1
    useful = sum(min(128, m - i) * min(256, n - j) for i, j in tiles)
    found = roofline.waves(m, n, sms, tile_m=128, tile_n=256)
    assert (found.tiles, found.waves) == (len(tiles), rounds)
    assert found.efficiency == Fraction(useful, rounds * sms * 128 * 256)


def test_gemm_time_is_never_below_the_roof_and_small_products_wait_for_the_launch() -> None:
    for shape in ((4096, 4096, 4096), (1, 4096, 4096), (300, 5000, 70)):
        timed = roofline.gemm_time(*shape, "h100-sxm")
        assert timed.seconds >= timed.bound.seconds + timed.launch_s
    assert roofline.gemm_time(16, 16, 16, "h100-sxm").limit == "launch"


def test_optimizer_and_look_up_hardly_work() -> None:
    assert roofline.adam_step(10).nbytes == 280
    assert roofline.embedding(10, 64).intensity == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: roofline.gemm(0, 1, 1), "m has to be greater than 0"),
        (lambda: roofline.bound(roofline.gemm(1, 1, 1), "t4"), "t4 has no bf16 units"),
        (
            lambda: roofline.attention(batch=1, queries=1, keys=1, heads=8, kv_heads=3, head_dim=8),
            "3 key-value heads do not divide 8 heads",
        ),
        (lambda: roofline.gemm_time(1, 1, 1, "h100-sxm", launch_s=-1), "launch_s has to be"),
    ],
)
def test_nonsense_gets_a_sentence(call, words: str) -> None:
    with pytest.raises(InfrabookError, match=words):
        call()
