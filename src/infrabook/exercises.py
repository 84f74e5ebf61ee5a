"""The answers to the labs' exercises, computed by the library; ``lab.check`` compares without telling.

One section a chapter. A mistake worth naming has its own word for the reader who makes it.
"""

from __future__ import annotations
