"""A forecast's memory is the accounts', its bubble the simulator's; published runs are found near the top."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from infrabook import activations, flops, hardware, memory, models, parameters, recipes
from infrabook.errors import InfrabookError
from infrabook.parallel import layout, pipeline
from infrabook.parallel.layout import Cluster, Job, Layout

LLAMA = models.get("llama-2-70b")
NDR = hardware.link("infiniband-ndr")


def cluster(gpus: int, **more: Any) -> Cluster:
    return Cluster(hardware.gpu("h100-sxm"), gpus, across=NDR, **more)


JOB = Job(LLAMA, batch=1024, sequence=4096)


# -- memory ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(("tensor", "pipeline_parallel"), [(1, 1), (8, 1), (1, 4), (8, 4)])
def test_states_are_those_of_recipes(zero: int, tensor: int, pipeline_parallel: int) -> None:
    data = 16
    one = Layout(data, tensor, pipeline_parallel, zero=zero)
    found = layout.forecast(JOB, cluster(one.gpus), one)
    wanted = [
        recipes.states(
            LLAMA, zero=zero, data_parallel=data, tensor_parallel=tensor, pipeline_parallel=pipeline_parallel,
            stage=stage,
        )
        for stage in {0, pipeline_parallel - 1}
    ]  # fmt: skip
    held = [found.held[kind] for kind in ("weights", "gradients", "optimizer")]
    assert any(held == [float(one.of(kind)) for kind in ("weights", "gradients", "optimizer")] for one in wanted)


@pytest.mark.parametrize("recomputation", ["none", "selective", "full"])
@pytest.mark.parametrize(("pipeline_parallel", "chunks"), [(1, 1), (4, 1), (4, 5)])
def test_activations_are_those_of_the_account(recomputation: Any, pipeline_parallel: int, chunks: int) -> None:
    job = replace(JOB, attention="eager", sequence=2048)
    one = Layout(8, 8, pipeline_parallel, micro_batch=2, chunks=chunks, recomputation=recomputation)
    found = layout.forecast(job, cluster(one.gpus), one)
    options: activations.Options = {
        "batch": 2, "sequence": 2048, "attention": "eager", "recomputation": recomputation, "tensor_parallel": 8,
        "sequence_parallel": True, "pipeline_parallel": pipeline_parallel, "virtual_stages": chunks,
        "schedule": "interleaved" if chunks > 1 else "1f1b", "micro_batches": layout.micro_batches(job, one),
    }  # fmt: skip
    loss = 2 * 4 * 2 * 2048 * LLAMA.vocab // 8
    stages = {}
    for stage in {0, pipeline_parallel - 1}:
        kept = memory.training(LLAMA, **options | {"stage": stage}).of("activations")  # type: ignore[misc]
        stages[stage] = float(kept) + loss * (stage == pipeline_parallel - 1)
    assert found.held["activations"] == pytest.approx(max(stages.values()), rel=1e-12)


def test_context_parallelism_divides_activations_and_widens_the_sharding_group() -> None:
    plain = layout.forecast(JOB, cluster(64), Layout(8, 8))
    cut = layout.forecast(JOB, cluster(64), Layout(2, 8, context=4))
    assert cut.held["activations"] == pytest.approx(plain.held["activations"] / 4, rel=1e-6)
    assert cut.held["optimizer"] == plain.held["optimizer"]


def test_experts_are_divided_among_data_parallel_ranks() -> None:
    mixtral = models.get("mixtral-8x7b")
    job = Job(mixtral, 512, 4096)
    whole, cut = (layout.forecast(job, cluster(64), Layout(8, 8, expert=e, zero=0)) for e in (1, 8))
    experts = 2 * sum(int(row.value) for row in parameters.count(mixtral) if row.name.startswith("experts")) / 8
    assert whole.held["weights"] - cut.held["weights"] == pytest.approx(experts * 7 / 8, rel=1e-9)
    assert whole.seconds["expert parallel"] == 0 < cut.seconds["expert parallel"]


# -- time --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("stages", "count", "chunks"), [(2, 8, 1), (4, 8, 1), (4, 16, 2), (8, 16, 2)])
def test_the_bubble_is_the_simulators(stages: int, count: int, chunks: int) -> None:
    model = replace(LLAMA, vocab=1, layers=16)  # no head to speak of: all stages are equal
    job = Job(model, batch=8 * count, sequence=4096)
    one = Layout(8, 1, stages, chunks=chunks)
    links = {"latency_s": 0, "gbit_per_s_per_lane": 10**9}
    fast = replace(NDR, **links)
    found = layout.forecast(job, Cluster(hardware.gpu("h100-sxm"), one.gpus, inside=fast, across=fast), one)
    name = "Interleaved1F1B" if chunks > 1 else "1F1B"
    step = pipeline.simulate(pipeline.build(name, stages, micro_batches=count, chunks=chunks))
    per_step = found.seconds["compute"] + found.seconds["memory traffic"] + found.seconds["pipeline messages"]
    assert found.seconds["bubble"] / per_step == pytest.approx(float(step.bubble_of_ideal), rel=1e-9)


def test_time_of_computing_is_work_over_the_sustained_rate() -> None:
    found = layout.forecast(JOB, cluster(64, sustained=0.5), Layout(8, 8))
    work = flops.training(LLAMA, batch=1024, sequence=4096, causal="half").total
    assert found.seconds["compute"] == pytest.approx(float(work) / (64 * 0.5 * 989.4e12), rel=1e-12)


def test_full_recomputation_adds_the_layers_forward_pass() -> None:
    plain, again = (layout.forecast(JOB, cluster(64), Layout(8, 8, recomputation=r)) for r in ("none", "full"))
    head = 2 * 1024 * 4096 * LLAMA.hidden * LLAMA.vocab / (64 * 0.6 * 989.4e12)
    assert again.seconds["recomputation"] == pytest.approx(plain.seconds["compute"] / 3 - head, rel=1e-9)
    assert again.seconds["tensor parallel"] == pytest.approx(1.5 * plain.seconds["tensor parallel"])
    assert again.memory_bytes < plain.memory_bytes


def test_axes_stay_inside_a_node_while_they_divide_it() -> None:
    found = layout.axis_links(cluster(512), Layout(16, 2, 8, context=2))
    assert [found[axis].name for axis in layout.AXES] == ["nvlink4", "nvlink4", NDR.name, NDR.name]
    six = layout.axis_links(cluster(96), Layout(16, 6))
    assert six["tensor"].name == NDR.name  # groups of six straddle nodes of eight


def test_a_slower_network_never_helps_and_hurts_gradients() -> None:
    slow = replace(cluster(512), across=replace(NDR, gbit_per_s_per_lane=10))
    for one in (Layout(64, 8), Layout(8, 8, 8), Layout(512, zero=3)):
        quick, late = (layout.forecast(JOB, where, one) for where in (cluster(512), slow))
        assert late.step_s > quick.step_s
        assert late.memory_bytes == quick.memory_bytes


# -- search ------------------------------------------------------------------------------------------------------
def test_a_search_gives_valid_layouts_once_each_the_quickest_that_fit_first() -> None:
    found = layout.search(JOB, cluster(512), zero=(1, 3))
    assert len(found) > 1500
    assert all(one.layout.gpus == 512 and not layout.why_not(JOB, cluster(512), one.layout) for one in found)
    assert len({one.layout for one in found}) == len(found)
    fitting = [one.step_s for one in found if one.fits]
    assert fitting == sorted(fitting)
    assert [one.fits for one in found] == sorted((one.fits for one in found), reverse=True)
    assert found[0].step_s == layout.forecast(JOB, cluster(512), found[0].layout).step_s


def test_ten_thousand_layouts_share_their_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The accounts are asked once for each combination of the few numbers they depend on, not for each layout."""
    asked: list[dict[str, Any]] = []
    original = activations.one_layer
    monkeypatch.setattr(activations, "one_layer", lambda model, **how: asked.append(how) or original(model, **how))
    many = layout.search(
        Job(LLAMA, 2048, 4096), cluster(1024), zero=(0, 1, 2, 3), recomputation=("none", "selective", "full"),
        micro_batch=(1, 2, 4, 8, 16), chunks=(1, 2, 4, 5, 8, 10, 20),
    )  # fmt: skip
    assert len(many) > 10_000
    assert len(asked) <= 4 * 3 * 3 * 5  # tensor, context, recomputation, micro-batch


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (Layout(8, 8), "8 × 8 × 1 × 1 is not 512 GPUs"),
        (Layout(4, 128), "128 tensor-parallel ranks do not divide 64 heads"),
        (Layout(1, 8, 64), "64 × 1 stages do not divide 80 layers"),
        (Layout(8, 8, 8, chunks=3), "8 × 3 stages do not divide 80 layers"),
        (Layout(256, 2, micro_batch=8), "256 ranks with micro-batches of 8 do not divide a batch of 1,024"),
        (Layout(64, 8, expert=8), "8 expert-parallel ranks divide neither experts nor data-parallel ranks"),
        (Layout(32, 8, context=2, zero=7), "ZeRO has the stages 0, 1, 2 and 3, and not 7"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_in_words(one: Layout, words: str) -> None:
    with pytest.raises(InfrabookError, match=words):
        layout.forecast(JOB, cluster(512), one)


def test_nonsense_is_refused() -> None:
    with pytest.raises(InfrabookError, match="every degree of a layout has to be 1 or more"):
        Layout(0)
    with pytest.raises(InfrabookError, match="at most 1"):
        cluster(8, sustained=1.5)
    with pytest.raises(InfrabookError, match="which links"):
        Cluster(hardware.gpu("h100-sxm"), 8)


# -- published runs ----------------------------------------------------------------------------------------------
RUNS = {run.name: run for run in layout.published()}


@pytest.mark.parametrize("name", RUNS)
def test_a_published_layout_uses_all_its_gpus_and_can_be(name: str) -> None:
    run = RUNS[name]
    assert run.layout.gpus == run.cluster.gpus
    assert not layout.why_not(run.job, run.cluster, run.layout)


def test_narayanan_table_1_adds_up() -> None:
    """The table's own aggregate petaFLOP/s, which are not in our data, from its rates and GPUs."""
    printed = {
        "1.7b": 4.4, "3.6b": 8.8, "7.5b": 18.2, "18.4b": 34.6, "39.1b": 70.8, "76.1b": 143.8, "145.6b": 227.1,
        "310.1b": 297.4, "529.6b": 410.2, "1008b": 502.0,
    }  # fmt: skip
    for name, petaflops in printed.items():
        run = RUNS[f"megatron-{name}"]
        assert run.utilization * 0.312 * run.cluster.gpus == pytest.approx(petaflops, rel=0.026)
        count = float(parameters.count(replace(run.job.model, positions="learned")).total)
        assert count == pytest.approx(float(name[:-1]) * 1e9, abs=0.06e9)


def test_one_fitted_number_predicts_the_other_sixteen_runs() -> None:
    share = layout.sustained_by(RUNS["korthikanti-175b"])
    assert 0.5 < share < 0.8
    placed = {run.name: layout.place(run) for run in layout.published(share)}
    assert placed["korthikanti-175b"].ratio == pytest.approx(1, abs=0.02)  # the search may know better chunks
    ratios = [one.ratio for one in placed.values()]
    assert min(ratios) > 0.8
    assert max(ratios) < 1.2
    megatron = [one.ratio for name, one in placed.items() if name.startswith("megatron")]
    assert all(0.9 < ratio < 1.1 for ratio in megatron)


def test_published_degrees_stand_near_the_top() -> None:
    placed = [layout.place(run) for run in layout.published(0.65)]
    assert sum(one.position == 1 for one in placed) >= 9
    assert sum(one.behind < 0.08 for one in placed) == len(placed) - 1
    late = next(one for one in placed if one.behind >= 0.08)
    assert late.run.name == "llama-3-405b-8k-8192"  # its chunks do not fit by the account


def test_llama_3_table_4_utilizations() -> None:
    assert RUNS["llama-3-405b-8k-8192"].utilization == pytest.approx(0.43, abs=0.006)
    assert RUNS["llama-3-405b-8k-16384"].utilization == pytest.approx(0.41, abs=0.006)
    assert RUNS["llama-3-405b-131k"].utilization == pytest.approx(0.38, abs=0.006)
