"""Number formats against other people's: torch's casts on every pattern, ml_dtypes, NumPy, struct."""

from __future__ import annotations

import math
import random
import re
import struct
from fractions import Fraction
from html import unescape
from itertools import pairwise
from urllib.parse import parse_qsl

import pytest

from infrabook import formats
from infrabook.errors import InfrabookError
from infrabook.explore import load
from infrabook.formats import BLOCKS, FORMATS, Format

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
ml_dtypes = pytest.importorskip("ml_dtypes")

TORCH = {
    "fp16": torch.float16, "bf16": torch.bfloat16, "fp8_e5m2": torch.float8_e5m2, "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2fnuz": torch.float8_e5m2fnuz, "fp8_e4m3fnuz": torch.float8_e4m3fnuz,
}  # fmt: skip
ML_DTYPES = {
    "bf16": "bfloat16", "fp8_e5m2": "float8_e5m2", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2fnuz": "float8_e5m2fnuz",
    "fp8_e4m3fnuz": "float8_e4m3fnuz", "fp8_e4m3_ieee": "float8_e4m3", "fp6_e3m2": "float6_e3m2fn",
    "fp6_e2m3": "float6_e2m3fn", "fp4": "float4_e2m1fn",
}  # fmt: skip
SATURATES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)  # its cast to e4m3fn, pull request 178817
SMALL = [name for name, one in FORMATS.items() if one.bits <= 16]


def same(ours: Fraction | float, theirs: float) -> bool:
    """Equal, with NaN equal to NaN and -0.0 unequal to 0.0."""
    if math.isnan(theirs):
        return isinstance(ours, float) and math.isnan(ours)
    return ours == theirs and math.copysign(1, float(ours)) == math.copysign(1, theirs)


def patterns(name: str):
    """Every pattern of a format, as torch reads it."""
    one = FORMATS[name]
    unsigned = torch.arange(2**one.bits, dtype=torch.int32)
    return unsigned.to(torch.uint16 if one.bits == 16 else torch.uint8).view(TORCH[name])


# -- decoding ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", TORCH)
def test_every_pattern_means_what_torch_says(name):
    theirs = patterns(name).to(torch.float64).tolist()
    assert len(theirs) == 2 ** FORMATS[name].bits
    assert all(same(FORMATS[name].decode(i), value) for i, value in enumerate(theirs))


@pytest.mark.parametrize("name", ML_DTYPES)
def test_every_pattern_means_what_ml_dtypes_says(name):
    one = FORMATS[name]
    dtype = getattr(ml_dtypes, ML_DTYPES[name])
    raw = np.arange(2**one.bits, dtype=np.uint16 if one.bits == 16 else np.uint8)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        theirs = raw.view(dtype).astype(np.float64).tolist()
    assert all(same(one.decode(i), value) for i, value in enumerate(theirs))


@pytest.mark.parametrize(("name", "pack", "unpack"), [("fp64", "<Q", "<d"), ("fp32", "<I", "<f"), ("fp16", "<H", "<e")])
def test_wide_formats_are_the_machines_own(name, pack, unpack):
    one, draw = FORMATS[name], random.Random(0)
    for _ in range(2000):
        pattern = draw.getrandbits(one.bits)
        (theirs,) = struct.unpack(unpack, struct.pack(pack, pattern))
        assert same(one.decode(pattern), theirs)
        if not math.isnan(theirs):
            assert one.encode(theirs) == pattern


@pytest.mark.parametrize("name", SMALL)
def test_encoding_undoes_decoding(name):
    one = FORMATS[name]
    for pattern in range(2**one.bits):
        value = one.decode(pattern)
        if not (isinstance(value, float) and math.isnan(value)):
            assert one.encode(value) == pattern
            assert one.encode(value, rounding="toward zero") == pattern


# -- encoding ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", TORCH)
def test_torch_rounds_every_midpoint_and_its_neighbours_as_we_do(name):
    one = FORMATS[name]
    saturate = name == "fp8_e4m3" and SATURATES
    edge = float(one.max + one.ulp(one.max) / 2)
    middles = torch.tensor([float((a + b) / 2) for a, b in pairwise(one.numbers())] + [edge])
    above, below = torch.tensor(math.inf), torch.tensor(0.0)
    every = torch.cat([middles, torch.nextafter(middles, above), torch.nextafter(middles, below)])
    every = torch.cat([every, torch.tensor([1e30, math.inf, math.nan, 0.0])])
    every = torch.cat([every, -every])
    raw = every.to(TORCH[name]).view(torch.int16 if one.bits == 16 else torch.uint8).tolist()
    for value, theirs in zip(every.tolist(), raw, strict=True):
        ours, theirs = one.encode(value, saturate=saturate), theirs & (2**one.bits - 1)
        assert ours == theirs or (math.isnan(float(one.decode(ours))) and math.isnan(float(one.decode(theirs)))), value


