"""The vision tower of EVA01-CLIP: a pre-norm vision transformer, with the parameter names of its public checkpoint.

    x = [cls, patches(image)] + positions
    x = x + Attention(LayerNorm(x)); x = x + MLP(LayerNorm(x))        for every block
    tokens = LayerNorm(x)

Queries and values have a bias, keys have none. Defaults are the sizes of ViT-g/14 (`EVA01_CLIP_g_14_psz14_s11B.pt`).
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, interpolate, linear, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from calmrl.errors import InputError

Interpolation = Literal["bicubic", "bilinear"]
EPSILON = 1e-6  # of every LayerNorm


class EvaAttention(nn.Module):
    """Multi-head self-attention; one matrix for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(width))
        self.v_bias = nn.Parameter(torch.zeros(width))
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        qkv = linear(x, self.qkv.weight, bias).unflatten(-1, (3, self.heads, -1))  # (N, T, 3, heads, d)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        return self.proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class EvaMLP(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(gelu(self.fc1(x)))


class EvaBlock(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, drop_path: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, EPSILON), nn.LayerNorm(width, EPSILON)
        self.attn, self.mlp = EvaAttention(width, heads), EvaMLP(width, hidden)
        self.drop_path = drop_path

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._drop(self.attn(self.norm1(x)))
        return x + self._drop(self.mlp(self.norm2(x)))

    def _drop(self, branch: Tensor) -> Tensor:
        """In training, leave the branch out for a share of the items and scale up the others."""
        if not self.training or self.drop_path == 0.0:
            return branch
        keep = torch.rand(len(branch), 1, 1, device=branch.device) >= self.drop_path
        return torch.where(keep, branch / (1 - self.drop_path), 0.0)


class PatchEmbed(nn.Module):
    def __init__(self, width: int, patch_size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch_size, patch_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)  # (N, patches, width)


class EvaVit(nn.Module):
    """Images (N, 3, H, W) -> normalised tokens (N, 1 + patches, width); the first is the summary (CLS).

    `image_size` is the resolution of the position embeddings; for images of another size they are interpolated.
    `output_width` adds the linear layer to CLIP's joint space that `project` applies (None: no such layer, as in VAST).
    `drop_path` grows linearly from 0 at the first block to this value at the last. With `checkpointing` set, blocks are
    computed again in the backward pass instead of keeping their values.
    """

    def __init__(
        self,
        *,
        image_size: int = 224,
        patch_size: int = 14,
        width: int = 1408,
        layers: int = 40,
        heads: int = 16,
        mlp_width: int = 6144,
        output_width: int | None = 1024,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        if width % heads or image_size % patch_size:
            raise InputError(
                f"width {width} must be a multiple of heads {heads}, image_size {image_size} of patch_size {patch_size}"
            )
        self.patch_size, self.width, self.checkpointing = patch_size, width, False
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, (image_size // patch_size) ** 2 + 1, width))
        self.patch_embed = PatchEmbed(width, patch_size)
        step = drop_path / max(1, layers - 1)
        stack = [EvaBlock(width, heads, mlp_width, i * step) for i in range(layers)]
        self.blocks = nn.ModuleList(stack)
        self.norm = nn.LayerNorm(width, EPSILON)
        self.head = None if output_width is None else nn.Linear(width, output_width)
        self._initialise(stack)

    def forward(self, pixels: Tensor) -> Tensor:
        if pixels.ndim != 4 or pixels.shape[1] != 3 or any(side % self.patch_size for side in pixels.shape[2:]):
            raise InputError(
                f"images must have shape (N, 3, H, W) with H and W multiples of {self.patch_size}; "
                f"got {tuple(pixels.shape)}"
            )
        grid = (pixels.shape[2] // self.patch_size, pixels.shape[3] // self.patch_size)
        x = self.patch_embed(pixels)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1).to(x.dtype), x], dim=1)
        x = x + resize_positions(self.pos_embed, grid)
        again = self.checkpointing and torch.is_grad_enabled()
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return self.norm(x)

    def project(self, tokens: Tensor) -> Tensor:
        """The summary in CLIP's joint space, (N, output_width)."""
        if self.head is None:
            raise InputError("this vision tower was built without the layer to the joint space; pass output_width=1024")
        return self.head(tokens[:, 0])

    def freeze(self, blocks: int) -> None:
        """Stop training the first blocks, and with at least one of them all that comes before."""
        freeze_first(self.blocks, blocks, [self.patch_embed, self.cls_token, self.pos_embed])

    def _initialise(self, blocks: list[EvaBlock]) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        with torch.no_grad():
            for depth, block in enumerate(blocks, start=1):  # residual branches start small
                block.attn.proj.weight /= math.sqrt(2 * depth)
                block.mlp.fc2.weight /= math.sqrt(2 * depth)


def resize_positions(positions: Tensor, grid: tuple[int, int], mode: Interpolation = "bicubic") -> Tensor:
    """(1, 1 + side^2, width) -> (1, 1 + rows * columns, width); the position of the summary stays as it is."""
    side = math.isqrt(positions.shape[1] - 1)
    if side * side + 1 != positions.shape[1]:
        raise InputError(f"{positions.shape[1] - 1} positions of patches are not those of a square")
    if grid == (side, side):
        return positions
    square = positions[:, 1:].unflatten(1, (side, side)).permute(0, 3, 1, 2).float()
    resized = interpolate(square, grid, mode=mode, align_corners=False).flatten(2).transpose(1, 2)
    return torch.cat([positions[:, :1], resized.to(positions.dtype)], dim=1)


def freeze_first(blocks: nn.ModuleList, count: int, before: list[nn.Module | nn.Parameter | None]) -> None:
    """requires_grad=False for the first `count` blocks and, if there are any, for what comes before them."""
    if not 0 <= count <= len(blocks):
        raise InputError(f"there are {len(blocks)} blocks; {count} of them cannot be frozen")
    if count:
        for part in [*before, *blocks[:count]]:
            if part is not None:
                part.requires_grad_(False)
