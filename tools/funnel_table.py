"""Write what the explorer ``funnel`` reads: python tools/funnel_table.py

One line for each distinct text of the crawl with what the filters look at, and one for each pair of similar texts with
its exact similarity and the minima of their MinHash signatures that agree. A test makes it again and compares.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datasketch import MinHash

from infrabook import bpe, crawl, dataset

PATH = Path(__file__).parents[1] / "src" / "infrabook" / "data" / "funnel.json"
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
    texts: dict[str, list[Any]] = {}
    sizes: dict[str, list[int]] = {}
    undecodable, origins = [], {page.url: i for i, page in enumerate(crawl.originals())}
    for page in crawl.pages():
        text = dataset.decode(page.raw)
        if not text:
            undecodable.append(len(page.raw))
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
                len(tokenizer.encode_ordinary(text)),
            ]  # fmt: skip
        sizes.setdefault(key, []).append(len(page.raw))
    sets = [dataset.shingles(text) for text in texts]
    signatures = [signature(one) for one in sets]
    pairs = []
    for (i, j), similarity in dataset.similar_pairs(sets, LEAST).items():
        agree = signatures[i].hashvalues == signatures[j].hashvalues
        mask = sum(1 << place for place, same in enumerate(agree) if same)
        pairs.append([i, j, similarity.numerator, similarity.denominator, f"{mask:x}"])
    return {
        "originals": len(origins), "undecodable": undecodable,
        "texts": [[*values, sizes[key]] for key, values in texts.items()], "pairs": pairs,
    }  # fmt: skip


def main() -> None:
    """Write the table, one entry a line."""
    found = table()
    lines = [
        f'"{name}": '
        + (json.dumps(value) if name in ("originals", "undecodable") else
           "[\n" + ",\n".join(json.dumps(one, separators=(",", ":")) for one in value) + "\n]")
        for name, value in found.items()
    ]  # fmt: skip
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    print(f"{PATH.name}: {len(found['texts'])} texts, {len(found['pairs'])} pairs, {PATH.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
