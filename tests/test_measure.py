"""The witnesses agree with each other: hooks with graph, real with fake, our tracker with PyTorch's own."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from infrabook import measure, models  # noqa: E402
from infrabook.measure import gpu, peak, saved  # noqa: E402
from infrabook.nn.transformer import Llama  # noqa: E402

TINY = models.Transformer("tiny", 2, 64, 4, 2, 16, 172, 100, 64)


class Attention(nn.Module):
    """Queries, keys and values of one matrix, so that storages are shared."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Any) -> Any:
        heads = [part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.all(x).chunk(3, -1)]
        return self.out(nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))


BUILDS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(32, 16),
    "two layers with an activation": lambda: nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)),
    "norm": lambda: nn.LayerNorm(32),
    "dropout": lambda: nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.5)),
    "softmax": lambda: nn.Sequential(nn.Linear(32, 32), nn.Softmax(-1)),
    "attention": Attention,
    "a layer used twice": lambda: nn.Sequential(*[nn.Linear(32, 32)] * 2),
}


def both(build: Callable[[], nn.Module], shape: tuple[int, ...] = (2, 8, 32)) -> tuple[int, int]:
    """Bytes saved for backward, by hooks and by a walk over the graph."""
    torch.manual_seed(0)
    module = build()
    with saved.saved_for_backward(module) as found:
        out = module(torch.ones(shape).requires_grad_())
    return found.total, saved.graph_bytes(out, module)


@pytest.mark.parametrize("name", BUILDS)
def test_hooks_and_graph_agree_and_fake_tensors_agree_with_real_ones(name: str) -> None:
    real, real_graph = both(BUILDS[name])
    with saved.fake_tensors(torch.float32):
        fake, fake_graph = both(BUILDS[name])
    assert real == real_graph == fake == fake_graph
    assert real > 0


def test_what_an_operation_in_place_saves_counts_too() -> None:
    """On a matrix: on a view PyTorch wraps the node, and a walk over the graph does not see into it."""
    assert both(lambda: nn.Sequential(nn.Linear(32, 32), nn.ReLU(inplace=True)), (16, 32)) == (4096, 4096)


def test_a_whole_model_saves_the_same_on_real_and_fake_tensors() -> None:
    def run() -> tuple[int, int]:
        net = Llama(TINY)
        ids = torch.zeros(2, 16, dtype=torch.long)
        with saved.saved_for_backward(net) as found:
            loss = net(ids, ids)
        return found.total, saved.graph_bytes(loss, net)

    real = run()
    with saved.fake_tensors(torch.float32):
        assert run() == real
    assert real[0] == real[1]


def test_sixteen_bits_save_half_of_thirty_two_where_nothing_is_kept_wide() -> None:
    totals = []
    for dtype in (torch.float32, torch.bfloat16):
        with saved.fake_tensors(dtype):
            module = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
            with saved.saved_for_backward(module) as found:
                module(torch.ones(2, 8, 32))
        totals.append(found.total)
    assert totals[0] == 2 * totals[1]


def test_parameters_do_not_count_and_a_storage_counts_once() -> None:
    layer = nn.Linear(4, 4, bias=False)
    with saved.saved_for_backward(layer) as found:
        x = torch.ones(2, 4)
        layer(x) + layer(x)
    assert [(row.shape, row.dtype, row.nbytes) for row in found.rows] == [((2, 4), "float32", 32)]
    assert found.views > found.total


def test_a_row_is_charged_to_the_module_that_ran() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    with saved.saved_for_backward(module) as found:
        module(torch.ones(2, 4))
    assert found.by(lambda row: row.module) == {"0": 32, "1": 32}


def test_hooks_are_gone_after_the_block_also_after_an_error() -> None:
    module = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(RuntimeError), saved.saved_for_backward(module):
        module(torch.ones(2, 5))
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_the_default_dtype_comes_back() -> None:
    with saved.fake_tensors(torch.float16):
        assert torch.get_default_dtype() is torch.float16
        assert nn.Linear(2, 2).weight.dtype is torch.float16
    assert torch.get_default_dtype() is torch.float32


