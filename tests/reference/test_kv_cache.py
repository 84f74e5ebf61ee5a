"""Reference cases of the KV cache: papers, configs and other books, in the library's terms."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from infrabook import kv_cache, parameters
from infrabook.models import MLA, Transformer
from infrabook.units import GIB, TB

from .cases import cases, passes

CASES = cases("kv-cache")
EXCUSED: dict[str, str] = {}


def model(
    layers: int, kv_heads: int, head_dim: int, *, heads: int | None = None, mla: MLA | None = None
) -> Transformer:
    """A model of which only the cache matters."""
    return Transformer("case", layers, 1024, heads or kv_heads, kv_heads, head_dim, 4096, 32000, 4096, mla=mla)


def plain(inputs: dict[str, Any]) -> dict[str, Any]:
    """Layers, key-value heads and head_dim given: bytes a token and for 4,096 of them."""
    it = model(inputs["n_layer"], inputs["n_kv_head"], inputs["head_dim"])
    dtype = 8 * inputs["bytes_per_element"]
    return {
        "bytes per token": kv_cache.bytes_per_token(it, dtype),
        "per 4096 tokens": Fraction(kv_cache.cache(it, batch=inputs["batch"], context=4096, dtype=dtype).total, GIB),
    }


def deepseek_v3(inputs: dict[str, Any]) -> dict[str, Any]:
    mla = MLA(1536, inputs["kv_lora_rank"], 128, inputs["qk_rope_head_dim"], 128)
    it = model(inputs["n_layer"], 128, 128, mla=mla)
    latent = kv_cache.bytes_per_token(it, 8 * inputs["bytes_per_element"])
    expanded = kv_cache.bytes_per_token(it, 8 * inputs["bytes_per_element"], mla="expanded")
    return {
        "bytes per token": latent,
        "if cached as MHA (128 heads, K 192 + V 128)": expanded,
        "ratio": Fraction(expanded, latent),
    }


def deepseek_v2(inputs: dict[str, Any]) -> dict[str, Any]:
    v2, v67 = inputs["v2"], inputs["v67b"]
    latent = model(v2["L"], 128, 128, mla=MLA(1536, v2["latent"], 128, v2["rope"], 128))
    grouped = model(v67["L"], v67["n_kv_head"], v67["head_dim"])
    full = Fraction(kv_cache.bytes_per_token(grouped, v67["bits"]))
    return {
        "reduction with 6-bit V2 cache vs bf16 GQA 67B": 100
        * (1 - kv_cache.bytes_per_token(latent, v2["bits"]) / full),
        "reduction at equal precision": 100 * (1 - kv_cache.bytes_per_token(latent, v67["bits"]) / full),
        "MLA equivalent GQA groups": Fraction(kv_cache.elements_per_token(latent), 2 * v67["head_dim"]),
    }


def cookbook(inputs: dict[str, Any]) -> dict[str, Any]:
    """The tool's cache is that of all heads with keys or values forgotten: half of multi-head attention."""
    grouped = model(inputs["layers"], inputs["n_kv_head"], inputs["head_dim"], heads=inputs["n_head"])
    every_head = model(inputs["layers"], inputs["n_head"], inputs["head_dim"])
    tokens, dtype = inputs["seq"], 8 * inputs["bytes"]
    true = kv_cache.cache(grouped, batch=inputs["batch"], context=tokens, dtype=dtype)
    multi_head = kv_cache.cache(every_head, batch=inputs["batch"], context=tokens, dtype=dtype)
    return {
        "true KV cache": Fraction(true.total, GIB),
        "cookbook tool output": Fraction(multi_head.total, 2 * GIB),
    }


def pope(inputs: dict[str, Any]) -> dict[str, Any]:
    def tb(head_dim: int) -> Fraction:
        it = model(inputs["L"], inputs["heads"], head_dim)
        cache = kv_cache.cache(it, batch=inputs["batch"], context=inputs["context"], dtype=8 * inputs["bytes"])
        return Fraction(cache.total, TB)

    return {"KV cache": tb(inputs["head_dim"]), "with head_dim 256 instead": tb(256)}


def scaling_book_8gib(inputs: dict[str, Any]) -> dict[str, Any]:
    it = model(inputs["L"], inputs["KH"] // 128, 128)
    cache = kv_cache.cache(it, context=inputs["S"], dtype=8 * inputs["bytes"])
    return {"KV cache": Fraction(cache.total, GIB)}


def scaling_book_q1(inputs: dict[str, Any]) -> dict[str, Any]:
    d = inputs["D"]
    it = Transformer("q1", inputs["L"], d, d // 128, d // 128, 128, inputs["F"], inputs["V"], 4096, norms_per_layer=1)
    return {
        "KV per token int8": kv_cache.bytes_per_token(it, 8 * inputs["bytes"]),
        "parameters exact": parameters.count(it, final_norm=False).total,
    }


HOW: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "mem-cookbook-kv-llama2-70b": cookbook,
    "kv-deepseek-v3-mla": deepseek_v3,
    "kv-deepseek-v2-933": deepseek_v2,
    "kv-pope-540b": pope,
    "kv-scaling-book-8gib": scaling_book_8gib,
    "kv-scaling-book-q1": scaling_book_q1,
}


@pytest.mark.parametrize("name", [name for name in CASES if name not in EXCUSED])
def test_kv_cache(name: str) -> None:
    case = CASES[name]
    values = HOW.get(name, plain)(case["inputs"])
    for expected in case["expected"]:
        assert passes(expected, values[expected["quantity"]]), (expected, values)


def test_every_excuse_is_of_a_case() -> None:
    assert set(EXCUSED) <= set(CASES)
