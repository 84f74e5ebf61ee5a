"""Levels of memory against published totals, occupancy against NVIDIA's printed examples, tiles against a counter."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from infrabook import hardware, hierarchy, occupancy, tiling
from infrabook.errors import InfrabookError
from infrabook.explorers import tiles
from infrabook.hierarchy import level, levels
from infrabook.measure import traffic
from infrabook.occupancy import resident


# -- levels ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", hierarchy.known())
def test_nearer_levels_are_faster(name: str) -> None:
    rates = [one.bandwidth_bytes_per_s for one in levels(name)[:4] if one.bandwidth_bytes_per_s]
    assert rates == sorted(rates, reverse=True)
    waits = [one.latency_s for one in levels(name) if one.latency_s]
    assert waits == sorted(waits)


@pytest.mark.parametrize("name", hierarchy.known())
def test_every_bandwidth_has_a_source_and_a_basis(name: str) -> None:
    for one in levels(name):
        assert bool(one.bandwidth_bytes_per_s) == bool(one.basis)
        assert bool(one.bandwidth_bytes_per_s) == bool(one.source)


def test_volta_has_more_registers_than_l1_and_more_l1_than_l2() -> None:
    registers, l1, l2 = (level("v100-sxm2-32gb", which).capacity_bytes for which in ("registers", "shared", "L2"))
    assert registers > l1 > l2


def test_flash_attentions_figure_1() -> None:
    shared = level("a100-sxm-80gb", "shared")
    assert shared.bandwidth_bytes_per_s / 10**12 == pytest.approx(19, abs=0.5)  # "19 TB/s"
    assert shared.capacity_bytes / 10**6 == pytest.approx(20, abs=1.3)  # "20 MB"


def test_what_was_not_published_is_not_made_up() -> None:
    assert level("h100-sxm", "L2").bandwidth_bytes_per_s == 0
    with pytest.raises(InfrabookError, match="bandwidth of L2 was not published"):
        _ = level("h100-sxm", "L2").read_s
    with pytest.raises(InfrabookError, match="latency or the bandwidth of GDDR6"):
        _ = level("t4", "GDDR6").in_flight_bytes
    with pytest.raises(InfrabookError, match="no level 'L3'"):
        level("t4", "L3")
    with pytest.raises(InfrabookError, match="no card whose levels are known is called 'rtx-4090'"):
        levels("rtx-4090")


def test_energy_rises_with_distance_within_a_technology() -> None:
    by_name = {energy.what: energy.pj_per_bit for energy in hierarchy.energies()}
    assert (
        by_name["SRAM, 8 KiB"] < by_name["SRAM, 32 KiB"] < by_name["SRAM, 1 MiB"] < by_name["HBM2"] < by_name["GDDR5"]
    )
    parts = Fraction("1.21") + Fraction("2.24") + Fraction("0.30")  # O'Connor et al.; the rest is ECC
    assert parts < by_name["HBM2"] < parts * Fraction(11, 10)


# -- occupancy -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("threads", "blocks", "percent"), [(128, 12, 75), (320, 4, 63)]
)  # CUDA C++ Best Practices Guide, "Calculating Occupancy": 37 registers a thread on compute capability 7.0
def test_best_practices_guide(threads: int, blocks: int, percent: int) -> None:
    found = resident("v100-sxm2-32gb", threads=threads, registers=37)
    assert found.blocks == blocks
    assert abs(100 * found.share - percent) <= Fraction(1, 2)
    assert found.limiter == "registers"


@pytest.mark.parametrize(
    ("gpu", "given", "blocks", "limiter"),
    [
        ("a100-sxm-80gb", {"threads": 1024}, 2, "warps"),
        ("a100-sxm-80gb", {"threads": 32}, 32, "blocks"),
        ("a100-sxm-80gb", {"threads": 256, "shared_bytes": 81 * 1024}, 2, "shared memory"),
        ("a100-sxm-80gb", {"threads": 256, "shared_bytes": 82 * 1024}, 1, "shared memory"),
        ("t4", {"threads": 1024}, 1, "warps"),
        ("h100-sxm", {"threads": 256, "registers": 255}, 1, "registers"),
        ("h100-sxm", {"threads": 384, "registers": 168}, 1, "registers"),
    ],
)
def test_what_runs_out_first(gpu: str, given: dict[str, int], blocks: int, limiter: str) -> None:
    found = resident(gpu, **given)
    assert (found.blocks, found.limiter) == (blocks, limiter)


def test_no_sm_holds_more_than_it_has() -> None:
    for gpu in hierarchy.known():
        card = hardware.gpu(gpu)
        for threads in (32, 96, 128, 256, 512, 1024):
            for registers in (16, 32, 37, 64, 100, 128, 255):
                for shared in (0, 1000, 16_384, 49_152):
                    try:
                        found = resident(gpu, threads=threads, registers=registers, shared_bytes=shared)
                    except InfrabookError:
                        assert registers * threads > card.registers_per_sm * 3 // 4
                        continue
                    assert found.blocks * threads * registers <= card.registers_per_sm
                    assert found.blocks * shared <= card.shared_bytes_per_sm
                    assert found.warps <= found.most_warps


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"threads": 2048}, "at most 1,024 threads"),
        ({"threads": 256, "registers": 256}, "at most 255 registers"),
        ({"threads": 256, "shared_bytes": 228 * 1024}, "at most 232,448 bytes of shared memory"),
        ({"threads": 1024, "registers": 128}, "too few registers"),
        ({"threads": 0}, "threads has to be greater than 0"),
    ],
)
def test_a_block_that_cannot_run_is_refused(given: dict[str, int], words: str) -> None:
    with pytest.raises(InfrabookError, match=words):
        resident("h100-sxm", **given)
    with pytest.raises(InfrabookError, match="no card whose limits are known"):
        resident("mi300x", threads=256)


def test_the_explorer_offers_every_card_whose_limits_are_known() -> None:
    assert set(tiles.CARDS.values()) == set(hierarchy.known())
    for name in hierarchy.known():
        assert resident(name, threads=128).blocks


# -- tiles ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(16, 16, 16), (7, 10, 5), (33, 20, 17), (1, 9, 4)])
@pytest.mark.parametrize("tile", [(1, 1), (4, 4), (8, 3), (16, 16), (64, 64)])
def test_tiled_product_moves_what_was_predicted_and_is_right(
    shape: tuple[int, int, int], tile: tuple[int, int]
) -> None:
    m, n, k = shape
    generator = torch.Generator().manual_seed(m)
    a, b = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in ((m, k), (k, n)))
    counted = traffic.tiled_product(a, b, tile_m=tile[0], tile_n=tile[1], tile_k=6)
    account = tiling.traffic(m, n, k, tile_m=tile[0], tile_n=tile[1])
    assert (counted.tensors["C"] - a @ b).abs().max() < 1e-12
    assert (counted.reads["A"], counted.reads["B"], counted.writes["C"]) == tuple(row.value for row in account)


def test_intensity_is_that_of_the_account() -> None:
    account = tiling.traffic(4096, 4096, 2**20, tile_m=128, tile_n=256)
    reads = account["A"] + account["B"]
    assert tiling.intensity(128, 256) == Fraction(2 * 4096 * 4096 * 2**20, 2 * reads)


def test_tritons_tutorial_counts_90_and_54_blocks() -> None:
    given = {"tile_m": 1, "tile_n": 1, "at_once": 9}
    for group, blocks in ((1, 90), (3, 54)):
        first = tiling.wave_traffic(9, 9, 9, **given, group=group)
        assert (first["A"] + first["B"]) / 9 == blocks


def test_waves_of_one_tile_share_nothing_and_one_wave_reads_once() -> None:
    for shape in ((64, 64, 64), (70, 50, 30)):
        m, n, k = shape
        alone = tiling.wave_traffic(*shape, tile_m=16, tile_n=16, at_once=1)
        assert alone.total == tiling.traffic(*shape, tile_m=16, tile_n=16).total
        assert tiling.wave_traffic(*shape, tile_m=16, tile_n=16, at_once=999).total == m * k + k * n + m * n


@pytest.mark.parametrize("group", [1, 2, 3, 8, 50])
@pytest.mark.parametrize("at_once", [1, 2, 5, 7, 12, 40, 500])
def test_waves_against_the_tiles_one_by_one(group: int, at_once: int) -> None:
    m, n, k, tile_m, tile_n = 70, 90, 3, 8, 13
    tiles = list(tiling.tile_order(9, 7, group=group))
    a = b = 0
    for start in range(0, len(tiles), at_once):
        wave = tiles[start : start + at_once]
        a += sum(min(tile_m, m - row * tile_m) for row in {row for row, _ in wave})
        b += sum(min(tile_n, n - column * tile_n) for column in {column for _, column in wave})
    found = tiling.wave_traffic(m, n, k, tile_m=tile_m, tile_n=tile_n, at_once=at_once, group=group)
    assert (found["A"], found["B"]) == (a * k, b * k)


def test_order_of_tiles_visits_each_once() -> None:
    for group in (1, 2, 3, 8):
        order = list(tiling.tile_order(7, 5, group=group))
        assert sorted(order) == [(i, j) for i in range(7) for j in range(5)]


def simple_lru(lines: list[int], capacity: int) -> int:
    held: list[int] = []
    misses = 0
    for line in lines:
        if line in held:
            held.remove(line)
        else:
            misses += 1
            if len(held) == capacity:
                held.pop(0)
        held.append(line)
    return misses


@pytest.mark.parametrize("order", ["ijk", "ikj", "jki"])
def test_cache_against_a_slower_one(order: tiling.Order) -> None:
    lines = list(tiling.product_lines(16, order=order))
    assert len(lines) == 3 * 16**3
    for capacity in (1, 3, 10, 40, 96):
        assert tiling.lru(lines, capacity=capacity) == simple_lru(lines, capacity)
    assert tiling.lru(lines, capacity=96) == 96  # all of it fits: every line once


def test_blocks_reorder_and_do_not_add() -> None:
    for block in (3, 4, 8):
        assert sorted(tiling.product_lines(16, block=block)) == sorted(tiling.product_lines(16))


def test_columns_of_b_miss_every_time_and_blocks_do_not() -> None:
    plain = tiling.lru(tiling.product_lines(48), capacity=40)
    blocked = tiling.lru(tiling.product_lines(48, block=8), capacity=40)
    assert plain > 48**3  # the whole of B, once for every product
    assert blocked < plain / 5


def test_bad_loops_are_refused() -> None:
    with pytest.raises(InfrabookError, match="loops can be ijk"):
        list(tiling.product_lines(8, order="iij"))  # type: ignore[arg-type]
    with pytest.raises(InfrabookError, match="do not begin with a line"):
        list(tiling.product_lines(10))
    with pytest.raises(InfrabookError, match="tile_m has to be"):
        tiling.traffic(8, 8, 8, tile_m=0, tile_n=4)
    assert occupancy.WARP == 32
