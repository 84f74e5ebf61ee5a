"""What each colour means, everywhere: in figures, explorers and the style sheet.

The hues are Okabe and Ito's, told apart under the common colour-vision deficiencies; a label or a pattern
always stands beside the colour.
"""

KINDS: dict[str, tuple[str, str]] = {  # kind of a ledger row -> (colour, label)
    "weights": ("#0072B2", "weights"),
    "gradients": ("#E69F00", "gradients"),
    "optimizer": ("#009E73", "optimizer states"),
    "activations": ("#CC79A7", "activations"),
    "kv_cache": ("#56B4E9", "KV cache"),
    "buffers": ("#8A8A8A", "buffers and workspace"),
}

PHASES: dict[str, tuple[str, str]] = {  # kind of a span in a time chart -> (colour, label)
    "forward": ("#56B4E9", "forward"),
    "backward": ("#0072B2", "backward"),  # undivided: by input and by weight in one
    "backward_input": ("#0072B2", "backward by input"),
    "backward_weight": ("#009E73", "backward by weight"),
    "communication": ("#D55E00", "communication"),
    "load": ("#E69F00", "load"),  # data on its way to a training loop
    "transform": ("#CC79A7", "transform"),
    "copy": ("#D55E00", "copy"),
    "step": ("#0072B2", "step"),
    "idle": ("none", "idle"),
}


def colour(kind: str) -> str:
    """The colour of a ledger row or time span of this kind; grey for a kind without a meaning of its own.

    >>> colour("weights")
    '#0072B2'
    """
    return (KINDS | PHASES).get(kind, KINDS["buffers"])[0]


def tint(kind: str, step: float) -> str:
    """The colour of ``kind``, ``step`` of the way to white: 0 is the colour itself, for parts of one kind.

    >>> tint("forward", 0), tint("forward", 0.5)
    ('#56B4E9', '#AADAF4')
    """
    whole = colour(kind)
    parts = (int(whole[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * step):02X}" for part in parts)


def ink(ground: str) -> str:
    """Black or white, whichever reads better on the colour ``ground``.

    >>> ink("#56B4E9"), ink("#0072B2")
    ('#000', '#fff')
    """
    red, green, blue = ((int(ground[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5))
    return "#000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#fff"


def label(kind: str) -> str:
    """The legend's words for a kind.

    >>> label("optimizer")
    'optimizer states'
    """
    return (KINDS | PHASES).get(kind, (kind, kind.replace("_", " ")))[1]
