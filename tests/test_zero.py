"""ZeRO's account against the paper's figure, torch's own partition, and one rank's measured peak, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

from infrabook import models, parameters
from infrabook.errors import InfrabookError
from infrabook.models import Transformer
from infrabook.parallel import zero
from infrabook.parallel.zero import Sharding
from infrabook.units import GB

LLAMA = models.get("llama-2-7b")
COUNT = int(parameters.count(LLAMA).total)


# -- who keeps what ------------------------------------------------------------------------------------------


def test_zero_paper_figure_1() -> None:
    found = [round(float(zero.bytes_per_parameter(Sharding(stage, 64)) * Fraction(75, 10)), 1) for stage in range(4)]
    assert found == [120, 31.4, 16.6, 1.9]


def test_112_gb_become_28_on_four() -> None:
    assert [zero.states(7 * 10**9, Sharding(stage, 4)).total for stage in (0, 3)] == [112 * GB, 28 * GB]


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
def test_all_ranks_together_hold_each_component_as_often_as_it_has_copies(stage: int, ranks: int) -> None:
    sharding = Sharding(stage, ranks)
    held = sum(one.bytes_per_parameter * one.copies for one in zero.components(sharding))
    assert held == sharding.data_parallel * zero.bytes_per_parameter(sharding)


def test_hybrid_sharding_divides_in_the_shard_group_alone() -> None:
    hybrid = Sharding(3, ranks=8, replicas=4)
    assert zero.states(LLAMA, hybrid).total == zero.states(LLAMA, Sharding(3, ranks=8)).total
    assert {one.copies for one in zero.components(hybrid)} == {4}


def test_stages_that_do_not_exist_are_refused() -> None:
    for bad in (lambda: Sharding(4, 8), lambda: Sharding(1, 0), lambda: Sharding(0, 8, replicas=2)):
        with pytest.raises(InfrabookError):
            bad()


# -- what is sent --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_ddp_and_zero_2_send_the_same_and_zero_3_half_as_much_again(ranks: int) -> None:
    sent = [zero.traffic(COUNT, Sharding(stage, ranks)).total for stage in range(4)]
    assert sent[0] == sent[1] == sent[2] == Fraction(2, 3) * sent[3] == 2 * Fraction(ranks - 1, ranks) * 2 * COUNT


def test_without_resharding_zero_3_sends_as_much_as_zero_2() -> None:
    kept = zero.traffic(COUNT, Sharding(3, 8, reshard_after_forward=False)).total
    assert kept == zero.traffic(COUNT, Sharding(2, 8)).total


def test_a_root_that_stays_gathered_is_gathered_once() -> None:
    root = LLAMA.hidden * (2 * LLAMA.vocab + 1)
    less = zero.traffic(COUNT, Sharding(3, 8)).total - zero.traffic(COUNT, Sharding(3, 8), kept=root).total
    assert less == Fraction(7, 8) * 2 * root
    with pytest.raises(InfrabookError, match="cannot be kept"):
        zero.traffic(10, Sharding(3, 8), kept=11)


def test_accumulation_is_free_where_whole_gradients_are_kept() -> None:
    once, eight = (
        [zero.traffic(COUNT, Sharding(stage, 8), micro_batches=m).total for stage in range(4)] for m in (1, 8)
    )
    assert once[:2] == eight[:2]
    assert Fraction(eight[2]) / once[2] == Fraction(9, 2)
    assert Fraction(eight[3]) / once[3] == 8


def test_replicas_exchange_shards_and_no_more() -> None:
    row = "all-reduce of gradient shards among replicas"
    assert zero.traffic(COUNT, Sharding(3, 8, replicas=4))[row] == Fraction(2 * 3, 4) * 2 * COUNT / 8


def test_owners_of_whole_tensors_send_a_third_pass() -> None:
    plain, owners = (zero.traffic(COUNT, Sharding(1, 8), whole_updates=how).total for how in (False, True))
    assert Fraction(owners) / plain == Fraction(3, 2)
    with pytest.raises(InfrabookError, match="stage 2"):
        zero.traffic(COUNT, Sharding(2, 8), whole_updates=True)


# -- whole shares --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64])
def test_owners_are_those_of_zero_redundancy_optimizer(ranks: int) -> None:
    torch = pytest.importorskip("torch")
    from infrabook.measure import fake_ranks
    from infrabook.measure.saved import fake_tensors
    from infrabook.nn.transformer import Llama

    with fake_ranks.fake_ranks({"dp": ranks}), fake_tensors(torch.float32):
        net = Llama(replace(LLAMA, layers=2, hidden=64, ffn=172, vocab=1021))
        update: Any = fake_ranks.zero_1(net.parameters())
        index = {parameter: i for i, parameter in enumerate(net.parameters())}
        theirs = [
            [index[parameter] for group in groups for parameter in group["params"]]
            for groups in update._partition_parameters()
        ]
        ours = zero.whole_tensors([parameter.numel() for parameter in net.parameters()], ranks)
    assert ours == theirs


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 64])
def test_rows_are_cut_as_torch_cuts_them(ranks: int) -> None:
    torch = pytest.importorskip("torch")
    for rows in (1, 5, 64, 1021):
        theirs = [len(part) for part in torch.chunk(torch.arange(rows), ranks)]
        theirs += [0] * (ranks - len(theirs))
        assert [zero.rows_of(rows, ranks=ranks, rank=rank) for rank in range(ranks)] == theirs


# -- what is alive when --------------------------------------------------------------------------------------

KEPT_ON_A_CPU: Any = {"rmsnorm": "fp32", "statistics_bytes": 4, "rotary_tables": True}


def compare(
    model: Transformer, sharding: Sharding, wrap: str, *, ranks: int = 8, replicas: int = 1, recompute: bool = False,
    sequence: int,
    mixed: bool = False, how: dict[str, Any] | None = None, optimizer: str = "", **plan: Any,
) -> tuple[int, str]:  # fmt: skip
    """Measured less predicted, less what is small and named, in bytes; and the moment of the peak."""
    torch = pytest.importorskip("torch")
    from infrabook.measure import fake_ranks
    from infrabook.nn.transformer import Llama

    make: Callable[..., Any] = getattr(fake_ranks, wrap)
    update = getattr(fake_ranks, optimizer) if optimizer else torch.optim.AdamW
    wrapped = make if wrap == "alone" else make(**(how or {}), **({"mixed": True} if mixed else {}))
    found = fake_ranks.training_step(
        partial(Llama, model, recompute=recompute), model, wrap=wrapped, sequence=sequence,
        axes={"replicas": replicas, "dp": ranks} if replicas > 1 else {"dp": ranks},
        dtype=torch.float32 if mixed else torch.bfloat16, optimizer=update,
    )  # fmt: skip
    worst = max(
        zero.timeline(
            model, sharding, "fp32-adamw" if mixed else "pure-bf16", sequence=sequence,
            recomputation="full" if recompute else "none", reduced="fp32" if mixed else "bf16", **KEPT_ON_A_CPU, **plan,
        ),
        key=lambda moment: moment.ledger.total,
    )  # fmt: skip
    tensors = 9 * model.layers + (2 if model.tied else 3) + (3 * model.layers if model.qkv_bias else 0)
    if optimizer:
        with fake_ranks.fake_tensors():
            sizes = [parameter.numel() for parameter in Llama(model).parameters()]
        tensors = len(zero.whole_tensors(sizes, ranks)[0])
    small = 16 * sequence + 4 * tensors + 8  # ids and targets, step counters, the loss's two scalars
    return int(found.peak.total - worst.ledger.total - small), worst.name


FOUR = replace(LLAMA, name="llama-2-7b, 4 layers", layers=4)
KEEP = {"reshard_after_forward": False}


def test_ddp_is_one_rank_and_its_buckets() -> None:
    apart: dict[str, Any] = {"how": {"bucket_view": False}, "bucket_views": False}
    assert compare(FOUR, Sharding(0, 8), "ddp", sequence=1024)[0] == 0
    assert compare(FOUR, Sharding(0, 8), "ddp", sequence=4096)[0] == 0
    assert compare(FOUR, Sharding(0, 8), "ddp", sequence=4096, **apart)[0] == 0
    assert compare(FOUR, Sharding(0, 1), "alone", ranks=1, sequence=4096)[0] == 0


def test_zero_1_keeps_the_states_of_whole_tensors() -> None:
    left, _ = compare(FOUR, Sharding(1, 8), "ddp", sequence=4096, optimizer="zero_1", owner=0)
    assert left == 0


FSDP: list[tuple[str, int, dict[str, Any], str]] = [
    ("4 layers", 4096, {}, "start of the backward pass"),
    ("4 layers", 1024, {}, "end of a layer's backward pass"),
    ("4 layers", 4096, {"kept": True}, "the loss, at the end of the forward pass"),
    ("4 layers", 1024, {"kept": True, "recompute": True, "ranks": 64}, "gathering the last layer"),
    ("4 layers", 4096, {"recompute": True, "ranks": 64}, "backward pass of a feed-forward layer"),
    ("4 layers", 4096, {"mixed": True}, "start of the backward pass"),
    ("4 layers", 512, {"mixed": True}, "end of a layer's backward pass"),
    ("llama-3.2-1b", 2048, {}, "start of the backward pass"),
    ("llama-3.2-1b", 512, {"recompute": True}, "the embedding's backward pass"),
    ("qwen2.5-0.5b", 2048, {}, "start of the backward pass"),
]


@pytest.mark.parametrize(("name", "sequence", "how", "moment"), FSDP)
def test_fsdp2_peaks_where_and_as_high_as_predicted(name: str, sequence: int, how: dict[str, Any], moment: str) -> None:
    model = FOUR if name == "4 layers" else models.get(name)
    kept, ranks = how.get("kept", False), how.get("ranks", 8)
    left, found = compare(
        model, Sharding(3, ranks, reshard_after_forward=not kept), "sharded", sequence=sequence, ranks=ranks,
        recompute=how.get("recompute", False), mixed=how.get("mixed", False), how=KEEP if kept else {},
    )  # fmt: skip
    assert found == moment
    assert abs(left) <= 1024, left  # a moment later than the loss has lost its scalars, and the tied model one norm


@pytest.mark.parametrize("mixed", [False, True])
def test_hybrid_sharding_peaks_as_its_shard_group_does(mixed: bool) -> None:
    left, _ = compare(FOUR, Sharding(3, 8, replicas=8), "sharded", replicas=8, sequence=4096, mixed=mixed)
    assert left == 0


@pytest.mark.parametrize("layers", [3, 5])
def test_a_70b_layer_on_512_ranks_costs_what_is_predicted(layers: int) -> None:
    """The slope by depth is exact, so 80 layers follow; ``test_70b_on_512_ranks_whole`` runs them."""
    assert seventy(layers) == 0


def test_70b_on_512_ranks_whole() -> None:
    assert seventy(80) == 0


def seventy(layers: int) -> int:
    torch = pytest.importorskip("torch")
    from torch.distributed.tensor.parallel import loss_parallel

    from infrabook.measure import fake_ranks
    from infrabook.nn.transformer import Llama

    model = replace(models.get("llama-2-70b"), layers=layers)
    with loss_parallel():
        found = fake_ranks.training_step(
            partial(Llama, model, recompute=True), model, axes={"dp": 64, "tp": 8}, sequence=4096,
            wrap=fake_ranks.tensor_parallel_and_sharded, dtype=torch.float32,
        )  # fmt: skip
    worst = zero.peak(
        model, Sharding(3, 64), "fp32-adamw", sequence=4096, recomputation="full", reduced="fp32", tensor_parallel=8,
        sequence_parallel=True, keep_gathered=True, **KEPT_ON_A_CPU,
    )  # fmt: skip
    rows = model.vocab // 8  # 4,000, which 64 ranks fill up to 4,032
    filled = 2 * 32 * model.hidden * 2 + 2 * model.hidden // 2 * 4 * 3
    assert -(-rows // 64) * 64 - rows == 32
    small = 16 * 4096 + filled + 4 * (9 * layers + 3) + 8
    return int(found.peak.total - worst.ledger.total - small)


# -- time ----------------------------------------------------------------------------------------------------


def test_more_flop_hide_more_and_faster_links_wait_less() -> None:
    def waits(sequence: int, link: str) -> Fraction:
        how: Any = {"flop_per_s": 495 * 10**12, "sequence": sequence}
        return Fraction(zero.step_time(LLAMA, Sharding(3, 8), link=link, **how).of("communication"))

    assert waits(4096, "pcie4-x16") < waits(512, "pcie4-x16")
    assert waits(512, "nvlink4") < waits(512, "pcie4-x16")


def test_hybrid_gathers_inside_a_node() -> None:
    how: Any = {"flop_per_s": 495 * 10**12, "link": "nvlink4", "across": "infiniband-ndr", "ranks_per_node": 8}
    first = "waiting for the first weights"
    hybrid, flat = (zero.step_time(LLAMA, sharding, **how) for sharding in (Sharding(3, 8, 8), Sharding(3, 64)))
    assert hybrid[first] < flat[first]
    assert hybrid["forward"] == flat["forward"]
