"""The towers of VAST, with the parameter names of their public checkpoints.

EVA01-CLIP, the vision tower, is a pre-norm vision transformer:

    x = [cls, patches(image)] + positions
    x = x + Attention(LayerNorm(x)); x = x + MLP(LayerNorm(x))        for every block
    tokens = LayerNorm(x)

Queries and values have a bias, keys have none. Defaults are the sizes of ViT-g/14 (`EVA01_CLIP_g_14_psz14_s11B.pt`).

BEATs (iter3+) sends patches of a log-mel spectrogram through a post-norm transformer:

    x = LayerNorm(p + GELU(conv(p))),   p = Linear(LayerNorm(patches(fbank)))
    x = LayerNorm(a x + Attention(x)); x = LayerNorm(a x + MLP(x)),   a = (2 layers)^(1/4) (DeepNorm), else 1

Attention of head h from position i to j: softmax_j(q_i k_j / sqrt(d) + g_i b_h(j - i)). The bias b_h is one number per
bucket of distances, shared by all layers; the gate of each layer and query is
g = s_1 (s_2 c_h - 1) + 2, (s_1, s_2) = sigmoid(sums of the two halves of Linear(q), 8 numbers), with c_h learned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, dropout, gelu, interpolate, linear, scaled_dot_product_attention
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


CFG = {  # argument of Beats -> its key in the cfg of a checkpoint, and the public default for a cfg that does not say it
    "patch_size": ("input_patch_size", -1),
    "embed_width": ("embed_dim", 512),
    "width": ("encoder_embed_dim", 768),
    "layers": ("encoder_layers", 12),
    "heads": ("encoder_attention_heads", 12),
    "mlp_width": ("encoder_ffn_embed_dim", 3072),
    "kernel": ("conv_pos", 128),
    "groups": ("conv_pos_groups", 16),
    "buckets": ("num_buckets", 320),
    "max_distance": ("max_distance", 1280),
    "patch_bias": ("conv_bias", False),
    "input_dropout": ("dropout_input", 0.0),
    "layer_drop": ("encoder_layerdrop", 0.0),
    "gradient_decay": ("layer_wise_gradient_decay_ratio", 1.0),
    "deep_norm": ("deep_norm", False),
}
CFG_DROPS = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.0}  # key -> public default
CFG_FIXED = {  # key -> the one value that is known, and the public default
    "layer_norm_first": (False, False),
    "activation_fn": ("gelu", "gelu"),
    "relative_position_embedding": (True, False),
    "gru_rel_pos": (True, False),
    "finetuned_model": (False, False),
}
SHARED = "relative_attention_bias.weight"


class BeatsAttention(nn.Module):
    def __init__(self, width: int, heads: int, buckets: int | None) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.grep_linear = nn.Linear(width // heads, 8)
        self.grep_a = nn.Parameter(torch.ones(1, heads, 1, 1))
        if buckets is not None:  # the first layer holds the bias of all
            self.relative_attention_bias = nn.Embedding(buckets, heads)

    def forward(self, x: Tensor, bias: Tensor, drop: float) -> Tensor:
        q, k, v = (
            projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (N, heads, T, d)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        first, second = self.grep_linear(q).unflatten(-1, (2, 4)).sum(-1).sigmoid().unbind(-1)  # (N, heads, T) each
        gate = first[..., None] * (second[..., None] * self.grep_a - 1.0) + 2.0
        out = scaled_dot_product_attention(q, k, v, attn_mask=(gate * bias).to(q.dtype), dropout_p=drop)
        return self.out_proj(out.transpose(1, 2).flatten(2))


class BeatsLayer(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, alpha: float, buckets: int | None, drops: Drops) -> None:
        super().__init__()
        self.self_attn = BeatsAttention(width, heads, buckets)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.final_layer_norm = nn.LayerNorm(width)
        self.alpha, self.drops = alpha, drops

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        after, attention, inner = self.drops if self.training else (0.0, 0.0, 0.0)
        branch = dropout(self.self_attn(x, bias, attention), after, self.training)
        x = self.self_attn_layer_norm(self.alpha * x + branch)
        branch = self.fc2(dropout(gelu(self.fc1(x)), inner, self.training))
        return self.final_layer_norm(self.alpha * x + dropout(branch, after, self.training))


Drops = tuple[float, float, float]  # dropout after a branch, of attention, inside the MLP


class PositionConv(nn.Module):
    """A grouped convolution over time with weight g v / |v|; the norm is taken for each place of the kernel."""

    def __init__(self, width: int, kernel: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.bias = nn.Parameter(torch.zeros(width))
        self.weight_v = nn.Parameter(torch.randn(width, width // groups, kernel) * math.sqrt(4 / (kernel * width)))
        self.weight_g = nn.Parameter(self.weight_v.detach().norm(dim=(0, 1), keepdim=True))

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) -> the same shape."""
        kernel = self.weight_v.shape[2]
        weight = self.weight_g * self.weight_v / self.weight_v.norm(dim=(0, 1), keepdim=True)
        out = conv1d(x.transpose(1, 2), weight, self.bias, padding=kernel // 2, groups=self.groups)
        return gelu(out[..., : x.shape[1]]).transpose(1, 2)  # an even kernel gives one place too many


class BeatsEncoder(nn.Module):
    def __init__(self, layers: list[BeatsLayer], width: int, kernel: int, groups: int) -> None:
        super().__init__()
        self.pos_conv = nn.ModuleList([PositionConv(width, kernel, groups)])
        self.layer_norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(layers)

    def bias_of_distances(self) -> nn.Embedding:
        first = self.layers[0]
        assert isinstance(first, BeatsLayer)
        return first.self_attn.relative_attention_bias

    def position_groups(self) -> int:
        convolution = self.pos_conv[0]
        assert isinstance(convolution, PositionConv)
        return convolution.groups


class Beats(nn.Module):
    """Filter banks (N, frames, bins) -> tokens (N, frames / 16 * bins / 16, width), time first.

    Inputs as `calmrl.data.beats_fbank` makes them. `layer_drop` leaves out a layer with this probability in
    training; `gradient_decay` scales the gradient at the entrance of every layer. Both belong to the published recipe
    and are read from the checkpoint's cfg by `from_cfg`.
    """

    def __init__(
        self,
        *,
        patch_size: int = 16,
        embed_width: int = 512,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
        mlp_width: int = 3072,
        kernel: int = 128,
        groups: int = 16,
        buckets: int = 320,
        max_distance: int = 800,
        patch_bias: bool = False,
        drops: Drops = (0.0, 0.0, 0.0),
        input_dropout: float = 0.0,
        layer_drop: float = 0.0,
        gradient_decay: float = 1.0,
        deep_norm: bool = True,
    ) -> None:
        super().__init__()
        if width % heads or width % groups:
            raise InputError(f"width {width} must be a multiple of heads {heads} and of groups {groups}")
        self.width, self.patch_size, self.max_distance, self.checkpointing = width, patch_size, max_distance, False
        self.dropouts = (input_dropout, drops[0])
        self.layer_drop, self.gradient_decay, self.deep_norm = layer_drop, gradient_decay, deep_norm
        self.patch_embedding = nn.Conv2d(1, embed_width, patch_size, patch_size, bias=patch_bias)
        self.layer_norm = nn.LayerNorm(embed_width)
        self.post_extract_proj = None if embed_width == width else nn.Linear(embed_width, width)
        alpha = (2 * layers) ** 0.25 if deep_norm else 1.0
        stack = [BeatsLayer(width, heads, mlp_width, alpha, buckets if i == 0 else None, drops) for i in range(layers)]
        self.encoder = BeatsEncoder(stack, width, kernel, groups)
        self._initialise(stack)
        self.register_load_state_dict_pre_hook(_one_shared_bias)

    @classmethod
    def from_cfg(cls, cfg: Mapping[str, Any]) -> Beats:
        """The model that the `cfg` of an official checkpoint describes; keys it lacks have their public defaults."""
        for key, (value, default) in CFG_FIXED.items():
            got = cfg.get(key, default)
            if got != value:
                raise InputError(f"cfg has {key}={got!r}; only {value!r} is known, as in BEATs_iter3_plus_AS2M.pt")
        arguments: dict[str, Any] = {name: cfg.get(key, default) for name, (key, default) in CFG.items()}
        if arguments["patch_size"] < 1:
            raise InputError("the cfg of this checkpoint has no input_patch_size; it is not one of BEATs")
        after, attention, inner = (cfg.get(key, default) for key, default in CFG_DROPS.items())
        return cls(**arguments, drops=(after, attention, inner))

    def forward(self, fbank: Tensor) -> Tensor:
        if fbank.ndim != 3 or min(fbank.shape[1:]) < self.patch_size:
            raise InputError(
                f"filter banks must have shape (N, frames, bins), both at least {self.patch_size} long; "
                f"got {tuple(fbank.shape)}"
            )
        x = self.layer_norm(self.patch_embedding(fbank[:, None]).flatten(2).transpose(1, 2))
        x = x if self.post_extract_proj is None else self.post_extract_proj(x)
        x = dropout(x, self.dropouts[0], self.training)
        x = self.encoder.layer_norm(x + self.encoder.pos_conv[0](x))
        x = dropout(x, self.dropouts[1], self.training)
        bias = self._bias(x.shape[1])
        again = self.checkpointing and torch.is_grad_enabled()
        for layer in self.encoder.layers:
            if self.gradient_decay != 1.0 and x.requires_grad:
                x = self.gradient_decay * x + (1 - self.gradient_decay) * x.detach()
            if self.training and self.layer_drop and float(torch.rand(())) <= self.layer_drop:
                continue
            x = checkpoint(layer, x, bias, use_reentrant=False) if again else layer(x, bias)
        return x

    def freeze(self, blocks: int) -> None:
        """Stop training the first layers, and with at least one of them all that comes before and the shared bias."""
        before = [self.patch_embedding, self.layer_norm, self.post_extract_proj, *self.encoder.pos_conv]
        freeze_first(self.encoder.layers, blocks, [*before, self.encoder.layer_norm])

    def _bias(self, length: int) -> Tensor:
        """(heads, length, length) the bias of every pair of positions."""
        table = self.encoder.bias_of_distances()
        place = torch.arange(length, device=table.weight.device)
        buckets = relative_buckets(place[None, :] - place[:, None], table.num_embeddings, self.max_distance)
        return table(buckets).permute(2, 0, 1)

    def _initialise(self, layers: list[BeatsLayer]) -> None:
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
                if isinstance(module, nn.Linear):
                    nn.init.zeros_(module.bias)
        beta = (8 * len(layers)) ** -0.25  # DeepNorm
        for layer in layers:
            attention = layer.self_attn
            for projection in (attention.q_proj, attention.k_proj):
                nn.init.xavier_normal_(projection.weight)
            for projection in (attention.v_proj, attention.out_proj, layer.fc1, layer.fc2):
                nn.init.xavier_normal_(projection.weight, gain=beta)


def relative_buckets(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Bucket of each distance: one half for what lies before, one for after; near ones exact, far ones logarithmic."""
    half = buckets // 2
    exact = half // 2
    far = distance.abs().clamp(min=exact).float() / exact
    scaled = exact + (far.log() / math.log(max_distance / exact) * (half - exact)).long()
    near = torch.where(distance.abs() < exact, distance.abs(), scaled.clamp(max=half - 1))
    return near + half * (distance > 0)


def _one_shared_bias(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Official files repeat the shared bias for every layer: drop the copies, after checking that they are copies."""
    own = state.get(f"{prefix}encoder.layers.0.self_attn.{SHARED}")
    for key in [key for key in state if key.startswith(f"{prefix}encoder.layers.") and key.endswith(SHARED)]:
        if key != f"{prefix}encoder.layers.0.self_attn.{SHARED}" and own is not None and torch.equal(state[key], own):
            del state[key]  # one that differs stays, and is an error as an unexpected key
