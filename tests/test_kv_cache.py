"""The KV cache against real tensors, and its limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from infrabook import kv_cache, models
from infrabook.errors import InfrabookError
from infrabook.models import MLA
from infrabook.units import GIB


def test_bytes_are_those_of_the_tensors_a_decoder_keeps() -> None:
    torch = pytest.importorskip("torch")
    m = replace(models.get("llama-3-8b"), layers=2)
    kept = [torch.empty(3, m.kv_heads, 17, m.head_dim, dtype=torch.bfloat16) for _ in range(2 * m.layers)]
    assert kv_cache.cache(m, batch=3, context=17).total == sum(t.nbytes for t in kept)


def test_grouped_heads_divide_the_cache() -> None:
    seventy = models.get("llama-2-70b")
    multi_head = replace(seventy, kv_heads=64)
    multi_query = replace(seventy, kv_heads=1)
    assert kv_cache.bytes_per_token(multi_head) == 8 * kv_cache.bytes_per_token(seventy)
    assert kv_cache.bytes_per_token(seventy) == 8 * kv_cache.bytes_per_token(multi_query)


def test_latent_attention_has_no_factor_two() -> None:
    deepseek = models.get("deepseek-v3")
    assert kv_cache.bytes_per_token(deepseek) == 61 * (512 + 64) * 2
    assert kv_cache.bytes_per_token(deepseek, mla="expanded") == 61 * 128 * (192 + 128) * 2


def test_sliding_windows_stop_growing() -> None:
    m = replace(models.get("llama-3-8b"), window=1024, window_layers=16)
    each = kv_cache.bytes_per_token(m) // m.layers
    assert kv_cache.cache(m, context=512).total == 512 * 32 * each
    assert kv_cache.cache(m, context=8192).total == (16 * 8192 + 16 * 1024) * each
    assert kv_cache.cache(m, context=8192, windows=False).total == 32 * 8192 * each


def test_eight_bits_with_a_scale_a_head() -> None:
    m = models.get("llama-2-7b")
    plain = kv_cache.cache(m, context=1, dtype="int8").total
    scaled = kv_cache.cache(m, context=1, dtype="int8", scales=(("fp16", 128),)).total
    assert plain == 32 * 2 * 4096
    assert scaled - plain == 32 * 2 * 32 * 2


def test_ranks_hold_whole_heads() -> None:
    m = models.get("llama-3-8b")  # 8 key-value heads
    whole = kv_cache.cache(m, context=1).total
    assert [kv_cache.cache(m, context=1, tensor_parallel=t).total for t in (1, 8, 16)] == [
        whole, whole // 8, whole // 8,
    ]  # fmt: skip
    deepseek = models.get("deepseek-v3")
    assert kv_cache.cache(deepseek, context=1, tensor_parallel=8).total == kv_cache.bytes_per_token(deepseek)


def test_limits_are_the_inverse_of_the_cache() -> None:
    m = models.get("llama-2-7b")
    longest = kv_cache.max_context(m, 10 * GIB, batch=3)
    assert kv_cache.cache(m, batch=3, context=longest).total <= 10 * GIB
    assert kv_cache.cache(m, batch=3, context=longest + 1).total > 10 * GIB
    most = kv_cache.max_batch(m, 10 * GIB, context=1000)
    assert kv_cache.cache(m, batch=most, context=1000).total <= 10 * GIB
    assert kv_cache.cache(m, batch=most + 1, context=1000).total > 10 * GIB


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"context": 0}, "context has to be greater than 0"),
        ({"context": 8, "batch": -1}, "batch"),
        ({"context": 8, "dtype": "bf15"}, "not a dtype"),
        ({"context": 8, "tensor_parallel": 3}, "3 tensor-parallel ranks do not divide 32 heads"),
    ],
)
def test_bad_input_is_answered_in_words(how: dict[str, Any], words: str) -> None:
    with pytest.raises(InfrabookError, match=words):
        kv_cache.cache(models.get("llama-2-7b"), **how)


def test_an_unknown_way_to_cache_a_latent() -> None:
    m = replace(models.get("llama-2-7b"), mla=MLA(0, 512, 128, 64, 128))
    with pytest.raises(InfrabookError, match="'latent' or 'expanded'"):
        kv_cache.bytes_per_token(m, mla="both")  # type: ignore[arg-type]
