"""Transformers in PyTorch from the same dimensions that the accounts use, one class an architecture.

Module names follow the ledger's rows, so that what is counted and what is built can be compared line by line.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import InfrabookError
from ..models import Transformer


def bytewise_dropout(x: Tensor, p: float) -> Tensor:
    """Dropout that keeps a mask of one byte an element on every device, as CUDA's kernel does.

    ``F.dropout`` on a CPU multiplies by a mask of the activation's own dtype, and saves that.
    """
    return torch.native_dropout(x, p, True)[0] if p else x


class RMSNorm(nn.Module):
    """RMSNorm with its arithmetic in fp32 (``composite``, as most published code has it) or by ``F.rms_norm``."""

    def __init__(self, width: int, *, composite: bool = False, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.composite, self.eps = composite, eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> the same."""
        if not self.composite:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotary_tables(
    length: int, dim: int, dtype: torch.dtype, *, base: float = 10_000.0, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary positions, each (length, dim)."""
    frequencies = base ** (-torch.arange(0, dim, 2, device=device) / dim)
    angles = torch.arange(length, device=device)[:, None] * frequencies
    both = torch.cat((angles, angles), dim=-1)
    return both.cos().to(dtype), both.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions applied to (batch, heads, length, dim)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class LlamaAttention(nn.Module):
    """Causal attention with grouped keys and values and rotary positions."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        h, d = model.hidden, model.head_dim
        self.head_dim = d
        self.grouped = model.kv_heads != model.heads
        self.query = nn.Linear(h, model.heads * d, bias=model.qkv_bias)
        self.key = nn.Linear(h, model.kv_heads * d, bias=model.qkv_bias)
        self.value = nn.Linear(h, model.kv_heads * d, bias=model.qkv_bias)
        self.output = nn.Linear(model.heads * d, h, bias=model.out_bias)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(batch, length, hidden) -> the same."""
        batch, length, _ = x.shape
        q, k, v = (
            project(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped)
        return self.output(out.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.gate = nn.Linear(model.hidden, model.ffn, bias=model.ffn_bias)
        self.up = nn.Linear(model.hidden, model.ffn, bias=model.ffn_bias)
        self.down = nn.Linear(model.ffn, model.hidden, bias=model.ffn_bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) -> the same."""
        return self.down(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class LlamaBlock(nn.Module):
    """One layer of Llama."""

    def __init__(self, model: Transformer, *, composite_norm: bool = False) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(model.hidden, composite=composite_norm)
        self.attention = LlamaAttention(model)
        self.ffn_norm = RMSNorm(model.hidden, composite=composite_norm)
        self.ffn = SwiGLU(model)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(batch, length, hidden) -> the same."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))  # type: ignore[no-any-return]


class Llama(nn.Module):
    """A decoder of ``model``'s dimensions; called with token ids and targets it returns the mean loss.

    ``recompute`` checkpoints every layer; logits are cast to fp32 for the loss unless ``fp32_logits`` is off.
    """

    def __init__(
        self, model: Transformer, *, composite_norm: bool = False, recompute: bool = False, fp32_logits: bool = True
    ) -> None:
        super().__init__()
        if model.norm != "rmsnorm" or not model.gated or model.moe or model.mla or model.positions != "rope":
            raise InfrabookError(f"{model.name} is not of Llama's shape (RMSNorm, SwiGLU, rotary positions, dense)")
        self.model, self.recompute, self.fp32_logits = model, recompute, fp32_logits
        self.embedding = nn.Embedding(model.vocab, model.hidden)
        self.layers = nn.ModuleList(LlamaBlock(model, composite_norm=composite_norm) for _ in range(model.layers))
        self.norm = RMSNorm(model.hidden, composite=composite_norm)
        self.head = nn.Linear(model.hidden, model.vocab, bias=False)
        if model.tied:
            self.head.weight = self.embedding.weight

    def logits(self, ids: Tensor) -> Tensor:
        """(batch, length) token ids -> (batch, length, vocab)."""
        x = self.embedding(ids)
        cos, sin = rotary_tables(ids.shape[1], self.model.head_dim, x.dtype, device=x.device)
        for layer in self.layers:
            x = checkpoint(layer, x, cos, sin, use_reentrant=False) if self.recompute else layer(x, cos, sin)
        return self.head(self.norm(x))  # type: ignore[no-any-return]

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of (batch, length) targets."""
        logits = self.logits(ids).flatten(0, 1)
        return F.cross_entropy(logits.float() if self.fp32_logits else logits, targets.flatten())


class GPTBlock(nn.Module):
    """One layer of GPT-2, with attention written out (``eager``) or fused (``flash``).

    ``selective`` checkpoints what lies between the queries, keys and values and attention's output: Korthikanti et
    al.'s selective recomputation.
    """

    def __init__(
        self, model: Transformer, *, dropout: float = 0.1, attention: Literal["eager", "flash"] = "eager",
        mask_bytes: Literal[1, 2] = 1, selective: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        h = model.hidden
        self.heads, self.p, self.kind, self.selective = model.heads, dropout, attention, selective
        self.drop = bytewise_dropout if mask_bytes == 1 else F.dropout
        self.attention_norm, self.ffn_norm = nn.LayerNorm(h), nn.LayerNorm(h)
        self.query, self.key, self.value, self.output = (nn.Linear(h, h) for _ in range(4))
        self.up, self.down = nn.Linear(h, model.ffn), nn.Linear(model.ffn, h)

    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention itself, written out, over (batch, heads, length, dim)."""
        length = q.shape[-2]
        scores = (q @ k.transpose(-1, -2)) * (1 / math.sqrt(q.shape[-1]))
        hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        return self.drop(F.softmax(scores.masked_fill(hidden, -math.inf), dim=-1), self.p) @ v

    def attend(self, x: Tensor) -> Tensor:
        """Causal self-attention over (batch, length, hidden)."""
        batch, length, _ = x.shape
        q, k, v = (
            project(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        if self.kind == "flash":
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            out = checkpoint(self.core, q, k, v, use_reentrant=False) if self.selective else self.core(q, k, v)
        return self.output(out.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, hidden) -> the same."""
        x = x + self.drop(self.attend(self.attention_norm(x)), self.p)
        return x + self.drop(self.down(F.gelu(self.up(self.ffn_norm(x)), approximate="tanh")), self.p)


class GPT(nn.Module):
    """GPT-2 of ``model``'s dimensions: learned positions, LayerNorm, a head tied to the embedding if the model's is.

    ``recompute`` checkpoints every layer. Called with ids and targets it returns the mean loss.
    """

    def __init__(
        self, model: Transformer, *, dropout: float = 0.0, attention: Literal["eager", "flash"] = "eager",
        recompute: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if model.norm != "layernorm" or model.gated or model.moe or model.positions != "learned":
            raise InfrabookError(f"{model.name} is not of GPT-2's shape (LayerNorm, two matrices, learned positions)")
        self.recompute = recompute
        self.embedding = nn.Embedding(model.vocab, model.hidden)
        self.positions = nn.Embedding(model.context, model.hidden)
        self.layers = nn.ModuleList(GPTBlock(model, dropout=dropout, attention=attention) for _ in range(model.layers))
        self.norm = nn.LayerNorm(model.hidden)
        self.head = nn.Linear(model.hidden, model.vocab, bias=False)
        if model.tied:
            self.head.weight = self.embedding.weight

    def logits(self, ids: Tensor) -> Tensor:
        """(batch, length) token ids -> (batch, length, vocab)."""
        x = self.embedding(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of (batch, length) targets."""
        return F.cross_entropy(self.logits(ids).flatten(0, 1).float(), targets.flatten())
