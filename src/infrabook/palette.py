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
    "backward_input": ("#0072B2", "backward by input"),
    "backward_weight": ("#009E73", "backward by weight"),
    "communication": ("#D55E00", "communication"),
    "idle": ("none", "idle"),
}


def colour(kind: str) -> str:
    """The colour of a ledger row or time span of this kind; grey for a kind without a meaning of its own.

    >>> colour("weights")
    '#0072B2'
    """
    return (KINDS | PHASES).get(kind, KINDS["buffers"])[0]


def label(kind: str) -> str:
    """The legend's words for a kind.

    >>> label("optimizer")
    'optimizer states'
    """
    return (KINDS | PHASES).get(kind, (kind, kind.replace("_", " ")))[1]
