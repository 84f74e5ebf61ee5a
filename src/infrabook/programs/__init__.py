"""Programs of Part 4: what several ranks run, the same under ``launch`` in a lab and under ``torchrun`` anywhere.

``torchrun --nproc-per-node 2 -m infrabook.programs.NAME key=value ...``
"""
