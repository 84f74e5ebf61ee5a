"""The memory accounts against PyTorch: bytes that autograd saves for blocks built here, and a tracker's peaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from infrabook import activations as acts
from infrabook import memory, models, recipes
from infrabook.errors import InfrabookError
from infrabook.models import MLA, MoE, Transformer
from infrabook.units import GB, GIB

torch = pytest.importorskip("torch")
F = torch.nn.functional

BATCH, SEQUENCE = 2, 64


# -- the witness: storages that autograd saves, each once, parameters left out -------------------------------


def saved_bytes(run: Callable[[], Any], leave_out: list[Any]) -> int:
    """Bytes of the storages that ``run`` saves for backward, without those of ``leave_out``."""
    seen = {tensor.untyped_storage()._cdata: 0 for tensor in leave_out}
    alive = []

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen[storage._cdata] = storage.nbytes()
            alive.append(storage)  # else a freed storage's address could be used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(seen.values())


class Weights:
    """Parameters by name, drawn when first asked for."""

    def __init__(self, dtype: Any) -> None:
        self.dtype, self.all = dtype, {}  # type: ignore[var-annotated]

    def __call__(self, name: str, *shape: int) -> Any:
        if name not in self.all:
            self.all[name] = torch.randn(*shape, dtype=self.dtype).mul_(0.05).requires_grad_()
        return self.all[name]


def heads(x: Any, count: int) -> Any:
    return x.view(*x.shape[:2], count, -1).transpose(1, 2)


def one_byte_dropout(x: Any) -> Any:
    return torch.native_dropout(x, 0.1, True)[0]


def gpt_block(m: Transformer, w: Weights, x: Any, *, attention: str, dropout: Callable[[Any], Any]) -> Any:
    """LayerNorm, attention with biases, residual, LayerNorm, GELU, residual."""
    h, a = m.hidden, m.heads
    y = F.layer_norm(x, (h,), w("n1", h), w("n1b", h))
    q, k, v = (heads(F.linear(y, w(n, h, h), w(n + "b", h)), a) for n in "qkv")
    if attention == "eager":
        scores = (q @ k.transpose(-1, -2)) * m.head_dim**-0.5
        o = dropout(F.softmax(scores, -1)) @ v
    else:
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    o = o.transpose(1, 2).reshape(x.shape)
    x = x + dropout(F.linear(o, w("o", h, h), w("ob", h)))
    y = F.layer_norm(x, (h,), w("n2", h), w("n2b", h))
    y = F.gelu(F.linear(y, w("up", m.ffn, h), w("upb", m.ffn)), approximate="tanh")
    return x + dropout(F.linear(y, w("down", h, m.ffn), w("downb", h)))


class FusedRMSNorm(torch.autograd.Function):
    """What the fused CUDA kernel saves: its input and one fp32 number a row."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        rstd = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(x, weight, rstd)
        return (x * rstd * weight).to(x.dtype)


