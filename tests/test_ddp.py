"""DDP's buckets are the prediction's, its bytes a ring's, and the time line adds up."""

from __future__ import annotations

from fractions import Fraction

import pytest

from infrabook import collectives, hardware, models, parameters
from infrabook.errors import InfrabookError
from infrabook.parallel import ddp
from infrabook.units import MIB


def sizes(*mib: float) -> list[ddp.Gradient]:
    return [ddp.Gradient(str(i), int(size * MIB), 1) for i, size in enumerate(mib)]


def in_mib(cut: tuple[ddp.Bucket, ...]) -> list[list[float]]:
    return [[gradient.nbytes / MIB for gradient in bucket.gradients] for bucket in cut]


# -- buckets -----------------------------------------------------------------------------------------------------
def test_a_bucket_is_closed_by_the_gradient_that_takes_it_over_its_limit() -> None:
    assert in_mib(ddp.buckets(sizes(40, 20, 20, 6, 6, 6, 6, 30, 0.5))) == [[0.5, 30], [6, 6, 6, 6, 20], [20, 40]]


def test_a_limit_that_is_met_exactly_closes_the_bucket() -> None:
    assert in_mib(ddp.buckets(sizes(5, 25, 1))) == [[1], [25], [5]]


def test_a_limit_of_ones_own_holds_for_the_first_bucket_too() -> None:
    assert in_mib(ddp.buckets(sizes(1, 2, 3, 4), cap_bytes=6 * MIB)) == [[4, 3], [2, 1]]
    assert in_mib(ddp.buckets(sizes(1, 2, 3, 4), cap_bytes=6 * MIB, first_bytes=0)) == [[4], [3, 2, 1]]


def test_without_a_rebuild_the_small_bucket_comes_last() -> None:
    assert in_mib(ddp.buckets(sizes(2, 20, 20, 3), rebuilt=False)) == [[3], [20, 20], [2]]


def test_every_gradient_is_in_one_bucket_and_dtypes_do_not_share() -> None:
    mixed = [ddp.Gradient(str(i), MIB, 1, ("bf16", "fp32")[i % 2]) for i in range(60)]
    cut = ddp.buckets(mixed)
    assert sorted(int(g.name) for bucket in cut for g in bucket.gradients) == list(range(60))
    assert all(len({g.dtype for g in bucket.gradients}) == 1 for bucket in cut)


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3-8b", "gpt2", "gpt2-xl", "qwen2.5-7b", "gemma-2-9b"])
def test_gradients_are_as_many_as_parameters(name: str) -> None:
    model = models.get(name)
    assert sum(g.nbytes for g in ddp.gradients(model, "bf16")) == 2 * parameters.count(model).total


@pytest.mark.parametrize("name", ["llama-2-7b", "gpt2"])
def test_the_order_is_that_in_which_our_modules_register(name: str) -> None:
    torch = pytest.importorskip("torch")
    from infrabook.nn.transformer import GPT, Llama

    model = models.get(name)
    with torch.device("meta"):
        net = (Llama if model.gated else GPT)(model)
    ours = [gradient.nbytes // 4 for gradient in ddp.gradients(model)]
    theirs = [parameter.numel() for parameter in net.parameters()]
    assert sum(ours) == sum(theirs)
    assert ours == theirs if model.gated else sorted(ours) == sorted(theirs)  # GPT-2's biases stand elsewhere


def test_nonsense_is_refused() -> None:
    with pytest.raises(InfrabookError, match="no gradients"):
        ddp.buckets([])
    with pytest.raises(InfrabookError, match="mixtral-8x7b has experts"):
        ddp.gradients(models.get("mixtral-8x7b"))
    with pytest.raises(InfrabookError, match="cap_bytes"):
        ddp.buckets(sizes(1), cap_bytes=-1)
    with pytest.raises(InfrabookError, match="rate of computing"):
        ddp.tokens_to_hide(ranks=8, flop_per_s=0, bandwidth_bytes_per_s=1)


# -- the engine --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "ours"),
    [
        ({}, {}),
        ({"bucket_cap_mb": 4}, {"cap_bytes": 4 * MIB}),
        ({"bucket_cap_mb": 100}, {"cap_bytes": 100 * MIB}),
        ({"find_unused_parameters": True}, {"rebuilt": False}),
        ({"gradient_as_bucket_view": True}, {}),
    ],
)
def test_ddp_sends_the_predicted_buckets(options: dict[str, object], ours: dict[str, int]) -> None:
    pytest.importorskip("torch")
    from infrabook.measure.ranks import launch
    from infrabook.programs import ddp as program

    registered = ddp.gradients(program.SMALL)
    predicted = [(bucket.nbytes, len(bucket)) for bucket in ddp.buckets(registered, **ours)]  # type: ignore[arg-type]
    whole = [(bucket.nbytes, len(bucket)) for bucket in ddp.one_bucket(registered)]
    for first, second, third in launch(program.buckets_sent, 2, **options):
        assert second == third == predicted
        assert first == (predicted if "find_unused_parameters" in options else whole)


