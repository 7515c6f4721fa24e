"""Slow, obvious twins of the towers: one item, one head, one query at a time, straight from a state dict."""

from __future__ import annotations

import math

import torch

State = dict[str, torch.Tensor]


def layer_norm(x: torch.Tensor, state: State, name: str, epsilon: float) -> torch.Tensor:
    rows = []
    for row in x:
        centred = row - row.mean()
        rows.append(centred / torch.sqrt((centred**2).mean() + epsilon))
    return torch.stack(rows) * state[f"{name}.weight"] + state[f"{name}.bias"]


def affine(x: torch.Tensor, state: State, name: str) -> torch.Tensor:
    out = x @ state[f"{name}.weight"].T
    return out + state[f"{name}.bias"] if f"{name}.bias" in state else out


def gelu(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """(T, width) queries against (S, width) keys; bias (heads, T, S)."""
    size = q.shape[1] // heads
    out = torch.zeros_like(q)
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        for i in range(len(q)):
            scores = torch.stack([(q[i, part] * k[j, part]).sum() / math.sqrt(size) for j in range(len(k))])
            if bias is not None:
                scores = scores + bias[h, i]
            weights = torch.exp(scores - scores.max())
            weights = weights / weights.sum()
            out[i, part] = sum(weights[j] * v[j, part] for j in range(len(k)))
    return out


def eva(picture: torch.Tensor, state: State, heads: int) -> torch.Tensor:
    """One picture (3, H, W) whose grid is that of the position embeddings -> (1 + patches, width)."""
    kernel = state["patch_embed.proj.weight"]
    size = kernel.shape[-1]
    tokens = [state["cls_token"][0, 0]]
    for top in range(0, picture.shape[1], size):
        for left in range(0, picture.shape[2], size):
            patch = picture[:, top : top + size, left : left + size]
            tokens.append((kernel * patch).sum((1, 2, 3)) + state["patch_embed.proj.bias"])
    x = torch.stack(tokens) + state["pos_embed"][0]
    width = x.shape[1]
    n = 0
    while f"blocks.{n}.norm1.weight" in state:
        at = f"blocks.{n}"
        y = layer_norm(x, state, f"{at}.norm1", 1e-6)
        weight = state[f"{at}.attn.qkv.weight"]
        q = y @ weight[:width].T + state[f"{at}.attn.q_bias"]
        k = y @ weight[width : 2 * width].T
        v = y @ weight[2 * width :].T + state[f"{at}.attn.v_bias"]
        x = x + affine(attention(q, k, v, heads), state, f"{at}.attn.proj")
        y = layer_norm(x, state, f"{at}.norm2", 1e-6)
        x = x + affine(gelu(affine(y, state, f"{at}.mlp.fc1")), state, f"{at}.mlp.fc2")
        n += 1
    return layer_norm(x, state, "norm", 1e-6)


def bucket(distance: int, buckets: int, max_distance: int) -> int:
    half = buckets // 2
    first = half if distance > 0 else 0
    distance = abs(distance)
    exact = half // 2
    if distance < exact:
        return first + distance
    far = exact + int(math.log(distance / exact) / math.log(max_distance / exact) * (half - exact))
    return first + min(far, half - 1)


def beats(fbank: torch.Tensor, state: State, heads: int, groups: int, max_distance: int) -> torch.Tensor:
    """One spectrogram (frames, bins) -> (tokens, width)."""
    kernel = state["patch_embedding.weight"][:, 0]  # (embed, 16, 16)
    size = kernel.shape[-1]
    tokens = []
    for time in range(0, fbank.shape[0] - size + 1, size):
        for tone in range(0, fbank.shape[1] - size + 1, size):
            tokens.append((kernel * fbank[time : time + size, tone : tone + size]).sum((1, 2)))
    x = layer_norm(torch.stack(tokens), state, "layer_norm", 1e-5)
    x = affine(x, state, "post_extract_proj")
    length, width = x.shape
    v, g = state["encoder.pos_conv.0.weight_v"], state["encoder.pos_conv.0.weight_g"]
    places = v.shape[2]
    added = state["encoder.pos_conv.0.bias"].repeat(length, 1)
    share = width // groups
    for place in range(places):
        weight = v[:, :, place] * g[0, 0, place] / torch.sqrt((v[:, :, place] ** 2).sum())
        for i in range(length):
            j = i + place - places // 2
            if 0 <= j < length:
                for group in range(groups):
                    part = slice(group * share, (group + 1) * share)
                    added[i, part] = added[i, part] + weight[part] @ x[j, part]
    x = layer_norm(x + gelu(added), state, "encoder.layer_norm", 1e-5)
    table = state["encoder.layers.0.self_attn.relative_attention_bias.weight"]  # (buckets, heads)
    bias = torch.stack(
        [torch.stack([table[bucket(j - i, len(table), max_distance)] for j in range(length)]) for i in range(length)]
    ).permute(2, 0, 1)
    layers = 0
    while f"encoder.layers.{layers}.fc1.weight" in state:
        layers += 1
    alpha = math.pow(2 * layers, 0.25)
    for n in range(layers):
        at = f"encoder.layers.{n}"
        q, k, v = (affine(x, state, f"{at}.self_attn.{name}_proj") for name in "qkv")
        gated = torch.zeros_like(bias)
        d = width // heads
        for h in range(heads):
            for i in range(length):
                eight = affine(q[i, h * d : (h + 1) * d], state, f"{at}.self_attn.grep_linear")
                one, two = torch.sigmoid(eight[:4].sum()), torch.sigmoid(eight[4:].sum())
                gate = one * (two * state[f"{at}.self_attn.grep_a"][0, h, 0, 0] - 1) + 2
                gated[h, i] = gate * bias[h, i]
        branch = affine(attention(q, k, v, heads, gated), state, f"{at}.self_attn.out_proj")
        x = layer_norm(alpha * x + branch, state, f"{at}.self_attn_layer_norm", 1e-5)
        branch = affine(gelu(affine(x, state, f"{at}.fc1")), state, f"{at}.fc2")
        x = layer_norm(alpha * x + branch, state, f"{at}.final_layer_norm", 1e-5)
    return x


def bert(ids: list[int], state: State, heads: int, others: torch.Tensor | None = None) -> torch.Tensor:
    """BERT on one text without padding; with `others` (S, width) every layer also attends to them."""
    x = torch.stack(
        [
            state["embeddings.word_embeddings.weight"][token]
            + state["embeddings.position_embeddings.weight"][place]
            + state["embeddings.token_type_embeddings.weight"][0]
            for place, token in enumerate(ids)
        ]
    )
    x = layer_norm(x, state, "embeddings.LayerNorm", 1e-12)
    n = 0
    while f"encoder.layer.{n}.output.dense.weight" in state:
        kinds = [("attention", None)] + ([] if others is None else [("crossattention", others)])
        for kind, source in kinds:
            at = f"encoder.layer.{n}.{kind}"
            seen = x if source is None else source
            q = affine(x, state, f"{at}.self.query")
            k, v = affine(seen, state, f"{at}.self.key"), affine(seen, state, f"{at}.self.value")
            y = affine(attention(q, k, v, heads), state, f"{at}.output.dense")
            x = layer_norm(x + y, state, f"{at}.output.LayerNorm", 1e-12)
        at = f"encoder.layer.{n}"
        y = affine(gelu(affine(x, state, f"{at}.intermediate.dense")), state, f"{at}.output.dense")
        x = layer_norm(x + y, state, f"{at}.output.LayerNorm", 1e-12)
        n += 1
    return x


def part_of(state: State, prefix: str) -> State:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def match(ids: list[int], seen: dict[str, torch.Tensor], state: State, heads: int) -> torch.Tensor:
    """The two scores for one text and the tokens of the other modalities of one row.

    `seen` has only what is there: vision (frames, T, d), audio (slices, T, d), subtitle (T, d).
    """
    tokens = []
    for name, value in seen.items():
        frames = value[None] if name == "subtitle" else value
        for number, frame in enumerate(frames):
            x = affine(frame, state, f"matching.project.{name}.0")
            x = layer_norm(x, state, f"matching.project.{name}.1", 1e-12)
            if name != "subtitle":
                x = x + state[f"matching.frame.{name}"][0, number]
            tokens.append(x + state[f"matching.kind.{name}"][0, 0])
    first = bert(ids, part_of(state, "bert."), heads, torch.cat(tokens))[:1]
    x = gelu(affine(first, state, "matching.head.linear1"))
    return affine(layer_norm(x, state, "matching.head.layernorm", 1e-12), state, "matching.head.linear2")[0]
