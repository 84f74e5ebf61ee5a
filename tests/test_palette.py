"""Colours mean things: the same in figures, explorers and style sheets, and told apart by most eyes."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from infrabook import palette
from infrabook.site import assets

COLOURS = {kind: colour for kind, (colour, _) in palette.KINDS.items()}
# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB
DEFICIENCIES = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}


def linear(colour: str) -> list[float]:
    """A colour's linear red, green and blue."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def lab(rgb: list[float]) -> tuple[float, float, float]:
    """CIELAB of linear RGB, D65."""
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(c * v for c, v in zip(row, rgb, strict=True)) for row in rows]
    x, y, z = (max(v, 0) / white for v, white in zip(xyz, (0.9505, 1.0, 1.089), strict=True))
    f = [v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z)]
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


def luminance(colour: str) -> float:
    """WCAG's relative luminance."""
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def test_the_colours_of_the_design() -> None:
    assert COLOURS == {
        "weights": "#0072B2", "gradients": "#E69F00", "optimizer": "#009E73", "activations": "#CC79A7",
        "kv_cache": "#56B4E9", "buffers": "#8A8A8A",
    }  # fmt: skip
    assert palette.colour("communication") == "#D55E00"
    assert palette.colour("idle") == "none"


def test_every_kind_has_a_colour_of_its_own_and_a_label() -> None:
    assert len(set(COLOURS.values())) == len(COLOURS)
    assert all(re.fullmatch("#[0-9A-F]{6}", colour) for colour in COLOURS.values())
    assert palette.label("kv_cache") == "KV cache"
    assert palette.label("something_new") == "something new"
    assert palette.colour("something_new") == palette.colour("buffers")


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_kinds_are_told_apart_also_with_a_colour_vision_deficiency(deficiency: str) -> None:
    """A difference of 2 in CIELAB is just seen. The closest pair is activations and buffers, 9.0 with deuteranopia."""
    matrix = DEFICIENCIES[deficiency]
    seen = {
        kind: lab([sum(c * v for c, v in zip(row, linear(colour), strict=True)) for row in matrix])
        for kind, colour in COLOURS.items()
    }
    for one, other in combinations(seen, 2):
        distance = sum((a - b) ** 2 for a, b in zip(seen[one], seen[other], strict=True)) ** 0.5
        assert distance > 8.9, f"{one} and {other}: {distance:.1f}"


def test_colours_stand_out_from_paper_and_from_night() -> None:
    for kind, colour in COLOURS.items():
        for ground in ("#fdfcf8", "#16171a"):
            light, dark = sorted((luminance(colour), luminance(ground)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) > 1.9, f"{kind} on {ground}"


def test_style_sheet_has_every_colour_from_here() -> None:
    sheet = assets.variables()
    for kind, colour in COLOURS.items():
        assert f"--book-{kind.replace('_', '-')}: {colour};" in sheet
    assert "none" not in sheet
