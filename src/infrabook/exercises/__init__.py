"""The answers to the labs' exercises, one module a chapter, computed by the library; ``lab.check`` compares.

Named ``chapter/number``. A mistake worth naming has its own word for the reader who makes it.
"""
