"""The chapter on 16 bytes per parameter: its optimizer wrapper, its explorer, its exercises, its recipes' tensors."""

from __future__ import annotations

from fractions import Fraction

import pytest

from infrabook import models, parameters, recipes
from infrabook.errors import InfrabookError
from infrabook.explore import load
from infrabook.lab import check, find_exercise

torch = pytest.importorskip("torch")

from infrabook.measure.saved import saved_for_backward  # noqa: E402  (needs torch)
from infrabook.nn.optimizers import MasterWeights  # noqa: E402
from infrabook.nn.transformer import Llama  # noqa: E402

SMALL = models.Transformer("small", 2, 64, 4, 2, 16, 128, 256, 64)
TIED = models.Transformer("small, tied", 2, 64, 4, 2, 16, 128, 256, 64, tied=True)
IDS = torch.arange(96).remainder(256).reshape(2, 48)


def net(dtype, model=SMALL):
    torch.manual_seed(0)
    return Llama(model).to(dtype)


def step(model, optimizer, micro_batches=1):
    optimizer.zero_grad()
    for _ in range(micro_batches):
        model(IDS, IDS).backward()
    optimizer.step()


def total(tensors):
    return sum(tensor.nbytes for tensor in tensors)


# -- the wrapper -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("gradients", "wanted"), [("16-bit", 16), ("fp32", 18), ("both", 20)])
def test_three_fates_of_the_gradient_are_16_18_and_20_bytes(gradients, wanted):
    model = net(torch.bfloat16)
    optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, gradients=gradients)
    step(model, optimizer, micro_batches=2)
    states = [
        value
        for inner in optimizer.optimizers
        for state in inner.state.values()
        for name, value in state.items()
        if name != "step"
    ]
    own = [tensor for tensors in optimizer.tensors().values() for tensor in tensors]
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    kept = total(list(model.parameters())) + total(grads) + total(own) + total(states)
    assert kept == wanted * parameters.count(SMALL).total


@pytest.mark.parametrize("gradients", ["16-bit", "fp32", "both"])
def test_no_fp32_gradient_outlives_the_step(gradients):
    model = net(torch.bfloat16)
    optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, gradients=gradients)
    step(model, optimizer)
    assert all(master.grad is None for master in optimizer.masters)


