"""The small models that labs train and measure, in PyTorch: real code built from a ``models.Transformer``."""
