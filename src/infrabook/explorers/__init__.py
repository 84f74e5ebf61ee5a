"""The book's explorers. ``MODULES`` says where each one is, so that a page imports only its own.

To add one: write it in a module of this package, add its name below, show it with ``{explorer}`` in a chapter
or as the last line of a lab's cell. The module has to have another name than the explorer: both are attributes
of this package, and the module would win.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..explore import Explorer

MODULES: dict[str, str] = {  # explorer -> module of this package
    "model_ledger": "ledger",
    "online_softmax": "softmax_steps",
    "recipe_bytes": "recipe",
    "seven_billion": "training_memory",
    "serve_or_train": "capacity",
    "tile_and_traffic": "tiles",
    "work_by_part": "work",
    "roof": "limits",
    "what_it_costs": "trades",
    "product_time": "products",
    "rounded_in_formats": "rounding",
    "quantization_error": "clipping",
    "pipeline_step": "stages",
    "pipeline_schedule": "schedules",
    "collective_steps": "messages",
    "collective_time": "messages",
    "tensor_split": "divided",
    "overlapped": "overlap",
    "layout_search": "search",
    "merge_by_merge": "merges",
    "trainer_work": "trainers",
    "who_keeps_what": "sharing",
    "funnel": "thresholds",
    "loader_timeline": "feeding",
    "bytes_read": "storage",
    "both_ends": "vocabulary",
    "cut_into_heads": "heads",
    "hidden_strip": "strips",
    "gradient_reach": "reach",
    "one_iteration": "moments",
}


def __getattr__(name: str) -> Explorer:
    """``from infrabook.explorers import model_ledger`` in a lab, without importing the others."""
    if name not in MODULES:
        raise AttributeError(f"there is no explorer {name!r}")
    from ..explore import load

    return load(name)
