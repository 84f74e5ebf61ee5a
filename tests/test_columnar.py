"""Bytes read for random rows: the formulas against every possible draw, and against real NumPy, Parquet and Lance."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infrabook import columnar
from infrabook.columnar import Column
from infrabook.errors import InfrabookError
from infrabook.explorers import bytes_read
from infrabook.measure.files import CountingFile, fetched_pages, kernel_reads, parquet_page_index, sizes

ROWS, WIDTH = 16_384, 128


# -- formulas ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rows", "unit", "k", "hole"),
    [
        (10, 3, 4, 0),
        (10, 3, 4, 2),
        (9, 3, 3, 1),
        (11, 1, 5, 2),
        (7, 2, 7, 1),
        (7, 2, 1, 9),
        (5, 5, 2, 3),
        (12, 5, 3, 2),
    ],
)
def test_expected_pieces_are_the_mean_over_every_draw(rows: int, unit: int, k: int, hole: int) -> None:
    draws = [columnar.pieces_of(draw, unit) for draw in itertools.combinations(range(rows), k)]
    read = [columnar.joined(pieces, 1, hole=hole) for pieces in draws]
    assert columnar.touched(rows, unit, k) == Fraction(sum(map(len, draws)), len(draws))
    means = tuple(Fraction(sum(column), len(draws)) for column in zip(*read, strict=True))
    assert columnar.coalesced(rows, unit, 1, k, hole=hole) == means


@pytest.mark.parametrize(
    ("rows", "width", "k", "page"), [(9, 5, 3, 8), (8, 8, 2, 8), (7, 20, 2, 8), (20, 3, 4, 8), (5, 3, 5, 16)]
)
def test_expected_pages_are_the_mean_over_every_draw(rows: int, width: int, k: int, page: int) -> None:
    draws = list(itertools.combinations(range(rows), k))
    pages = [{p for i in d for p in range(i * width // page, ((i + 1) * width - 1) // page + 1)} for d in draws]
    assert columnar.pages_touched(rows, width, k, page=page) == Fraction(sum(map(len, pages)), len(draws))


def test_beyond_512_factors_the_chance_is_a_double() -> None:
    import math

    exact = Fraction(math.comb(20_000 - 700, 600), math.comb(20_000, 600))
    assert float(columnar.none_in(20_000, 700, 600)) == pytest.approx(float(exact), rel=1e-12)


def test_a_short_last_group_is_counted_as_such() -> None:
    column = Column("x", 8)
    per_row = [8 * (10 if i < 10 else 3) for i in range(13)]
    assert columnar.parquet([column], 13, 1, group=10).bytes.total == Fraction(sum(per_row), 13)


def test_all_rows_cost_the_whole_table_in_every_format() -> None:
    columns = [Column("a", 8), Column("b", 512)]
    whole = 4096 * 520
    assert columnar.numpy_rows(columns, 4096, 4096).bytes.total == whole
    assert columnar.numpy_memmap(columns, 4096, 4096).bytes.total == whole
    assert columnar.parquet(columns, 4096, 4096, group=512).bytes.total == whole
    assert columnar.parquet_pages(columns, 4096, 4096).bytes.total == whole
    assert columnar.lance(columns, 4096, 4096).bytes.total == whole + 8 * columnar.LANCE_HEADER


def test_more_rows_than_there_are_cannot_be_drawn() -> None:
    with pytest.raises(InfrabookError, match="11 different rows cannot be drawn from a table of 10"):
        columnar.touched(10, 2, 11)
    with pytest.raises(InfrabookError, match="4,096 different rows cannot be drawn from a table of 1,000"):
        bytes_read(rows=1000, k=4096)
    with pytest.raises(InfrabookError, match="the width of x has to be greater than 0"):
        Column("x", 0)


# -- real files ----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def columns() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    return {
        "id": np.arange(ROWS),
        "score": generator.standard_normal(ROWS),
        "embedding": generator.standard_normal((ROWS, WIDTH), dtype=np.float32),
    }


@pytest.fixture(scope="module")
def table(columns: dict[str, Any]) -> Any:
    embedding = pa.FixedSizeListArray.from_arrays(columns["embedding"].ravel(), WIDTH)
    return pa.table({"id": columns["id"], "score": columns["score"], "embedding": embedding})


def draw(k: int) -> list[int]:
    return sorted(random.Random(k).sample(range(ROWS), k))


def of_size(width: int) -> Any:
    values = np.random.default_rng(width).integers(0, 256, (ROWS, width), dtype=np.uint8)
    return pa.FixedSizeListArray.from_arrays(values.ravel(), width)


def test_lance_reads_mini_blocks_below_256_bytes_and_single_values_above(tmp_path: Path) -> None:
    widths = (8, 24, 64, 96, 124, 127, 128, 129, 192, 256, 1000)
    lance.write_dataset(pa.table({str(width): of_size(width) for width in widths}), tmp_path / "t")
    dataset = lance.dataset(tmp_path / "t")
    for width in widths:
        dataset.take([3], columns=[str(width)])
        dataset.io_stats_incremental()
        dataset.take([9000], columns=[str(width)])
        found = dataset.io_stats_incremental()
        assert found.read_bytes == columnar.lance_unit(Column("x", width))[1], width
        assert found.read_iops == 1


@pytest.mark.parametrize("k", [1, 8, 64, 512, 4096])
def test_lance_reads_the_touched_pieces_and_gaps_of_up_to_4_kib(table: Any, tmp_path: Path, k: int) -> None:
    lance.write_dataset(table, tmp_path / "t")
    dataset = lance.dataset(tmp_path / "t")
    rows = draw(k)
    for name, width in (("score", 8), ("embedding", 4 * WIDTH)):
        dataset.take([0], columns=[name])
        dataset.io_stats_incremental()
        with kernel_reads() as kernel:
            dataset.take(rows, columns=[name])
        found = dataset.io_stats_incremental()
        unit, size = columnar.lance_unit(Column(name, width))
        want = columnar.joined(columnar.pieces_of(rows, unit), int(size), hole=columnar.LANCE_HOLE)
        assert (found.read_bytes, found.read_iops) == want
        assert kernel.bytes is None or 0 <= kernel.bytes - found.read_bytes < 4096
        expected = columnar.lance([Column(name, width)], ROWS, k)
        assert float(expected.bytes.total) == pytest.approx(found.read_bytes, rel=0.35 if k < 100 else 0.05)


def test_pyarrow_reads_the_chunks_of_the_touched_groups(table: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(table, path, row_group_size=1024, compression="none", use_dictionary=False)
    rows = draw(5)
    source = CountingFile(path)
    file = pq.ParquetFile(source)
    source.clear()
    groups = columnar.pieces_of(rows, 1024)
    file.read_row_groups(groups)
    chunks = [file.metadata.row_group(g).column(i).total_compressed_size for g in groups for i in range(3)]
    assert source.bytes == sum(chunks)
    plain = [Column("id", 8), Column("score", 8), Column("embedding", 4 * WIDTH)]
    per_group = columnar.parquet(plain, ROWS, 1, group=1024).bytes.total
    assert source.bytes == pytest.approx(
        float(len(groups) * per_group), rel=0.015
    )  # and levels: where each list begins


def test_the_kernel_fetches_the_pages_that_rows_lie_on(columns: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "rows"
    kind = np.dtype([("score", "f8"), ("embedding", "f4", WIDTH)])
    records = np.zeros(ROWS, kind)
    records["embedding"] = columns["embedding"]
    records.tofile(path)
    rows = np.array(draw(200))
    found = fetched_pages(path, lambda memory: np.frombuffer(memory, kind)[rows].copy())
    if found is None:
        pytest.skip("this system does not say which pages of a file are in memory")
    size = kind.itemsize
    assert found == len({*(rows * size // 4096), *(((rows + 1) * size - 1) // 4096)})
    assert float(columnar.pages_touched(ROWS, size, 200)) == pytest.approx(found, rel=0.05)


def test_the_page_index_leads_to_the_values(columns: dict[str, Any], table: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(
        table, path, row_group_size=ROWS, data_page_size=8192, write_page_index=True, compression="none",
        use_dictionary=False,
    )  # fmt: skip
    pages = parquet_page_index(path, column=1)
    assert [page.first_row for page in pages] == list(range(0, ROWS, 1024))
    body = path.read_bytes()[pages[3].offset :][: pages[3].bytes]
    assert (np.frombuffer(body[-8192:]) == columns["score"][3072:4096]).all()


def test_sizes_of_a_file_and_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    assert sizes(tmp_path) == sizes(tmp_path / "a") == {str(tmp_path / "a"): 3}


# -- the explorer --------------------------------------------------------------------------------------------
def test_every_control_of_the_explorer_moves_its_costs() -> None:
    start = bytes_read()
    for change in (
        {"rows": 10_000},
        {"wide": 64},
        {"narrow": 8},
        {"wanted": "wide"},
        {"k": 16},
        {"group": 1024},
        {"page": 64},
    ):
        assert bytes_read(**change) != start, change
