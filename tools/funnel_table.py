"""Write what the explorer ``funnel`` reads: python tools/funnel_table.py

A line for each distinct text of the crawl: the number of the book's text that it is a copy of (-1 rubbish, -2 another
article), words, English function words, words with a letter, repeated runs, runs, whether it passes the rules that have
no control, and the tokens of each page that has it. A line for each pair of similar texts: both numbers, the similarity
as a fraction, and in hexadecimal which minima of their MinHash signatures agree. A test makes it again and compares.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from datasketch import MinHash

from infrabook import bpe, crawl, dataset

PATH = Path(__file__).parents[1] / "src" / "infrabook" / "data" / "funnel.toml"
MINIMA = 128
LEAST = 0.15  # pairs below it are left out
VOCABULARY = 1024


def signature(elements: frozenset[str]) -> Any:
    """The MinHash of a set, which depends on nothing but the set."""
    made = MinHash(num_perm=MINIMA, seed=1, scheme="affine32")
    made.update_batch([one.encode() for one in sorted(elements)])
    return made


def table() -> dict[str, Any]:
    """The whole table as plain data."""
    tokenizer = bpe.Tokenizer(*bpe.train(bpe.corpus(), VOCABULARY))
    texts: dict[str, list[int]] = {}
    tokens: dict[str, list[int]] = {}
    undecodable, origins = 0, {page.url: i for i, page in enumerate(crawl.originals())}
    for page in crawl.pages():
        text = dataset.decode(page.raw)
        if not text:
            undecodable += 1
            continue
        key = dataset.normalized(text)
        if key not in texts:
            found = dataset.signals(text)
            limits = dataset.Limits(words=0, lettered=0, repeated=1)
            runs = max(1, found.words - 4)
            texts[key] = [
                origins.get(page.origin, -1 if page.kind in crawl.RUBBISH else -2), found.words,
                int(found.function_words * max(1, found.words)), int(found.lettered * max(1, found.words)),
                int(found.repeated * runs), runs, int(dataset.good(found, limits)),
            ]  # fmt: skip
        tokens.setdefault(key, []).append(len(tokenizer.encode_ordinary(text)))
    sets = [dataset.shingles(text) for text in texts]
    signatures = [signature(one) for one in sets]
    pairs = []
    for (i, j), similarity in dataset.similar_pairs(sets, LEAST).items():
        agree = signatures[i].hashvalues == signatures[j].hashvalues
        mask = sum(1 << place for place, same in enumerate(agree) if same)
        pairs.append([i, j, similarity.numerator, similarity.denominator, f"{mask:x}"])
    return {
        "originals": len(origins), "undecodable": undecodable,
        "texts": lines([*values, *tokens[key]] for key, values in texts.items()), "pairs": lines(pairs),
    }  # fmt: skip


def lines(rows: Iterable[Iterable[object]]) -> str:
    """Rows as text."""
    return "".join(" ".join(map(str, row)) + "\n" for row in rows)


def main() -> None:
    """Write the table."""
    found = table()
    text = "# Written by tools/funnel_table.py, which says what the columns are.\n"
    for name, value in found.items():
        text += f"{name} = {value}\n" if isinstance(value, int) else f"{name} = '''\n{value}'''\n"
    PATH.write_text(text, "utf-8")
    assert tomllib.loads(text) == found
    print(f"{PATH.name}: {PATH.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