def test_gradients_equal_one_process_and_bytes_equal_a_ring() -> None:
    pytest.importorskip("torch")
    from infrabook.measure.ranks import launch
    from infrabook.programs import ddp as program

    for found in launch(program.compare, 2):
        assert found["in_turn"] == 0
        assert found["whole_batch"] < 1e-5
    assert all(found["in_turn"] < 1e-5 for found in launch(program.compare, 3))
    size = sum(gradient.nbytes for gradient in ddp.gradients(program.SMALL))
    for ranks in (2, 3):
        wanted = collectives.bytes_sent("all-reduce", size_bytes=size, ranks=ranks)
        for sent in launch(program.bytes_of_a_step, ranks):
            assert sent is None or wanted <= sent < wanted * Fraction(1001, 1000)


def test_no_sync_sends_once_and_the_traps_are_what_the_chapter_says() -> None:
    pytest.importorskip("torch")
    from infrabook.measure.ranks import launch
    from infrabook.programs import ddp as program

    cut = len(ddp.buckets(ddp.gradients(program.SMALL)))
    assert launch(program.exchanges, 2, passes=4, no_sync=False) == [4 * cut] * 2
    assert launch(program.exchanges, 2, passes=4) == [cut] * 2
    assert launch(program.uneven, 2)[0] > 0.1
    assert launch(program.uneven, 2, weigh=True)[0] < 1e-6
    assert [found["in_evaluation"] for found in launch(program.batch_norm, 2)] == [[0.0], [0.0]]
    assert launch(program.unused_parameter, 2)[0].startswith("Expected to have finished reduction")
    assert launch(program.unused_parameter, 2, find=True) == ["no error"] * 2
    for found in launch(program.overlap, 2):
        assert found["begun_before_the_last_gradient"] == found["all_reduces"] - 1


# -- time --------------------------------------------------------------------------------------------------------
def test_one_bucket_hides_nothing_and_costs_its_all_reduce() -> None:
    grads = ddp.gradients(models.get("llama-2-7b"), "bf16")
    found = ddp.step(
        grads, ddp.one_bucket(grads), tokens=4096, flop_per_s=10**15, ranks=8, latency_s=Fraction(1, 10**5),
        bandwidth_bytes_per_s=10**11,
    )  # fmt: skip
    size = sum(gradient.nbytes for gradient in grads)
    assert found.exposed_s == collectives.time_s(
        "all-reduce", size_bytes=size, ranks=8, latency_s=Fraction(1, 10**5), bandwidth_bytes_per_s=10**11
    )
    assert found.forward_s * 2 == found.backward_s
    assert found.backward_s == Fraction(4 * 4096 * (6_738_415_616 - 65 * 4096 - 32000 * 4096), 10**15)


def test_a_bucket_leaves_when_it_is_ready_and_the_wire_is_free() -> None:
    grads = sizes(1, 1, 1)
    cut = tuple(ddp.Bucket((gradient,)) for gradient in reversed(grads))
    slow = ddp.step(grads, cut, tokens=1, flop_per_s=1, ranks=2, bandwidth_bytes_per_s=Fraction(MIB, 2))
    assert [(t.ready_s, t.start_s, t.end_s) for t in slow.travels] == [
        (Fraction(5, 2), Fraction(5, 2), Fraction(9, 2)), (Fraction(7, 2), Fraction(9, 2), Fraction(13, 2)),
        (Fraction(9, 2), Fraction(13, 2), Fraction(17, 2)),
    ]  # fmt: skip
    assert (slow.compute_s, slow.step_s, slow.exposed_s) == (Fraction(9, 2), Fraction(17, 2), 4)
    waits = ddp.step(grads, cut, tokens=1, flop_per_s=1, ranks=2, bandwidth_bytes_per_s=Fraction(MIB, 2), overlap=False)
    assert waits.exposed_s == 6 == waits.communication_s
    twice = ddp.step(
        grads, cut, tokens=1, flop_per_s=1, ranks=2, bandwidth_bytes_per_s=Fraction(MIB, 2), accumulation=2
    )
    assert (twice.compute_s, twice.exposed_s) == (9, 4)


def test_tokens_that_hide_an_exchange_hide_it() -> None:
    """Latency aside, with the formula's tokens all of the travel but the last bucket's lies beside computation."""
    grads = ddp.gradients(models.get("llama-2-7b"), "bf16")
    rate, bandwidth = hardware.gpu("h100-sxm").peak("bf16") // 2, hardware.link("infiniband-ndr").bytes_per_s
    enough = ddp.tokens_to_hide(ranks=8, flop_per_s=rate, bandwidth_bytes_per_s=bandwidth)
    size = sum(gradient.nbytes for gradient in grads)
    comm = collectives.time_s("all-reduce", size_bytes=size, ranks=8, bandwidth_bytes_per_s=bandwidth, latency_s=0)
    assert comm == enough * 4 * Fraction(size, 2) / rate


def test_a_long_ring_makes_small_buckets_worse_than_one() -> None:
    grads = ddp.gradients(models.get("llama-2-7b"), "bf16")
    link = hardware.link("infiniband-ndr")
    kwargs = {
        "tokens": 16_384, "flop_per_s": 495 * 10**12, "latency_s": link.latency_s,
        "bandwidth_bytes_per_s": link.bytes_per_s,
    }  # fmt: skip
    few, many = (
        [ddp.step(grads, cut, ranks=n, **kwargs) for cut in (ddp.buckets(grads), ddp.one_bucket(grads))]  # type: ignore[arg-type]
        for n in (8, 512)
    )  # fmt: skip
    assert few[0].exposed_s < few[1].exposed_s
    assert many[0].exposed_s > many[1].exposed_s