# -- peaks -------------------------------------------------------------------------------------------------------
def stock_peak() -> int:
    """The peak of two training steps as PyTorch's own, unchanged tracker reports it."""
    from torch.distributed._tools.mem_tracker import MemTracker

    with saved.fake_tensors(torch.bfloat16):
        net = Llama(TINY)
        update = torch.optim.AdamW(net.parameters())
        ids, targets = (torch.randint(0, TINY.vocab, (1, 32)) for _ in range(2))
        tracker = MemTracker()
        tracker.track_external(net, update, ids, targets)
        with tracker:
            for _ in range(2):
                loss = net(ids, targets)
                loss.backward()
                update.step()
                update.zero_grad()
                del loss
                tracker.reset_mod_stats()
        peaks = tracker.get_tracker_snapshot("peak")
    return max(int(snapshot["Total"]) for snapshot in peaks.values())


def test_our_tracker_finds_the_peak_that_the_stock_tracker_finds() -> None:
    ours = peak.training_step(lambda: Llama(TINY), TINY, batch=1, sequence=32)
    assert ours.peak.total == stock_peak()
    assert ours.peak_gib == float(ours.peak.total) / 2**30


def test_a_step_leaves_weights_and_states_and_nothing_else() -> None:
    step = peak.training_step(lambda: Llama(TINY), TINY, batch=1, sequence=32)
    assert step.after_step.of("gradients") == step.after_step.of("activations") == 0
    assert step.after_step.of("optimizer") >= 2 * step.after_step.of("weights")
    assert step.after_forward.of("activations") > 0
    assert step.after_backward.of("gradients") >= step.after_step.of("weights")
    assert step.peak.total >= max(x.total for x in (step.after_forward, step.after_backward, step.after_step))


def test_a_forward_pass_without_gradients_saves_nothing() -> None:
    held = peak.forward_pass(lambda: Llama(TINY), TINY, sequence=32)
    assert held.of("gradients") == held.of("optimizer") == 0
    assert held.of("weights") > 0


@pytest.mark.parametrize("name", measure.PRIVATE)
def test_private_modules_of_pytorch_are_where_they_were(name: str) -> None:
    assert importlib.import_module(name)


def test_no_other_module_of_the_library_uses_pytorchs_private_ones() -> None:
    for path in Path(measure.__file__).parents[1].rglob("*.py"):
        lines = [line for line in path.read_text("utf8").splitlines() if "import" in line and "torch." in line]
        used = {name for name in measure.PRIVATE for line in lines if name in line}
        private = [line for line in lines if "torch._" in line or "torch.distributed._" in line]
        assert not used or "measure" in path.parts, path.name
        assert all(any(name in line for name in measure.PRIVATE) for line in private), f"{path.name}: {private}"


# -- GPU cells ---------------------------------------------------------------------------------------------------
RECORD = {"demo": {"NVIDIA T4": {"date": "2026-01-02", "versions": {"torch": "2.13.0"}, "result": {"peak": 5}}}}


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A data folder of this test's own, with one record."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "gpu.json").write_text(json.dumps(RECORD), "utf8")
    monkeypatch.setattr("infrabook.measure.gpu.resources.files", lambda package: tmp_path)
    monkeypatch.setattr(gpu, "available", lambda need=(0, 0), count=1: False)
    return tmp_path


def no(*_: Any) -> dict[str, Any]:
    """A measurement that must not run."""
    raise AssertionError("nothing is measured without a GPU")


def test_without_a_gpu_the_recorded_result_is_shown_with_card_date_and_versions(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.on_gpu("demo", no) == {"peak": 5}
    assert capsys.readouterr().out == "recorded on NVIDIA T4, 2026-01-02, torch 2.13.0\n"


def test_without_a_gpu_and_a_record_the_cell_says_so(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.on_gpu("another", no) is None
    assert "no result is recorded yet" in capsys.readouterr().out


def test_with_a_gpu_it_is_measured(
    record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "available", lambda need=(0, 0), count=1: need <= (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    assert gpu.on_gpu("demo", lambda: {"peak": 7}, need=(7, 5)) == {"peak": 7}
    assert capsys.readouterr().out.startswith("measured now on a card, torch ")
    assert gpu.on_gpu("demo", no, need=(8, 0)) == {"peak": 5}, "a card too old for the cell"


def test_stored_records_are_complete() -> None:
    data = json.loads((Path(measure.__file__).parents[1] / "data" / "gpu.json").read_text("utf8"))
    for cards in data.values():
        for row in cards.values():
            assert set(row) == {"date", "versions", "result"}