@pytest.mark.parametrize("name", ML_DTYPES)
def test_ml_dtypes_rounds_every_midpoint_as_we_do_and_never_saturates_a_format_with_nan(name):
    one = FORMATS[name]
    if one.bits == 16:
        return  # torch was asked above
    middles = [float((a + b) / 2) for a, b in pairwise(one.numbers())] + [float(one.max + one.ulp(one.max)), 1e6]
    theirs = np.array(middles, dtype=np.float32).astype(getattr(ml_dtypes, ML_DTYPES[name])).astype(np.float64)
    for value, found in zip(middles, theirs.tolist(), strict=True):
        assert same(one.round(value), found), value


def test_torch_rounds_a_double_twice_on_its_way_to_fp16_and_numpy_once():
    value = 1 + 2**-11 + 2**-40
    assert FORMATS["fp16"].round(value) == 1 + Fraction(1, 1024) == np.float64(value).astype(np.float16).item()
    twice = FORMATS["fp16"].round(FORMATS["fp32"].round(value))
    assert twice == 1 == torch.tensor(value, dtype=torch.float64).half().item()


def test_sums_of_two_16_bit_numbers_may_be_rounded_twice_through_fp32():
    """24 bits are at least twice 11 plus 2: the detour cannot be seen (Figueroa 1995)."""
    draw = random.Random(1)
    for name in ("fp16", "bf16"):
        one, wide = FORMATS[name], FORMATS["fp32"]
        for _ in range(4000):
            a, b = (Fraction(one.round(draw.choice((1, -1)) * 2 ** draw.uniform(-14, 14))) for _ in range(2))
            assert one.round(wide.round(a + b)) == one.round(a + b)


def test_a_product_of_two_16_bit_numbers_is_exact_in_fp32():
    draw = random.Random(2)
    for name in ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2"):
        one, wide = FORMATS[name], FORMATS["fp32"]
        for _ in range(4000):
            a, b = (Fraction(one.round(2 ** draw.uniform(-6, 6))) for _ in range(2))
            assert wide.round(a * b) == a * b


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8_e4m3", "fp4"])
def test_stochastic_rounding_is_right_on_average_over_every_draw(name):
    one = FORMATS[name]
    for value in (Fraction(1, 3), Fraction(5, 4) + Fraction(1, 1000), -Fraction(7, 10), one.min_subnormal / 3):
        low = one.round(value, rounding="toward zero")
        gap = one.ulp(value)
        part = abs(value - Fraction(low)) / gap
        draws = part.denominator
        outcomes = [
            Fraction(one.decode(one.encode(value, rounding="stochastic", uniform=Fraction(k, draws))))
            for k in range(draws)
        ]
        assert sum(outcomes) / draws == value
        assert set(outcomes) <= {Fraction(low), Fraction(low) + (gap if value > 0 else -gap)}


# -- limits ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", TORCH)
def test_limits_are_those_of_torch(name):
    one, theirs = FORMATS[name], torch.finfo(TORCH[name])
    assert (one.max, one.min_normal, one.bits) == (theirs.max, theirs.smallest_normal, theirs.bits)
    if name == "fp8_e5m2fnuz" and theirs.eps == 0.125:
        assert one.eps == Fraction(1, 4)  # the next pattern after 1.0 is 1.25; torch.finfo says otherwise
    else:
        assert one.eps == theirs.eps
    assert one.eps == Fraction(one.decode(one.encode(1) + 1)) - 1


@pytest.mark.parametrize("name", ML_DTYPES)
def test_limits_are_those_of_ml_dtypes(name):
    one, theirs = FORMATS[name], ml_dtypes.finfo(getattr(ml_dtypes, ML_DTYPES[name]))
    ours = (one.max, one.min_normal, one.min_subnormal, one.eps, one.bits)
    wanted = (theirs.max, theirs.smallest_normal, theirs.smallest_subnormal, theirs.eps, theirs.bits)
    assert ours == tuple(map(float, wanted))