def test_one_micro_batch_gives_the_same_weights_whatever_becomes_of_the_gradient():
    found = []
    for gradients in ("16-bit", "fp32", "both"):
        model = net(torch.bfloat16)
        optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, gradients=gradients)
        for _ in range(3):
            step(model, optimizer)
        found.append([parameter.detach().clone() for parameter in model.parameters()])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_over_fp32_weights_the_wrapper_is_the_optimizer_it_wraps():
    plain, wrapped = net(torch.float32), net(torch.float32)
    one, other = torch.optim.AdamW(plain.parameters()), MasterWeights(wrapped.parameters(), torch.optim.AdamW)
    for _ in range(3):
        step(plain, one)
        step(wrapped, other)
    for a, b in zip(plain.parameters(), wrapped.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_parameters_are_the_rounded_masters():
    model = net(torch.bfloat16)
    optimizer = MasterWeights(model.parameters(), torch.optim.AdamW)
    step(model, optimizer)
    for parameter, master in zip(optimizer.parameters, optimizer.masters, strict=True):
        assert torch.equal(parameter, master.bfloat16())


def test_frozen_parameters_get_no_copy():
    model = net(torch.bfloat16).requires_grad_(False)
    model.head.requires_grad_(True)
    assert len(MasterWeights(model.parameters(), torch.optim.AdamW).masters) == 1


def test_a_master_copy_remembers_what_bf16_forgets():
    for master, wanted in ((False, 1.0), (True, 2.0)):
        weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
        sgd = lambda tensors: torch.optim.SGD(tensors, lr=2**-10)  # noqa: E731
        optimizer = MasterWeights([weight], sgd) if master else sgd([weight])
        for _ in range(1024):
            weight.grad = -torch.ones_like(weight)
            optimizer.step()
        assert weight.item() == wanted


# -- autocast ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("model", [SMALL, TIED], ids=lambda model: model.name)
def test_autocast_copies_every_matrix_that_multiplies(model):
    built = net(torch.float32, model)
    with torch.autocast("cpu", torch.bfloat16), saved_for_backward(built) as saved:
        built(IDS, IDS)
    matrices = {tuple(sorted(p.shape)) for p in built.parameters() if p.dim() == 2}
    copies = [row for row in saved.rows if row.dtype == "bfloat16" and tuple(sorted(row.shape)) in matrices]
    account = recipes.states(model, "torch-autocast")
    assert sum(row.nbytes for row in copies) == account["bf16 copies of the weights"]


# -- the explorer ------------------------------------------------------------------------------------------------
RECIPES = {
    16: {},
    18: {"gradients": "fp32"},
    20: {"accumulated": True},
    12: {"master": False},
    10: {"master": False, "gradients": ""},
    8: {"master": False, "first": "bf16", "second": "bf16"},
}


@pytest.mark.parametrize("wanted", RECIPES)
def test_explorer_reaches_every_public_total(wanted):
    assert f'data-value="{wanted}"' in load("recipe_bytes")(**RECIPES[wanted])


@pytest.mark.parametrize(
    ("wanted", "who"),
    [(16, "the ZeRO paper"), (18, "Megatron-LM"), (20, "Ultra-Scale Playbook"), (12, "QLoRA"), (10, "scaling-book"),
     (8, "torch.optim.AdamW")],
)  # fmt: skip
def test_explorer_says_whose_tensors_these_are(wanted, who):
    note = load("recipe_bytes")(**RECIPES[wanted]).rsplit("explorer-note", 1)[1]
    assert who in note.split(". ")[0]


def test_explorer_starts_at_16_bytes_of_the_running_example():
    view = load("recipe_bytes")()
    assert 'data-value="16"' in view
    assert "107.81 GB" in view


def test_explorer_counts_scales_and_round_numbers():
    eight_bit = load("recipe_bytes")(first="uint8", second="uint8", model="none, a round number", billions="70")
    assert f'data-value="{Fraction(321, 32)}"' in eight_bit
    assert "702.19 GB" in eight_bit


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"weights": "fp32"}, "no master copy"),
        ({"gradients": "fp32", "accumulated": "yes"}, "in FP32 already"),
        ({"billions": "-7"}, "has to be a number"),
        ({"weights": "int3"}, "has to be one of"),
    ],
)
def test_explorer_refuses_nonsense_in_a_sentence(settings, sentence):
    with pytest.raises(InfrabookError, match=sentence):
        load("recipe_bytes")(**settings)


# -- what the prose says in words ----------------------------------------------------------------------------------
def test_eleven_sources_have_six_totals():
    assert sorted({c.bytes for c in recipes.CONVENTIONS}) == [8, 10, 12, 16, 18, 20]


def test_the_scaling_books_ten_are_weights_and_moments():
    tensors = {t.name: t.bytes_per_element for t in recipes.get("bf16-adamw").tensors}
    assert tensors["weights"] + tensors["first moment"] + tensors["second moment"] == 10


# -- exercises -----------------------------------------------------------------------------------------------------
NAMES = [f"mixed-precision/{i}" for i in (1, 2, 3)]


@pytest.mark.parametrize("name", NAMES)
def test_exercise_accepts_its_answer_and_names_each_mistake(name, capsys):
    found = find_exercise(name)
    assert check(name, found.answer())
    for words, wrong in found.mistakes.items():
        capsys.readouterr()
        assert not check(name, wrong())
        assert words in capsys.readouterr().out


def test_exercise_1_is_ten_bytes_and_the_scales():
    assert find_exercise("mixed-precision/1").answer() == 10 + 1 / 8


def test_exercise_2_is_where_bf16_starts_to_move():
    edge = find_exercise("mixed-precision/2").answer()
    weight = torch.tensor(0.1, dtype=torch.bfloat16)
    for update, moves in ((edge * 0.99, False), (edge * 1.01, True)):
        assert bool((weight.float() + update).bfloat16() != weight) is moves