def rms_norm(x: Any, weight: Any, kind: str) -> Any:
    if kind == "fused":
        return FusedRMSNorm.apply(x, weight)
    if kind == "fp32":
        return F.rms_norm(x, x.shape[-1:], weight, 1e-5)
    wide = x.float()  # Hugging Face's
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def llama_block(
    m: Transformer, w: Weights, x: Any, *, norm: str, attention: str, tables: tuple[Any, Any], softmax: Any = None
) -> Any:
    """RMSNorm, grouped attention with RoPE, residual, RMSNorm, SwiGLU, residual."""
    h, wide, narrow = m.hidden, m.heads * m.head_dim, m.kv_heads * m.head_dim
    y = rms_norm(x, w("n1", h), norm)
    q, k, v = (heads(F.linear(y, w(n, width, h)), width // m.head_dim)
               for n, width in (("q", wide), ("k", narrow), ("v", narrow)))  # fmt: skip
    if m.qk_norm == "head":  # before the transpose, as in Qwen3: after it, flash's output would be copied
        q = rms_norm(q.transpose(1, 2), w("qn", m.head_dim), norm).transpose(1, 2)
        k = rms_norm(k.transpose(1, 2), w("kn", m.head_dim), norm).transpose(1, 2)
    q, k = rotate(q, *tables), rotate(k, *tables)
    if attention == "eager":
        k, v = (t.repeat_interleave(m.heads // m.kv_heads, 1) for t in (k, v))
        o = F.softmax((q @ k.transpose(-1, -2)) * m.head_dim**-0.5, -1, dtype=softmax).to(v.dtype) @ v
    else:
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=m.heads != m.kv_heads)
    x = x + F.linear(o.transpose(1, 2).reshape(*x.shape[:2], wide), w("o", h, wide))
    y = rms_norm(x, w("n2", h), norm)
    return x + F.linear(F.silu(F.linear(y, w("gate", m.ffn, h))) * F.linear(y, w("up", m.ffn, h)),
                        w("down", h, m.ffn))  # fmt: skip


def gpt(hidden: int = 128, n_heads: int = 4, ffn: int = 512) -> Transformer:
    return Transformer(
        "gpt", 2, hidden, n_heads, n_heads, hidden // n_heads, ffn, 1000, 256, False, "layernorm", True,
        positions="learned", qkv_bias=True, out_bias=True, ffn_bias=True,
    )  # fmt: skip


def llama(kv_heads: int = 2, head_dim: int = 32, **changes: Any) -> Transformer:
    return replace(Transformer("llama", 2, 128, 4, kv_heads, head_dim, 344, 1000, 256), **changes)


def stream(m: Transformer, dtype: Any) -> Any:
    return torch.randn(BATCH, SEQUENCE, m.hidden, dtype=dtype, requires_grad=True)


# -- one layer -----------------------------------------------------------------------------------------------

BF16, FP32 = torch.bfloat16, torch.float32


@pytest.mark.parametrize("m", [gpt(), gpt(96, 6, 200)], ids=["4h", "odd"])
@pytest.mark.parametrize(
    ("dtype", "attention", "dropout", "how"),
    [
        (BF16, "eager", one_byte_dropout, {"mask_bytes": 1, "statistics_bytes": 2}),
        (BF16, "eager", lambda x: F.dropout(x, 0.1), {"mask_bytes": 2, "statistics_bytes": 2}),
        (FP32, "eager", lambda x: F.dropout(x, 0.1), {"mask_bytes": 4, "statistics_bytes": 4, "dtype": "fp32"}),
        (BF16, "eager", lambda x: x, {"dropout": False, "statistics_bytes": 2}),
        (BF16, "flash", lambda x: x, {"dropout": False, "statistics_bytes": 2}),
    ],
    ids=["one-byte masks", "masks as on a CPU", "fp32", "no dropout", "flash"],
)
def test_gpt_layer_saves_what_autograd_saves(
    m: Transformer, dtype: Any, attention: Any, dropout: Callable[[Any], Any], how: Any
) -> None:
    w, x = Weights(dtype), stream(m, dtype)
    gpt_block(m, w, x, attention=attention, dropout=dropout)  # draws the parameters
    measured = saved_bytes(lambda: gpt_block(m, w, x, attention=attention, dropout=dropout), list(w.all.values()))
    account = memory.one_layer(m, batch=BATCH, sequence=SEQUENCE, attention=attention, **how)
    assert account.total == measured


@pytest.mark.parametrize("norm", ["fused", "fp32", "cast"])
@pytest.mark.parametrize(
    "m",
    [llama(4), llama(2), llama(1), llama(2, 48), llama(2, qk_norm="head")],
    ids=["multi-head", "grouped", "multi-query", "heads wider than h/a", "qk norm"],
)
@pytest.mark.parametrize("attention", ["flash", "eager"])
def test_llama_layer_saves_what_autograd_saves(m: Transformer, norm: Any, attention: Any) -> None:
    w, x = Weights(BF16), stream(m, BF16)
    tables = tuple(torch.randn(SEQUENCE, m.head_dim, dtype=BF16) for _ in range(2))

    def run() -> Any:
        return llama_block(m, w, x, norm=norm, attention=attention, tables=tables)

    run()
    measured = saved_bytes(run, [*w.all.values(), *tables])
    account = memory.one_layer(m, batch=BATCH, sequence=SEQUENCE, attention=attention, rmsnorm=norm, statistics_bytes=4)
    assert account.total == measured


def test_softmax_in_fp32_keeps_a_second_matrix() -> None:
    m = llama(2)
    w, x = Weights(BF16), stream(m, BF16)
    tables = tuple(torch.randn(SEQUENCE, m.head_dim, dtype=BF16) for _ in range(2))

    def run() -> Any:
        return llama_block(m, w, x, norm="cast", attention="eager", tables=tables, softmax=FP32)

    run()
    account = memory.one_layer(
        m, batch=BATCH, sequence=SEQUENCE, attention="eager", softmax="fp32", rmsnorm="cast", statistics_bytes=4
    )
    assert account.total == saved_bytes(run, [*w.all.values(), *tables])


# -- a whole model -------------------------------------------------------------------------------------------


def whole_llama(m: Transformer, w: Weights, ids: Any, tables: Any, *, checkpointed: bool) -> Any:
    x = F.embedding(ids, w("embedding", m.vocab, m.hidden))
    for layer in range(m.layers):
        own = Weights(w.dtype)
        own.all = w.all.setdefault(f"layer {layer}", {})

        def block(x: Any, own: Weights = own) -> Any:
            return llama_block(m, own, x, norm="fp32", attention="flash", tables=tables)

        x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
    x = rms_norm(x, w("norm", m.hidden), "fp32")
    logits = F.linear(x, w("head", m.vocab, m.hidden))
    return F.cross_entropy(logits.float().flatten(0, 1), ids.flatten())


@pytest.mark.parametrize("recomputation", ["none", "full"])
def test_whole_model_saves_what_autograd_saves(recomputation: Any) -> None:
    """All rows together: layers, rotary tables, final norm, head and fp32 log-probabilities."""
    import torch.utils.checkpoint

    m, w = llama(2), Weights(BF16)
    ids = torch.randint(0, m.vocab, (BATCH, SEQUENCE))
    tables = tuple(torch.randn(SEQUENCE, m.head_dim, dtype=BF16) for _ in range(2))
    whole_llama(m, w, ids, tables, checkpointed=False)
    parameters = [p for p in w.all.values() if not isinstance(p, dict)]
    parameters += [p for group in w.all.values() if isinstance(group, dict) for p in group.values()]
    scalars = 4  # cross_entropy keeps the sum of the weights, one fp32 number

    # what full recomputation saves is the layers' inputs, which checkpoint holds outside the hooks
    if recomputation == "full":
        held: list[int] = []
        original = torch.utils.checkpoint.checkpoint

        def counting(function: Any, x: Any, **how: Any) -> Any:
            held.append(x.untyped_storage().nbytes())
            return original(function, x, **how)

        torch.utils.checkpoint.checkpoint = counting
        try:
            whole_llama(m, w, ids, tables, checkpointed=True)
        finally:
            torch.utils.checkpoint.checkpoint = original
        account = memory.activations(m, batch=BATCH, sequence=SEQUENCE, recomputation="full")
        assert account["layers: input, the rest recomputed"] == sum(held)
        return
    measured = saved_bytes(lambda: whole_llama(m, w, ids, tables, checkpointed=False), [*parameters, ids])
    account = memory.activations(
        m, batch=BATCH, sequence=SEQUENCE, rmsnorm="fp32", statistics_bytes=4, rotary_tables=True
    )
    assert account.total + scalars == measured


# -- formulas ------------------------------------------------------------------------------------------------


def test_llama_layer_is_12_plus_4g_plus_8f() -> None:
    for name in ("llama-2-7b", "llama-3-8b", "mistral-7b"):
        m = models.get(name)
        sbh = 2048 * m.hidden
        formula = 12 + Fraction(4 * m.kv_heads, m.heads) + Fraction(8 * m.ffn, m.hidden)
        expected = formula * sbh + 4 * m.heads * 2048
        assert memory.one_layer(m).total == expected
        assert memory.one_layer(m, rmsnorm="fp32").total == expected + 12 * sbh


def test_textbook_layer_on_llama_2_7b_is_30_6_gb() -> None:
    """34 + 5as/h on its dimensions: 30.6 GB, of which 21.5 GB grow with the square of the length."""
    m = models.get("llama-2-7b")
    account = memory.activations(m, layer="gpt", attention="eager")
    layers = account.where(lambda row: row.name.startswith("layers: "))
    square = layers.where(lambda row: "s²" in row.formula)
    assert round(Fraction(layers.total) / GB, 1) == Fraction("30.6")
    assert round(Fraction(square.total) / GB, 1) == Fraction("21.5")


def test_a_tracker_of_pytorch_agrees_on_llama_2_7b() -> None:
    """Measured once with fake tensors (torch 2.13, CPU, batch 1, 4,096 tokens, AdamW on bf16), in GiB."""
    m = models.get("llama-2-7b")
    how: Any = {"sequence": 4096, "rmsnorm": "fp32"}
    states = recipes.states(m, "pure-bf16")
    measured = {"weights": 12.55, "gradients": 12.55, "optimizer": 25.10}
    for kind, gib in measured.items():
        assert float(states.of(kind)) / GIB == pytest.approx(gib, abs=0.005)
    assert float(memory.activations(m, **how).total) / GIB == pytest.approx(25.41, abs=0.005)
    most = memory.peak(m, "pure-bf16", **how)
    assert most.name == "start of the backward pass"
    assert float(most.ledger.total) / GIB == pytest.approx(64.04, abs=0.005)
    kept = memory.activations(m, **how, recomputation="full")
    assert float(kept.total) / GIB == pytest.approx(1.65, abs=0.01)
    assert memory.peak(m, "pure-bf16", **how, recomputation="full").name == "optimizer step"


@pytest.mark.parametrize(("ranks", "gib"), [(8, 31.96), (64, 27.84)])
def test_fsdp_peaks_with_one_layer_and_the_root_gathered(ranks: int, gib: float) -> None:
    m = models.get("llama-2-7b")
    most = memory.peak(
        m, "pure-bf16", sequence=4096, rmsnorm="fp32", zero=3, data_parallel=ranks, buffers=memory.gathered(m)
    )
    assert float(most.ledger.total) / GIB == pytest.approx(gib, abs=0.005)


def test_tensor_parallel_keeps_10_plus_24_over_t() -> None:
    m = gpt(1024, 16, 4096)  # as/h is 16 at s = 1024
    for t in (1, 2, 4, 8):
        how: Any = {"sequence": 1024, "attention": "eager", "tensor_parallel": t}
        alone, both = memory.one_layer(m, **how), memory.one_layer(m, **how, sequence_parallel=True)
        assert Fraction(alone.total) / 1024**2 == 10 + Fraction(24, t) + Fraction(5 * 16, t)
        assert Fraction(both.total) / 1024**2 == Fraction(34 + 5 * 16, t)


def test_pytorch_keeps_gathered_inputs_under_sequence_parallelism() -> None:
    """Measured at t = 8: 17.75 sbh a layer where Megatron-LM keeps 14.25."""
    how: Any = {"sequence": 1024, "attention": "eager", "tensor_parallel": 8, "sequence_parallel": True}
    m = gpt(1024, 16, 4096)
    assert Fraction(memory.one_layer(m, **how).total) / 1024**2 == Fraction("14.25")
    assert Fraction(memory.one_layer(m, **how, keep_gathered=True).total) / 1024**2 == Fraction("17.75")


def test_more_tensor_parallel_ranks_than_key_value_heads_repeat_a_head() -> None:
    m = models.get("llama-3-8b")  # 8 of them
    keys = [memory.one_layer(m, tensor_parallel=t)["keys"] for t in (1, 8, 16)]
    assert keys == [keys[0], keys[0] // 8, keys[0] // 8]


def test_in_flight_by_schedule() -> None:
    assert [acts.in_flight(pipeline_parallel=4, stage=i) for i in range(4)] == [4, 3, 2, 1]
    assert acts.in_flight(pipeline_parallel=4, micro_batches=2) == 2
    assert acts.in_flight(pipeline_parallel=4, schedule="gpipe", micro_batches=32) == 32
    interleaved = acts.in_flight(pipeline_parallel=4, schedule="interleaved", virtual_stages=2)
    assert interleaved == 4 * (1 + Fraction(3, 8))


def test_first_pipeline_stage_holds_as_much_as_one_gpu_without_stages() -> None:
    """p micro-batches of L/p layers: what 1F1B does not save (Korthikanti et al., equation 6)."""
    m = models.get("gpt3-175b")
    inner = [
        memory.activations(m, pipeline_parallel=p).where(lambda row: row.name.startswith("layers: ")).total
        for p in (1, 8, 96)
    ]
    assert len(set(inner)) == 1


def test_experts_and_latent_attention_are_accounted() -> None:
    mixtral, deepseek = models.get("mixtral-8x7b"), models.get("deepseek-v3")
    assert "layers: tokens as sent to experts" in memory.activations(mixtral)
    assert "layers: key-value latent" in memory.activations(deepseek)
    assert memory.training(deepseek, zero=3, data_parallel=64, tensor_parallel=8).total > 0
    tiny = Transformer("tiny", 3, 64, 4, 4, 16, 128, 100, 64, moe=MoE(4, 2, 32, 1, 1), mla=MLA(0, 16, 8, 8, 8))
    layers = memory.activations(tiny).where(lambda row: row.name.startswith("layers: "))
    sparse = memory.one_layer(tiny).total
    dense = memory.one_layer(replace(tiny, moe=None)).total
    assert layers.total == dense + 2 * sparse


# -- steps, serving, fitting ---------------------------------------------------------------------------------


def test_foreach_makes_a_square_root_of_every_second_moment() -> None:
    m = models.get("llama-2-7b")

    def step(kind: Any) -> Fraction:
        moments = memory.timeline(m, "bf16-adamw", optimizer_step=kind)
        return Fraction(next(one for one in moments if one.name == "optimizer step").ledger.total)

    states = recipes.states(m, "bf16-adamw").total
    assert step("fused") == states
    assert step("foreach") - states == 4 * 6_738_415_616
    assert step("for-loop") - states == 2 * 4 * 32000 * 4096


def test_inference_quantized_keeps_embeddings_in_16_bits() -> None:
    m = models.get("llama-2-7b")
    account = memory.inference(m, context=1, weights="nf4", weight_scales=recipes.NF4_DOUBLE_QUANTIZED)
    linear = 6_738_415_616 - 2 * 32000 * 4096 - 65 * 4096
    assert account["weights of linear layers"] == linear * (4 + Fraction(1, 8) + Fraction(1, 512)) / 8
    assert account["other weights"] == 2 * (6_738_415_616 - linear)


def test_seven_billion_serves_and_does_not_train_on_80_gb() -> None:
    m = models.get("llama-2-7b")
    assert memory.fits(memory.inference(m, context=4096), 80 * GB)
    missing = memory.fits(memory.training(m), 80 * GB, reserved=GB)
    assert not missing
    assert missing.headroom == 79 * GB - memory.training(m).total
    assert missing.largest.kind == "optimizer"
    assert "ZeRO-1" in str(missing)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"attention": "fast"}, "attention can be flash or eager"),
        ({"batch": 0}, "batch has to be greater than 0"),
        ({"sequence": 2.5}, "sequence has to be a whole number"),
        ({"tensor_parallel": 5}, "5 tensor-parallel ranks do not divide 32 heads"),
        ({"pipeline_parallel": 5}, "5 pipeline stages do not divide 32 layers"),
        ({"pipeline_parallel": 4, "stage": 4}, "stage 4 does not exist"),
        ({"pipeline_parallel": 4, "schedule": "gpipe"}, "micro_batches"),
        ({"virtual_stages": 2}, "interleaved"),
        ({"zero": 5}, "ZeRO has the stages"),
        ({"dtype": "bf17"}, "'bf17' is not a dtype"),
        ({"buffers": {"mine": -1}}, "'mine'"),
    ],
)
def test_bad_input_is_answered_in_words(how: dict[str, Any], words: str) -> None:
    with pytest.raises(InfrabookError, match=words):
        memory.training(models.get("llama-2-7b"), **how)