@pytest.mark.parametrize("name", SMALL)
def test_counts_are_what_decoding_everything_finds(name):
    one = FORMATS[name]
    values = [one.decode(pattern) for pattern in range(2**one.bits)]
    finite = [Fraction(value) for value in values if math.isfinite(value)]
    assert one.finite == len(finite)
    different = set(finite)
    for low, high in ((1, 2), (-1, 1), (0, 2), (-2, -1), (0.3, 0.7), (-1e9, 1e9), (-0.3, 0.3), (5, 5)):
        for ends in ("[]", "[)", "(]", "()"):
            wanted = sum(
                (low <= v if ends[0] == "[" else low < v) and (v <= high if ends[1] == "]" else v < high)
                for v in different
            )
            assert one.between(low, high, ends=ends) == wanted, (low, high, ends)


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "fp6_e3m2", "fp4"])
@pytest.mark.parametrize("addend", [0.1, 1, 0.75, 3, 0.0625, 1.0009765625])
def test_a_running_sum_stalls_where_it_is_predicted(name, addend):
    one = FORMATS[name]
    each, total = Fraction(one.round(addend)), Fraction(0)
    if each == 0:
        with pytest.raises(InfrabookError, match="not a positive number"):
            one.stall(addend)
        return
    while (further := one.round(total + each)) != total and math.isfinite(further) and total < one.max:
        total = Fraction(further)
    assert one.stall(addend) == (total if further == total and total < one.max else None)


# -- blocks ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_holds_its_largest_magnitude_within_a_step_or_saturates(name):
    block, draw = BLOCKS[name], random.Random(3)
    for _ in range(20):
        values = [draw.gauss(0, 10 ** draw.uniform(-3, 3)) for _ in range(block.size)]
        scale, held = block.quantize(values)
        assert scale > 0
        top = block.element.max * scale
        for value, ours in zip(values, held, strict=True):
            if abs(value) <= top:
                step = block.element.ulp(Fraction(value) / scale) * scale
                assert abs(ours - Fraction(value)) <= step / 2
            else:
                assert abs(ours) == top


def test_mx_scale_is_a_power_of_two_and_zero_blocks_stay_zero():
    scale, held = BLOCKS["mxfp4"].quantize([0.3, -5.0, 0.001])
    assert scale.numerator & (scale.numerator - 1) == 0 == scale.denominator & (scale.denominator - 1)
    assert (scale, held) == (1, [Fraction(1, 2), -4, 0])  # -5 is halfway, and 4 has the even pattern
    assert BLOCKS["nvfp4"].quantize([0.0, 0.0]) == (1, [0, 0])


# -- bad input ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: formats.get("fp7"), "there is no format 'fp7'"),
        (lambda: FORMATS["fp16"].decode(1 << 16), "fp16 has 16 bits"),
        (lambda: FORMATS["fp16"].decode(-1), "fp16 has 16 bits"),
        (lambda: FORMATS["fp4"].encode(math.nan), "fp4 has no NaN"),
        (lambda: FORMATS["fp16"].encode(1, rounding="up"), "rounding can be"),
        (lambda: FORMATS["fp16"].between(0, 1, ends="[["), "ends can be"),
        (lambda: Format("u", 4, 3, signed=False).encode(-1), "u has no sign"),
        (lambda: Format("u", 4, 3, signed=False).between(-1, 1), "u has no numbers below 0"),
        (lambda: BLOCKS["mxfp4"].quantize([]), "1 to 32 values"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call, sentence):
    with pytest.raises(InfrabookError, match=sentence.replace("(", r"\(")):
        call()


def test_names_that_people_use():
    for said, meant in {"torch.bfloat16": "bf16", "half": "fp16", "float8_e4m3fn": "fp8_e4m3", "e4m3fn": "fp8_e4m3",
                        "float4_e2m1fn": "fp4", "float6_e3m2fn": "fp6_e3m2", "TF32": "tf32"}.items():  # fmt: skip
        assert formats.get(said).name == meant
    assert formats.get(FORMATS["fp4"]) is FORMATS["fp4"]


# -- explorer ----------------------------------------------------------------------------------------------------
def test_explorer_loses_a_gradient_and_a_loss_scale_brings_it_back():
    explorer = load("rounded_in_formats")
    assert 'data-value="0"' in explorer()
    assert 'data-value="0"' not in explorer(times=1024)
    assert "as <b" in explorer(bits="bf16")
    assert 'data-value="0"' not in explorer(bits="bf16")


@pytest.mark.parametrize("bits", ["fp32", "tf32", "bf16", "fp16", "fp8_e5m2", "fp8_e4m3", "fp6_e3m2", "fp4"])
def test_every_flipped_bit_leads_to_the_number_that_its_link_sets(bits):
    explorer = load("rounded_in_formats")
    view = explorer(value=0.75, bits=bits)
    links = re.findall(r'href="#rounded_in_formats\?([^"]+)" title="[^"]*flip it, to ([^"]+)"', view)
    assert len(links) > FORMATS[bits].bits - 2
    for settings, said in links:
        after = explorer(**dict(parse_qsl(unescape(settings))))
        assert f'data-value="{said}"' in after or said == "−0"


def test_explorer_says_what_is_too_large():
    explorer = load("rounded_in_formats")
    assert "too large" in explorer(value=1e38, times=4096, bits="fp16")
    with pytest.raises(InfrabookError, match="a number has to be a number"):
        explorer(value="1e39")
