"""Where public sources print different numbers for one question, and the convention that reconciles them.

Each entry computes its own side when it is asked. The wording is about the numbers, never about the people: most
entries are conventions left unsaid, in work that this book leans on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from . import (
    attention_io,
    collectives,
    flops,
    hardware,
    hierarchy,
    kv_cache,
    models,
    parameters,
    quantization,
    recipes,
    recurrent,
    roofline,
)
from .activations import activations, one_layer
from .formats import FORMATS
from .ledger import Ledger
from .parallel import pipeline, tensor, zero
from .units import percent, scaled, show


@dataclass(frozen=True)
class Disagreement:
    """``who`` printed ``printed``; ``computed()`` is this library's answer; ``reconciles`` says why they differ."""

    who: str
    printed: str
    computed: Callable[[], str]
    reconciles: str


def _states(parameters: int, recipe: str, unit: str = "GB", digits: int = 1) -> str:
    return show(recipes.states(parameters, recipe).total, unit, digits)


def _llama_activations() -> str:
    llama = models.get("llama-2-7b")
    quoted = activations(llama, layer="gpt", attention="eager", logits="none")
    layers = quoted.where(lambda row: row.name.startswith("layers"))
    return f"{show(layers.total, 'GB', 1)} for GPT's layer, {show(activations(llama).total, 'GB', 1)} for Llama's own"


def _zero_checkpoints() -> str:
    elements = 32 * 1024 * 8192 * 125
    return f"{show(2 * elements, 'GB', 1)} for {elements / 1e9:.1f}e9 elements of two bytes"


def _zero_rule() -> str:
    gpt = models.Transformer("1.5B", 48, 1600, 25, 25, 64, 6400, 50257, 1024, gated=False, norm="layernorm")
    every = one_layer(gpt, batch=32, sequence=1024, attention="eager").total
    return show(48 * Fraction(every), "GB", 1)


def _extra_terms() -> str:
    gpt = models.Transformer("22B", 48, 6144, 64, 64, 96, 24576, 51200, 2048, gated=False, norm="layernorm")
    every = activations(gpt, batch=4, attention="eager")
    layers = every.where(lambda row: row.name.startswith("layers"))
    return percent(Fraction(every.total) - layers.total, layers.total, 2)


def _one_f_one_b() -> pipeline.Timeline:
    return pipeline.simulate(pipeline.one_f_one_b(4, 8))


def _interleaved_rate() -> float:
    """Of the times in the paper's table 9, three stages a rank."""
    forward, by_input, by_weight = (Fraction(ms) / 3 for ms in ("18.522", "18.086", "9.337"))
    times = pipeline.Times(forward, by_input, by_weight, message=Fraction("0.601"))
    return float(pipeline.simulate(pipeline.interleaved(8, 24, chunks=3), times).bubble_of_span)


def _exposed(dtype: str) -> Fraction:
    peak, bandwidth = 989 * 10**12, 450 * 10**9
    return tensor.exposure(
        8192, degree=8, peak_flop_per_s=peak, bandwidth_bytes_per_s=bandwidth, op="all-gather", dtype=dtype
    )


def _selective_share() -> str:
    step = partial(flops.megatron_step, batch=64, sequence=2048, layers=96, hidden=12288, vocab=51200)
    once, again = step(), step(recomputation="selective")
    return f"{percent(again - once, once, 2)} of a step"


FIGURE_2 = {"sequence": 1024, "head_dim": 64}  # FlashAttention's: GPT-2 medium, 16 heads, batch 64, FP16


def _flash_work() -> str:
    standard, flash = (
        attention_io.work(sequence=1024, head_dim=64, heads=16, batch=64, passes="both", scores_again=again)
        for again in (False, True)
    )
    return f"{float(standard) / 1e9:.1f} and {float(flash) / 1e9:.1f} GFLOP"


