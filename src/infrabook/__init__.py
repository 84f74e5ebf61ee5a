"""Ledgers of memory, work and communication for machine learning, and the witnesses that check them.

Facts (``hardware``, ``models``) go into accounts (``parameters``, ``memory``, ``kv_cache``), which return a
``Ledger``; a recorded number, a figure, an explorer and a command's output are views of one.
"""

__version__ = "0.1.0"
