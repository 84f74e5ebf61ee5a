"""Bytes read for random rows: the formulas against every possible draw, and against real NumPy, Parquet and Lance."""

from __future__ import annotations

import itertools
import random
import re
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
from infrabook.lab import check
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


@pytest.mark.parametrize(
    ("rows", "width", "k", "page", "offset", "length"),
    [(9, 5, 3, 8, 0, 2), (9, 5, 3, 8, 3, 2), (7, 20, 2, 8, 5, 4), (7, 20, 2, 8, 0, 20), (20, 3, 4, 8, 1, 1)],
)
def test_expected_pages_of_a_field_are_the_mean_over_every_draw(
    rows: int, width: int, k: int, page: int, offset: int, length: int
) -> None:
    draws = list(itertools.combinations(range(rows), k))
    starts = [[i * width + offset for i in draw] for draw in draws]
    pages = [{p for at in one for p in range(at // page, (at + length - 1) // page + 1)} for one in starts]
    mean = Fraction(sum(map(len, pages)), len(draws))
    assert columnar.pages_touched(rows, width, k, page=page, offset=offset, length=length) == mean


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


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Column("x", 0), "the width of x has to be greater than 0, and is 0"),
        (lambda: Column("x", 8, encoded=-3), "the encoded width of x has to be 0 or more, and is -3"),
        (lambda: Column("x", 8, longest=4), "x has 8 bytes a value, more than its longest, 4"),
        (lambda: columnar.coalesced(9, 2, 8, 3, hole=-5), "the gap that is read along has to be 0 or more, and is -5"),
        (lambda: columnar.joined([1], 8, hole=-5), "the gap that is read along has to be 0 or more, and is -5"),
        (lambda: columnar.none_in(10, -1, 2), "rows of the window has to be 0 or more, and is -1"),
        (lambda: columnar.pieces_of([-1, 5], 4), "rows are numbered from 0, and one of these is negative"),
        (lambda: columnar.pages_touched(9, 8, 1, offset=4, length=5), "a row of 8 bytes has no 5 bytes from byte 4 on"),
        (
            lambda: columnar.numpy_memmap([Column("a", 8)], 9, 1, only="b"),
            "the record has no column 'b', only a",
        ),
    ],
)
def test_nonsense_is_refused(call: Any, sentence: str) -> None:
    with pytest.raises(InfrabookError, match=f"^{sentence}$"):
        call()


def test_no_rows_cost_nothing_and_pieces_may_come_in_any_order() -> None:
    column = [Column("x", 8)]
    for way in (columnar.numpy_rows, columnar.numpy_memmap, columnar.lance, columnar.parquet_pages):
        assert way(column, 13, 0).bytes.total == 0
    assert columnar.parquet(column, 13, 0, group=10).bytes.total == 0
    assert columnar.joined([40, 0, 2, 0], 512, hole=4096) == columnar.joined([0, 2, 40], 512, hole=4096) == (2048, 2)


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


def of_lengths(shortest: int, longest: int, rows: int = ROWS) -> tuple[Any, list[int]]:
    generator = np.random.default_rng(longest)
    lengths = generator.integers(shortest, longest, rows)
    lengths[7] = longest
    ends = np.cumsum(lengths)
    letters = generator.integers(97, 123, int(ends[-1]), dtype=np.uint8).tobytes().decode()
    return pa.array([letters[end - n : end] for end, n in zip(ends, lengths, strict=True)]), lengths.tolist()


def plain_text(array: Any, path: Path) -> Any:
    as_is = pa.field("text", pa.string(), metadata={"lance-encoding:compression": "none"})
    lance.write_dataset(pa.Table.from_arrays([array], schema=pa.schema([as_is])), path)
    return lance.dataset(path)


@pytest.mark.parametrize(("shortest", "longest"), [(8, 32), (50, 150), (100, 255), (100, 256), (100, 300), (300, 900)])
def test_the_longest_value_decides_how_lance_reads_texts(tmp_path: Path, shortest: int, longest: int) -> None:
    """One value of 256 bytes, and every one of 16,384 stands alone; where each begins is read before the first."""
    texts, lengths = of_lengths(shortest, longest)
    dataset = plain_text(texts, tmp_path / "t")
    column = Column("text", Fraction(sum(lengths), ROWS), variable=True, longest=longest)
    dataset.take([3])
    opening = dataset.io_stats_incremental().read_bytes
    dataset.take([9000])
    found = dataset.io_stats_incremental()
    unit, size = columnar.lance_unit(column)
    if longest < 256:
        assert unit > 1
        assert found.read_bytes == pytest.approx(float(size), rel=0.15), "a block of particular texts"
    else:
        assert unit == 1
        assert found.read_bytes == lengths[9000] + columnar.OFFSET
    assert 0 <= opening - found.read_bytes - columnar.lance_offsets(column, ROWS) < 12_000, "and footers"
    assert found.read_iops == 1


@pytest.mark.parametrize("rows", [ROWS - 10, ROWS // 2 + 300])
def test_the_last_mini_block_of_lance_is_shorter(table: Any, tmp_path: Path, rows: int) -> None:
    lance.write_dataset(table.slice(0, rows), tmp_path / "t")
    dataset = lance.dataset(tmp_path / "t")
    for indices in ([rows - 1], [3, rows - 700, rows - 2]):
        dataset.take([0], columns=["score"])
        dataset.io_stats_incremental()
        dataset.take(indices, columns=["score"])
        found = dataset.io_stats_incremental()
        assert (found.read_bytes, found.read_iops) == columnar.lance_taken(Column("score", 8), rows, indices)
    every = [columnar.lance_taken(Column("score", 8), 700, [i])[0] for i in range(700)]
    assert columnar.lance([Column("score", 8)], 700, 1).bytes.total == Fraction(sum(map(Fraction, every)), 700)


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
        assert (found.read_bytes, found.read_iops) == columnar.lance_taken(Column(name, width), ROWS, rows)
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
    field = fetched_pages(path, lambda memory: np.frombuffer(memory, kind)["score"][rows].copy())
    assert field == len(set(rows * size // 4096)), "a field of 8 bytes at the start of a record is on one page"
    assert field == pytest.approx(float(columnar.pages_touched(ROWS, size, 200, length=8)), rel=0.05)
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


# -- the explorer and the exercises --------------------------------------------------------------------------
def test_numpy_reads_one_column_of_a_record_at_its_offset() -> None:
    """Measured: a mapped record of 65,544 bytes is 17 pages, and its first field is one."""
    shown = bytes_read(wanted="narrow", wide=65_536, k=1)
    assert "8 B at least, by NumPy, read" in re.sub("<[^>]+>", "", shown)
    mapped = next(row for row in shown.split("<tr") if "mapped" in row)
    assert "4.1 KB" in mapped
    assert "× 512" in mapped


def test_exercises_take_what_a_reader_computes_by_hand() -> None:
    assert all(check("columnar/1", answer) for answer in (63, 63.4))
    assert all(check("columnar/2", answer) for answer in (7093, 7096))
    assert all(check("columnar/3", answer) for answer in (2, 1.998, 1.9961))
    assert not any((check("columnar/1", 64.5), check("columnar/2", 4096), check("columnar/3", 1)))


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