def _flash_bytes() -> str:
    moved = Fraction(attention_io.standard_forward(**FIGURE_2).total)
    moved += attention_io.standard_backward(**FIGURE_2).total
    matrix = FIGURE_2["sequence"] ** 2
    masked, dropped = moved + 2 * matrix, moved + 2 * matrix + 5 * matrix
    return ", ".join(show(2 * 16 * 64 * elements, "GB", 1) for elements in (moved, masked, dropped))


def _checkpointed_attention() -> str:
    step = attention_io.work(sequence=1024, head_dim=64, passes="both", checkpointed=True)
    return f"{float(step / Fraction(attention_io.work(sequence=1024, head_dim=64))):.1f} times forward"


def _llama_mfu(convention: str) -> str:
    work = 7000 * flops.per_token(models.get("llama-3-8b"), sequence=8192, convention=convention)
    return f"{convention} {percent(work, hardware.gpu('h100-sxm').peak('bf16'))}"


def _gpt3_forward() -> Ledger:
    return flops.forward(models.get("gpt3-175b"), sequence=2048)


def _deepseek(causal: flops.Causal) -> str:
    v3 = models.get("deepseek-v3")
    account = flops.forward(v3, sequence=4096, causal=causal)
    attention = 3 * (Fraction(account[flops.SCORES]) + account[flops.VALUES]) / 4096
    return scaled(6 * int(parameters.active(v3, embedding=False).total) + attention, "FLOP", 0)


def _host_to_a100() -> str:
    over_pcie, to_processor = (
        float(hierarchy.level("a100-sxm-80gb", which).bandwidth_bytes_per_s) / 1e9
        for which in ("the host by PCIe", "the host's memory")
    )
    return f"{over_pcie:.1f} GB/s over PCIe 4, {to_processor:.1f} GB/s from eight channels of DDR4 to their processor"


def _stage_1_sends(whole_updates: bool) -> float:
    """In models of two bytes a parameter."""
    sent = zero.traffic(10**9, zero.Sharding(1, 64), whole_updates=whole_updates).total
    return float(Fraction(sent) / (2 * 10**9))


_SYMMETRIC: tuple[quantization.Convention, ...] = ("127", "127.5")
_ORDERS: tuple[quantization.Order, ...] = ("shift, then round", "round, then shift")

