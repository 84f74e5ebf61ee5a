"""Quantization against PyTorch's observers and quantizers, ONNX Runtime's operators, bitsandbytes' levels."""

from __future__ import annotations

import math
import random
import warnings
from fractions import Fraction
from statistics import NormalDist

import pytest

from infrabook import quantization
from infrabook.errors import InfrabookError
from infrabook.explore import load
from infrabook.lab import check
from infrabook.quantization import Scheme

torch = pytest.importorskip("torch")

TENSORS = {
    "even": [random.Random(i).uniform(-3, 5) for i in range(1500)],
    "normal": [random.Random(i).gauss(0, 1) for i in range(1500)],
    "positive": [random.Random(i).random() + 0.25 for i in range(500)],
    "negative": [-random.Random(i).random() - 0.25 for i in range(500)],
}
tensors = pytest.mark.parametrize("values", TENSORS.values(), ids=TENSORS)


def floats(values):
    """``values`` as FP32 holds them."""
    return torch.tensor(values, dtype=torch.float32)


def observed(x, dtype, scheme):
    """PyTorch's scale, zero point and codes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.ao.quantization import MinMaxObserver

        observer = MinMaxObserver(dtype=dtype, qscheme=scheme)
        observer(x)
        scale, zero = observer.calculate_qparams()
        codes = torch.quantize_per_tensor(x, float(scale), int(zero), dtype).int_repr().tolist()
    return float(scale), int(zero), codes


def onnx(op, inputs, kinds):
    """The outputs of one ONNX operator."""
    onnxruntime = pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper, numpy_helper

    ins = [helper.make_tensor_value_info(n, numpy_helper.from_array(v).data_type, v.shape) for n, v in inputs.items()]
    outs = [helper.make_tensor_value_info(n, getattr(TensorProto, kind), None) for n, kind in kinds.items()]
    graph = helper.make_graph([helper.make_node(op, list(inputs), list(kinds))], "one", ins, outs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


# -- scales and codes ------------------------------------------------------------------------------------------------
@tensors
@pytest.mark.parametrize("signed", [False, True])
def test_affine_is_torchs(values, signed):
    x = floats(values)
    scale, zero, codes = observed(x, torch.qint8 if signed else torch.quint8, torch.per_tensor_affine)
    ours = quantization.affine(x.min().item(), x.max().item(), signed=signed)
    assert (float(ours.scale), ours.zero_point) == (pytest.approx(scale, rel=1e-6), zero)
    exact = Scheme(Fraction(scale), zero, ours.low, ours.high)
    assert exact.quantize(x.tolist(), order="shift, then round") == codes


@tensors
def test_symmetric_is_torchs(values):
    x = floats(values)
    scale, zero, codes = observed(x, torch.qint8, torch.per_tensor_symmetric)
    ours = quantization.symmetric(x.abs().max().item(), convention="127.5")
    assert (float(ours.scale), ours.zero_point) == (pytest.approx(scale, rel=1e-6), zero)
    assert Scheme(Fraction(scale), 0, -128, 127).quantize(x.tolist()) == codes


@tensors
def test_dynamic_quantize_linear_is_onnx_runtimes(values):
    x = floats(values).numpy()
    kinds = {"y": "UINT8", "scale": "FLOAT", "zero": "UINT8"}
    codes, scale, zero = onnx("DynamicQuantizeLinear", {"x": x}, kinds)
    ours = quantization.affine(float(x.min()), float(x.max()))
    assert (float(ours.scale), ours.zero_point) == (pytest.approx(float(scale), rel=1e-6), int(zero))
    assert Scheme(Fraction(float(scale)), int(zero), 0, 255).quantize(x.tolist()) == codes.tolist()


def test_quantize_linear_rounds_before_it_adds_the_zero_point_and_torch_after():
    np = pytest.importorskip("numpy")
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32)  # ties for a scale of 1
    (theirs,) = onnx(
        "QuantizeLinear", {"x": x, "s": np.array(1, np.float32), "z": np.array(5, np.uint8)}, {"y": "UINT8"}
    )
    ours = Scheme(Fraction(1), 5, 0, 255)
    assert theirs.tolist() == ours.quantize(x.tolist())
    by_torch = torch.quantize_per_tensor(torch.tensor(x), 1.0, 5, torch.quint8).int_repr().tolist()
    assert by_torch == ours.quantize(x.tolist(), order="shift, then round") != theirs.tolist()


def test_what_comes_back_is_fake_quantize():
    x = floats(TENSORS["even"])
    ours = Scheme(Fraction(1, 32), 100, 0, 255)
    theirs = torch.fake_quantize_per_tensor_affine(x, 1 / 32, 100, 0, 255)
    assert ours.dequantize(ours.quantize(x.tolist(), order="shift, then round")) == theirs.tolist()


def test_zero_comes_back_as_zero_whatever_the_range():
    for low, high in ((0.1, 7), (-3, -0.2), (-1, 1), (-0.3, 11), (0, 5)):
        for signed in (False, True):
            for bits in (2, 4, 8):
                assert quantization.affine(low, high, bits=bits, signed=signed).held([0]) == [0]


def test_an_integer_matrix_product_of_codes_is_the_product_of_what_comes_back():
    draw = random.Random(4)
    x, w = ([draw.uniform(-1, 3) for _ in range(64)] for _ in range(2))
    left, right = quantization.affine(-1, 3), quantization.symmetric(3)
    a, b = left.quantize(x), right.quantize(w)
    integer = sum((i - left.zero_point) * j for i, j in zip(a, b, strict=True))
    exact = sum(i * j for i, j in zip(left.dequantize(a), right.dequantize(b), strict=True))
    assert integer * left.scale * right.scale == exact


# -- rows ------------------------------------------------------------------------------------------------------------
def test_a_scale_for_each_channel_is_torchs_per_channel_quantizer():
    draw = random.Random(5)
    rows = [[draw.gauss(0, 10 ** (i - 2)) for _ in range(32)] for i in range(4)]
    x = floats(rows)
    scales = x.abs().amax(1) / 127
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = torch.quantize_per_channel(x, scales.double(), torch.zeros(4, dtype=torch.long), 0, torch.qint8)
    ours = quantization.by_rows(x.tolist(), per="channel")
    for mine, other in zip(ours, theirs.dequantize().tolist(), strict=True):
        assert [float(value) for value in mine] == pytest.approx(other, rel=1e-5)


def test_smaller_groups_never_do_worse_on_their_own_maximum():
    draw = random.Random(6)
    rows = [[draw.gauss(0, 1) * (30 if (i, j) == (2, 7) else 1) for j in range(64)] for i in range(8)]
    flat = [value for row in rows for value in row]

    def error(per):
        held = quantization.by_rows(rows, per=per, bits=4)
        return quantization.mean_square_error(flat, [value for row in held for value in row])

    assert error("tensor") > error("channel") > error(16) > error(4)
    assert quantization.by_rows(rows, per=64) == quantization.by_rows(rows, per="channel")


def test_zeros_stay_zero():
    assert quantization.by_rows([[0, 0], [0.0, 0.0]], per="channel") == [[0, 0], [0, 0]]


# -- error and range -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("bits", range(2, 9))
def test_even_numbers_in_a_symmetric_range_lose_what_one_level_less_predicts(bits):
    values = [(2 * i + 1) / 4095 - 1 for i in range(4095)]
    held = quantization.symmetric(1, bits=bits, convention="127.5").held(values)
    assert quantization.snr_db(values, held) == pytest.approx(20 * math.log10(2**bits - 1), abs=0.06)
    assert quantization.uniform_snr_db(bits) == pytest.approx(6.0206 * bits, rel=1e-5)


def test_the_clipping_of_normal_numbers_at_four_bits_is_near_the_published_optimum():
    """Banner et al., arXiv 1810.05723: about 2.55 standard deviations, for a quantizer of 16 levels."""
    values = [NormalDist().inv_cdf((2 * i + 1) / 8000) for i in range(4000)]
    assert quantization.calibrate(values, method="mse", bits=4) == pytest.approx(2.55, abs=0.2)


def test_mse_is_the_least_of_what_it_tried():
    values = TENSORS["normal"]
    at = quantization.calibrate(values, method="mse", bits=4)

    def error(clip):
        return quantization.mean_square_error(values, quantization.symmetric(clip, bits=4).held(values))

    largest = max(map(abs, values))
    assert error(at) == min(error(largest * k / 100) for k in range(20, 101, 5)) or error(at) <= error(largest)
    assert error(at) < error(largest)


def test_percentiles_are_ranks():
    values = list(range(1, 101))
    assert [quantization.calibrate(values, method="percentile", percentile=p) for p in (1, 50, 99, 99.5, 100)] == [
        1, 50, 99, 100, 100,
    ]  # fmt: skip


def test_entropy_clips_rare_outliers_at_few_bits_and_nothing_of_an_even_spread():
    normal = [NormalDist().inv_cdf((2 * i + 1) / 8000) for i in range(4000)]
    assert quantization.calibrate([*normal, 20.0], method="entropy", bits=4) < 5
    even = [i / 4000 for i in range(1, 4001)]
    assert quantization.calibrate(even, method="entropy", bits=8) > 0.9


# -- bits ------------------------------------------------------------------------------------------------------------
def test_nf4_levels_are_those_of_bitsandbytes():
    functional = pytest.importorskip("bitsandbytes.functional")
    theirs = functional.get_4bit_type("nf4", device="cpu").tolist()
    assert quantization.nf4_levels() == pytest.approx(theirs, abs=2e-7)


def test_parts_of_a_block_are_whole_bytes():
    for one in quantization.BLOCK_FORMATS.values():
        assert sum(count * bits for _, count, bits in one.parts) % 8 == 0


def test_int32_wraps_one_product_after_the_bound():
    length = quantization.safe_length()
    worst = torch.full((length + 1,), 128 * 128, dtype=torch.int32)
    assert worst[:-1].sum(dtype=torch.int32).item() == length * 128 * 128
    assert worst.sum(dtype=torch.int32).item() < 0


def test_a_lone_int8_layer_pays_off_from_two_weights_for_each_element_on():
    for weights, better in ((3_999_999, False), (4_000_001, True)):
        alone, wide = (quantization.layer_bytes(10**6, weights, 10**6, conversions=how) for how in ("separate", "none"))
        assert (alone < wide) == better


# -- bad input, exercises, explorer ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: quantization.affine(0, 0), "a range needs two ends"),
        (lambda: quantization.affine(0, 1, bits=0), "codes have 1 to 32 bits"),
        (lambda: quantization.symmetric(0), "greater than 0"),
        (lambda: quantization.symmetric(1, bits=1), "codes have 2 to 32 bits"),
        (lambda: quantization.symmetric(1, convention="128"), "a symmetric convention is"),
        (lambda: quantization.symmetric(1).quantize([math.nan]), "only finite numbers"),
        (lambda: quantization.symmetric(1).quantize([1], order="any"), "order can be"),
        (lambda: quantization.calibrate([0, 0]), "zeros alone"),
        (lambda: quantization.calibrate([1], method="median"), "found by max"),
        (lambda: quantization.calibrate([1], method="percentile", percentile=0), "a percentile is"),
        (lambda: quantization.by_rows([[1]], per=0), "the size of a group"),
        (lambda: quantization.mean_square_error([1], []), "cannot be compared"),
        (lambda: quantization.bits_per_weight(4, 0), "group has to be"),
        (lambda: quantization.safe_length(0, 1), "left has to be"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call, sentence):
    with pytest.raises(InfrabookError, match=sentence):
        call()


def test_explorer_shows_what_one_wide_channel_does_and_what_mends_it():
    explorer = load("quantization_error")
    assert "0.1 dB" in explorer()
    assert "19.3 dB" in explorer(per="channel")
    with pytest.raises(InfrabookError, match="bits has to be a whole number from 2 to 8"):
        explorer(bits="9")


def test_mistakes_are_told_apart(capsys):
    assert not check("int8-quantization/2", 131071)
    assert "two signed factors" in capsys.readouterr().out