DISAGREEMENTS: tuple[Disagreement, ...] = (
    Disagreement(
        "Posts on Llama-2-7B",
        "about 30 GB of activations",
        _llama_activations,
        "One sequence of 2,048 tokens through a layer with dropout, LayerNorm, GELU and stored scores, none of which "
        "Llama has (chapter: The 7B ledger).",
    ),
    Disagreement(
        "Posts on 7B models",
        "112 GB of model states",
        lambda: (
            f"{_states(7 * 10**9, 'bf16-adamw')} for 7e9 parameters, "
            f"{show(recipes.states(models.get('llama-2-7b'), 'bf16-adamw').total, 'GB', 1)} for Llama-2-7B"
        ),
        "A round number of parameters against the model's own count.",
    ),
    Disagreement(
        "QLoRA, section 1",
        "more than 780 GB to fine-tune 65B in 16 bits",
        lambda: (
            f"{_states(65_285_660_672, 'bf16-no-master')}, and {_states(65_285_660_672, 'bf16-adamw')} with a "
            "master copy"
        ),
        "12 bytes a parameter: no FP32 master weights. The ZeRO paper's 16 would give the larger figure.",
    ),
    Disagreement(
        "Hugging Face accelerate, estimate-memory, FP16 column",
        "8 bytes a parameter",
        lambda: f"{_states(7 * 10**9, 'pure-bf16')} for 7e9 parameters, against {_states(7 * 10**9, 'bf16-adamw')}",
        "Its stages hold 4 bytes (weights), 6 (gradients) and 8 (optimizer), and the largest is printed. They are "
        "alive together, and add up to more than ZeRO's 16.",
    ),
    Disagreement(
        "DeepSpeed's estimators for ZeRO-2 and ZeRO-3",
        "20 and 18 bytes a parameter",
        lambda: f"{_states(7 * 10**9, 'fp32-accumulation')} and {_states(7 * 10**9, 'megatron')} for 7e9 parameters",
        "ZeRO-2 counts a 16-bit copy of the gradients that ZeRO-3 drops.",
    ),
    Disagreement(
        "Ultra-Scale Playbook",
        "133 GiB of weights for 70B",
        lambda: show(70 * 10**9 * 2, "GiB", 1),
        "140 GB divided by 2^30.",
    ),
    Disagreement(
        "ZeRO, section 6.1",
        "33 GB of activation checkpoints for 100B",
        _zero_checkpoints,
        "The printed figure is the number of elements; section 3.2 of the same paper has the bytes, about 60 GB.",
    ),
    Disagreement(
        "ZeRO, section 3.2, footnote",
        "60 GB of activations for GPT-2 1.5B, batch 32",
        _zero_rule,
        "The paper's rule, 12 elements of two bytes for each h·b·s·L, has no row for the attention scores.",
    ),
    Disagreement(
        "ZeRO, table 1: a trillion parameters on 1,024 ranks",
        "4011 and 2013 GB for stages 1 and 2",
        lambda: " and ".join(show(zero.states(10**12, zero.Sharding(stage, 1024)).total, "GB", 2) for stage in (1, 2)),
        "Cut off, not rounded; the table's smaller entries are rounded (chapter: Who updates this parameter).",
    ),
    Disagreement(
        "ZeRO, section 7, and PyTorch 2.13's ZeroRedundancyOptimizer",
        "2 and 3 models sent in a step of stage 1",
        lambda: f"{_stage_1_sends(False):.2f} and {_stage_1_sends(True):.2f} by ring among 64 ranks",
        "Section 7 reduces each gradient to its owner alone. PyTorch reduces them for everybody, as in section 5.1, "
        "and broadcasts the updates on top (chapter: Who updates this parameter).",
    ),
    Disagreement(
        "DeepSpeed's estimate of a node's memory for ZeRO-2 with offloading",
        "4 bytes a parameter for each GPU of the node (documentation) and of all nodes (code)",
        lambda: (
            " and ".join(show(zero.host_memory(2_851_000_000, ranks_per_node=ranks), "GiB") for ranks in (8, 32))
            + " for 2.851e9 parameters on four nodes of eight"
        ),
        "A node's memory holds the copies of its own processes.",
    ),
    Disagreement(
        "Korthikanti et al., section 4.3",
        "embedding, last norm and logits are less than 0.01% of activations",
        _extra_terms,
        "Of the 22B model's. The paper's own expression gives this percentage; as a fraction it is below 0.01.",
    ),
    Disagreement(
        "vLLM paper",
        "800 KB of cache a token for OPT-13B, 1.6 GB for 2,048",
        lambda: f"{2 * 40 * 40 * 128 * 2 / 1024:,.0f} KiB, and {show(2 * 40 * 40 * 128 * 2 * 2048, 'GB')}",
        "KB and GB that are KiB and, roughly, GiB.",
    ),
    Disagreement(
        "DeepSeek-V2, abstract",
        "the KV cache shrinks by 93.3%",
        lambda: (
            percent(95 * 2 * 8 * 128 * 16 - 60 * (512 + 64) * 16, 95 * 2 * 8 * 128 * 16)
            + " at equal precision, "
            + percent(95 * 2 * 8 * 128 * 16 - 60 * (512 + 64) * 6, 95 * 2 * 8 * 128 * 16)
            + " with 6-bit elements"
        ),
        "The abstract compares a 6-bit cache with a 16-bit one.",
    ),
    Disagreement(
        "EleutherAI cookbook, KV cache of Llama-2-70B at 4,097 tokens",
        "5.0 GiB",
        lambda: show(kv_cache.cache(models.get("llama-2-70b"), context=4097).total, "GiB"),
        "The tool leaves out the factor 2 for keys and values, and the ratio of key heads to heads.",
    ),
    Disagreement(
        "GPT-2's paper",
        "117M and 345M parameters for the two smaller models",
        lambda: " and ".join(f"{int(parameters.count(models.get(n)).total):,}" for n in ("gpt2", "gpt2-medium")),
        "OpenAI's README notes that the paper's counts were off.",
    ),
    Disagreement(
        "Keras, parameters of an LSTM with 256 units over 128 inputs",
        "394,240; PyTorch says 1,024 more",
        lambda: " or ".join(f"{recurrent.parameters('lstm', 128, 256, biases=n).total:,}" for n in (1, 2)),
        "PyTorch has two biases a gate, as cuDNN's routines do. They are only ever added to each other (chapter: One "
        "line of a recurrent network).",
    ),
    Disagreement(
        "Card labels: H100 80GB",
        "80 GB",
        lambda: " or ".join(show(hardware.gpu("h100-sxm").memory_bytes, unit) for unit in ("GB", "GiB")),
        "The driver reports neither 80·10^9 nor 80·2^30 bytes.",
    ),
    Disagreement(
        "Korthikanti et al., appendix A",
        "selective recomputation adds s/6h to the work of a step; 2.7% for GPT-3",
        _selective_share,
        "Attention's two products are that share of a forward pass. One more forward pass of them is a third as much "
        "of a step; the printed formula counts their backward pass again as well.",
    ),
    Disagreement(
        "FlashAttention, figure 2, work",
        "66.6 and 75.2 GFLOP",
        _flash_work,
        "The stated batch of 64 and 16 heads give twelve times as much. The printed figures differ by 8.6, one product "
        "of a sixteenth of the stated work (chapter: Softmax without the matrix).",
    ),
    Disagreement(
        "FlashAttention, figure 2, bytes of standard attention",
        "40.3 GB; in another version of the paper 35.3 GB, without dropout",
        _flash_bytes,
        "The paper's algorithms as printed; with a mask; with a mask and dropout, whose own mask has a byte an "
        "element. The last is our reading of the first figure, and does not reach the second.",
    ),
    Disagreement(
        "llm-foundry, notes on utilization with FlashAttention",
        "attention's multiplier is 5 instead of 4, with activation checkpointing",
        _checkpointed_attention,
        "FlashAttention's backward pass repeats one of the two products of forward, half a forward pass.",
    ),
    Disagreement(
        "PyTorch's FlopCounterMode, fused attention on a CPU",
        "0 FLOP for (2, 8, 256, 64)",
        lambda: f"{attention_io.work(sequence=256, head_dim=64, heads=8, batch=2):,} FLOP",
        "The CPU's fused kernel has no formula in the counter; attention written out is counted.",
    ),
    Disagreement(
        "Posts on FlashAttention's blocks on an A100",
        "768 columns for heads of 64",
        lambda: f"{attention_io.paper_blocks(sram_elements=192 * 1024 // 2, head_dim=64).columns} columns",
        "The rule's M counts elements; 192 KiB hold half as many FP16 elements as bytes.",
    ),
    Disagreement(
        "Ultra-Scale Playbook, FP8 formats",
        "7 (E4M3) and 3 (E5M2) numbers in [1, 2]",
        lambda: " and ".join(str(FORMATS[name].between(1, 2)) for name in ("fp8_e4m3", "fp8_e5m2")),
        "The printed counts are those strictly between 1 and 2; both ends are numbers of the formats.",
    ),
    Disagreement(
        "torch.finfo(torch.float8_e5m2fnuz).eps in 2.13",
        "0.125",
        lambda: str(float(FORMATS["fp8_e5m2fnuz"].eps)),
        "Two bits of fraction: the pattern after 1.0 is 1.25. ml_dtypes has it so.",
    ),
    Disagreement(
        "FP8 E4M3, largest number",
        "448 and 240",
        lambda: (
            f"{FORMATS['fp8_e4m3'].max} for OCP's E4M3 (torch's float8_e4m3fn), {FORMATS['fp8_e4m3_ieee'].max} "
            f"with infinity kept, {FORMATS['fp8_e4m3fnuz'].max} for AMD's fnuz variant"
        ),
        "One name for three formats: OCP gives the patterns of infinity to numbers.",
    ),
    Disagreement(
        "Casts of 1000 to FP8 E4M3",
        "448 (torch from 2.12, ONNX) and NaN (torch before, ml_dtypes)",
        lambda: " or ".join(
            f"{float(FORMATS['fp8_e4m3'].round(1000, saturate=mode)):g} with saturation {'on' if mode else 'off'}"
            for mode in (True, False)
        ),
        "OCP's standard defines both modes and leaves the choice to the cast.",
    ),
    Disagreement(
        "Posts on TF32",
        "a 32-bit format",
        lambda: f"{FORMATS['tf32'].bits} bits used, {FORMATS['tf32'].stored_bits} stored",
        "FP32's exponent with FP16's fraction: an input rounding of matrix units, which saves no memory.",
    ),
    Disagreement(
        "Kaplan et al., table 1",
        "attention costs 2·L·n_ctx·d FLOP a token, forward",
        lambda: (
            "4·L·n_ctx·d: "
            + " and ".join(
                scaled(Fraction(_gpt3_forward()[name], 2048), "FLOP") for name in (flops.SCORES, flops.VALUES)
            )
            + " a token for GPT-3"
        ),
        "One of two products is counted: queries by keys, and not weights by values.",
    ),
    Disagreement(
        "Reports of MFU for one and the same run",
        "between 30% and 43% for Llama-3-8B at 8,192 tokens and 7,000 tokens/s on an H100",
        lambda: ", ".join(map(_llama_mfu, ("6N, no embeddings", "6N", "Megatron-LM", "torchtitan", "PaLM"))),
        "Whether attention is counted, whole or halved, and whether embeddings are (chapter: Counting a forward pass).",
    ),
    Disagreement(
        "scaling-book, on DeepSeek-V3",
        "21.7% of the FP8 peak",
        lambda: "; ".join(
            f"{percent(6 * 37 * 10**9 * 148 * 10**11, 2_790_000 * 3600 * peak)} of {words}"
            for words, peak in (("the PCIe card's", 1513 * 10**12), ("the SXM card's", 1979 * 10**12))
        ),
        "The H800 in its SXM form has the higher dense peak.",
    ),
    Disagreement(
        "DeepSeek, Insights, table 2",
        "250 GFLOPS a token for DeepSeek-V3",
        lambda: f"{_deepseek('half')} with causal attention halved, {_deepseek('full')} in full",
        "Work, not a rate: GFLOP for one token of training.",
    ),
    Disagreement(
        "Ridge points of H100 and A100 in circulation",
        "591 and 306 FLOP per byte",
        lambda: " and ".join(f"{float(roofline.ridge(card)):.0f}" for card in ("h100-sxm", "a100-sxm-80gb")),
        "The first figures divide the peak with structured sparsity, which is twice the dense one.",
    ),
    Disagreement(
        "FlashAttention, figure 1",
        "12.8 GB/s from the host's memory, on an A100 of 40 GB",
        _host_to_a100,
        "12.8 GB/s is one channel of memory at 1,600 transfers of 8 bytes a microsecond. The 19 TB/s and 20 MB of SRAM "
        "in the same figure agree with the account (chapter: What is HBM).",
    ),
    Disagreement(
        "GPTQ, section 1",
        "326 GB for 175 billion parameters in FP16",
        lambda: " or ".join(show(175 * 10**9 * 2, unit, 0) for unit in ("GB", "GiB")),
        "The printed figure is in GiB. The LoRA paper has 350 GB for the same model.",
    ),
    Disagreement(
        "GPTQ, section 4",
        "about 2.2 bits a weight for 2 bits in groups of 128",
        lambda: f"{float(quantization.bits_per_weight(2, 128, zero_bits=2)):.3f}",
        "Rounded up: 2 + 18/128, with a 16-bit scale and a 2-bit zero point.",
    ),
    Disagreement(
        "Symmetric INT8",
        "the largest magnitude over 127 (textbooks, TensorRT) and over 127.5 (torch's observers)",
        lambda: " and ".join(
            f"{float(quantization.symmetric(2, convention=c).scale):.6f}, 2 coming back as "
            f"{float(quantization.symmetric(2, convention=c).held([2])[0]):.4f}"
            for c in _SYMMETRIC
        ),
        "Without code -128 and with it. Over 127.5 steps are finer, and the largest number is clipped by half a step.",
    ),
    Disagreement(
        "Codes of 0.5 in the range from -1 to 2, unsigned",
        "128 (torch) and 127 (ONNX Runtime)",
        lambda: " and ".join(str(quantization.affine(-1, 2).quantize([0.5], order=order)[0]) for order in _ORDERS),
        "torch adds the zero point and then rounds; ONNX rounds and then adds. They part at ties, if it is odd.",
    ),
    Disagreement(
        "gguf-py 0.19, size of a Q8_1 block",
        "40 bytes",
        lambda: f"{quantization.BLOCK_FORMATS['Q8_1'].bytes_per_block} bytes",
        "The C struct holds its two extra numbers in FP16; the Python table still has them in FP32.",
    ),
    Disagreement(
        "The bubble of 4 stages and 8 micro-batches",
        "3/8 (Megatron-LM) and 3/11 (GPipe)",
        lambda: " and ".join(str(value) for value in (_one_f_one_b().bubble_of_ideal, _one_f_one_b().bubble_of_total)),
        "Idle time over the time of the work alone, and over the time of the step (chapter: GPipe and 1F1B).",
    ),
    Disagreement(
        "Zero Bubble, figure 3: ZB-H2",
        "no bubble, with 4 stages and 8 micro-batches",
        lambda: (
            f"{pipeline.simulate(pipeline.zb_h2(4, 8)).makespan} units for {_one_f_one_b().ideal} of work, if ranks "
            "wait for each other before the optimizer"
        ),
        "No rank pauses within its own span, and the spans are shifted. ZB-H1 takes as long (chapter: Shrinking the "
        "bubble).",
    ),
    Disagreement(
        "Zero Bubble, table 5: interleaved 1F1B, 1.5B, 24 micro-batches",
        "a bubble rate of 0.1055",
        lambda: f"{_interleaved_rate():.4f}",
        "The script behind the column lets one micro-batch of each round wait for the message from the last rank to "
        "the first. The other columns agree to the digit.",
    ),
    Disagreement(
        "PyTorch 2.13, the printed table of 1F1B",
        "the last rank begins with micro-batch 1",
        lambda: " ".join(map(str, pipeline.one_f_one_b(2, 2).rows[-1])) + " on the last of two ranks",
        "Only the table is off by one. What the schedule executes begins with micro-batch 0.",
    ),
    Disagreement(
        "Ultra-Scale Playbook, appendix A3, an all-gather under tensor parallelism",
        "0.94 of the next product's time: (TP - 1)/(2h) times peak over bandwidth, for h = 8,192 and 8 ranks",
        lambda: f"{float(_exposed('fp8')):.2f} with elements of one byte, {float(_exposed('bf16')):.2f} in BF16",
        "The bytes of an element are left out, and with them it is not hidden (chapter: Splitting the matmul itself).",
    ),
    Disagreement(
        "Ultra-Scale Playbook, appendix A3, what ZeRO-3 moves for a block",
        "3·16h²/DP bytes",
        lambda: (
            f"{show(3 * collectives.bytes_sent('all-gather', size_bytes=2 * 16 * 4096**2, ranks=8), 'GB', 2)} for "
            f"h = 4,096 and 8 ranks, against {show(3 * 16 * 4096**2 // 8, 'GB', 2)}"
        ),
        "A rank's own shard, in elements, stands for the whole that it receives (chapter: Three words).",
    ),
)
