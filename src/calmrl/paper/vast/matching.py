"""The matching encoder of VAST: does this text belong to what is seen and heard?"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, pad

from calmrl._support.distributed import all_sum, gather_headers, gather_rows, world
from calmrl.arrays import full_precision
from calmrl.errors import InputError, need
from calmrl.losses.matching import hard_pairs, promote
from calmrl.models.joint import spread


def build_bert(
    *,
    vocabulary: int = 30_522,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    mlp_width: int = 3072,
    positions: int = 512,
    dropout: float = 0.1,
    cross_attention: bool = True,
) -> Any:
    """A BertModel with random weights, without pooling layer; the defaults are the sizes of bert-base-uncased."""
    transformers = need("transformers", "encoders", "BERT")
    config = transformers.BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=mlp_width,
        max_position_embeddings=positions,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        is_decoder=cross_attention,  # transformers builds cross-attention for decoders only
        add_cross_attention=cross_attention,
        use_cache=False,  # no text is generated
    )
    bert = transformers.BertModel(config, add_pooling_layer=False)
    config.is_decoder = False  # ... but every token sees every other
    for layer in bert.encoder.layer:
        layer.attention.self.is_causal = False
    return bert


def bert_tokens(
    bert: Any, text: Mapping[str, Tensor], conditions: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Hidden states (N, L, width) of `input_ids` and `attention_mask`, perhaps with cross-attention to `conditions`."""
    tokens = {"input_ids": text["input_ids"], "attention_mask": text["attention_mask"]}
    return bert(**tokens, encoder_hidden_states=conditions, encoder_attention_mask=mask).last_hidden_state


def check_text(name: str, value: Any) -> Mapping[str, Tensor]:
    """Token ids and mask of the rows that have a text, of one shape (n, L)."""
    if not isinstance(value, Mapping) or not {"input_ids", "attention_mask"} <= set(value):
        raise InputError(f"inputs[{name!r}] must be a dict with input_ids and attention_mask, both (rows, tokens)")
    if value["input_ids"].ndim != 2 or value["input_ids"].shape != value["attention_mask"].shape:
        raise InputError(
            f"input_ids and attention_mask of {name!r} must both have shape (rows, tokens); got "
            f"{tuple(value['input_ids'].shape)} and {tuple(value['attention_mask'].shape)}"
        )
    return value


def set_checkpointing(bert: Any, on: bool) -> None:
    """Compute layers again in the backward pass instead of keeping their values."""
    if on:
        bert.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    else:
        bert.gradient_checkpointing_disable()


FLOOR = 1e-4  # added to the softmax of negatives in the public code
Conditions = tuple[Tensor, Tensor]  # tokens (N, S, hidden), and which of them are there (N, S)


class MatchHead(nn.Module):
    """Linear - GELU - LayerNorm - Linear(2)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(width, width), nn.Linear(width, 2)
        self.layernorm = nn.LayerNorm(width, 1e-12)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.layernorm(nn.functional.gelu(self.linear1(x))))


class VastMatching(nn.Module):
    """Cross-entropy of "matched or not" for each row's own text and two hard negatives.

    The text goes through the model's BERT with cross-attention to the tokens of all other modalities that the row has:
    Linear + LayerNorm to BERT's width, plus an embedding of the frame (vision, audio) and of the modality. A head on the
    first token decides. Negatives: the text with the others of a row drawn from softmax_j(sim_ij / temperature) + floor,
    and the others with the text of a row drawn from the other direction; the own row is never drawn, though with a floor
    it counts in the softmax. sim_ij is the cosine of text i with the fused vector of row j, or without fused heads the
    mean cosine with its others. The temperature is not trained; checkpoints of VAST bring theirs (`contra_temp`).

    | input | meaning |
    |---|---|
    | z, present | what the model gave, and which rows have what |
    | tokens | the second part of what `encode` gave |
    | generator | of the draws; None uses torch's global one |

    Several processes draw among the rows of all of them; no gradient goes to the tokens of another process. As in the
    public model, padding of a subtitle counts as tokens.
    """

    bert: Any
    temperature: Tensor

    def __init__(
        self,
        bert: Any,
        widths: Mapping[str, int],
        names: Iterable[str],
        *,
        frames: int,
        slices: int,
        temperature: float,
        floor: float | None = FLOOR,
    ) -> None:
        super().__init__()
        self.__dict__["bert"] = bert  # not a part of this module: it belongs to the model and is saved there, once
        self.names, self.floor = tuple(names), floor
        self.register_buffer("temperature", torch.tensor(float(temperature)))
        self.register_load_state_dict_pre_hook(_older_models)
        if "text" not in self.names or len(self.names) < 2:
            raise InputError(f"matching needs text and at least one other modality; got {', '.join(self.names)}")
        hidden = bert.config.hidden_size
        project = {name: nn.Sequential(nn.Linear(d, hidden), nn.LayerNorm(hidden, 1e-12)) for name, d in widths.items()}
        self.project = nn.ModuleDict(project)
        self.kind = nn.ParameterDict({name: torch.randn(1, 1, hidden) * 0.02 for name in widths})
        counts = {"vision": frames, "audio": slices}
        frame = {name: torch.randn(1, counts[name], hidden) * 0.02 for name in widths if name in counts}
        self.frame = nn.ParameterDict(frame)
        self.head = MatchHead(hidden)

    def forward(
        self,
        z: Mapping[str, Tensor],
        present: Tensor,
        *,
        tokens: Mapping[str, Any],
        generator: torch.Generator | None = None,
    ) -> Tensor:
        column = self.names.index("text")
        conditions, text = self.conditions(tokens, present), tokens["text"]
        with torch.no_grad(), full_precision(present):
            has_text, has = present[:, column], torch.cat([present[:, :column], present[:, column + 1 :]], dim=1)
            summaries = torch.cat([z["text"].float(), self._others(z, has, tokens.get("fused"))], dim=1)
            marks = torch.stack([has_text, has.any(1)], dim=1)
        own, summaries, marks, text, conditions = _of_all(summaries, marks, text, conditions)
        t, mean = summaries.chunk(2, dim=1)
        texts, sets, use, target = hard_pairs(
            t, mean, marks[:, 0], marks[:, 1], own, self.temperature, generator, self.floor
        )
        (number,) = all_sum([use.sum()])
        if not use.any():
            return summaries.new_zeros(())
        logits = self.logits(text, conditions, texts[use], sets[use])
        terms = cross_entropy(logits.float(), target[use], reduction="sum")
        return terms * world()[0] / number.clamp(min=1)

    def _others(self, z: Mapping[str, Tensor], has: Tensor, fused: Tensor | None) -> Tensor:
        """(N, width): what the text of each row is compared with."""
        if fused is not None:
            return fused.float()
        total = torch.stack([z[name].float() for name in self.names if name != "text"]).sum(0)  # missing ones are 0
        return total / has.sum(1, keepdim=True).clamp(min=1)

    def conditions(self, tokens: Mapping[str, Any], present: Tensor) -> Conditions:
        """The tokens of the other modalities of every row, one after the other, and which are there."""
        parts, there = [], []
        for column, name in enumerate(self.names):
            if name == "text":
                continue
            x = self.project[name](tokens[name])  # (n, frames, T, hidden) or (n, T, hidden)
            if name in self.frame:
                x = (x + frame_embedding(self.frame[name], x.shape[1])[:, :, None]).flatten(1, 2)
            x = x + self.kind[name]
            parts.append(spread(x, present[:, column].nonzero()[:, 0], len(present)))
            there.append(present[:, column, None].expand(-1, x.shape[1]))
        return torch.cat(parts, dim=1), torch.cat(there, dim=1)

    def logits(self, text: Mapping[str, Tensor], conditions: Conditions, i: Tensor, j: Tensor) -> Tensor:
        """(M, 2) scores of "does not match" and "matches" for the texts `i` with the sets `j` of other modalities."""
        chosen = {key: value[i] for key, value in text.items()}
        return self.head(bert_tokens(self.bert, chosen, conditions[0][j], conditions[1][j].long())[:, 0])

    @torch.no_grad()
    def rerank(
        self,
        text: Mapping[str, Tensor],
        conditions: Conditions,
        scores: Tensor,
        top: int = 50,
        *,
        by_items: bool = False,
        batch_size: int = 64,
    ) -> Tensor:
        """Scores (texts, items) in which the `top` best of every query come first, in the order of the matching head.

        A query is a text that looks for items, or with `by_items` an item that looks for texts: then a column of the
        scores is put in a new order. All others keep their score.
        """
        q, g = len(text["input_ids"]), len(conditions[0])
        if scores.shape != (q, g):
            raise InputError(f"scores has shape {tuple(scores.shape)}; pass ({q}, {g}): one row per text")
        result = scores.T.clone() if by_items else scores.clone()
        top = min(top, result.shape[1])
        if top == 0:
            return scores.clone()
        best = result.topk(top, dim=1).indices  # (queries, top)
        queries = torch.arange(len(best), device=best.device)[:, None].expand_as(best).flatten()
        i, j = (best.flatten(), queries) if by_items else (queries, best.flatten())
        pairs = zip(i.split(batch_size), j.split(batch_size), strict=True)
        match = torch.cat([self._match(text, conditions, *some) for some in pairs]).view_as(best)
        for row, found, score in zip(result, best, match.to(scores.device), strict=True):
            promote(row, found, score)
        return result.T if by_items else result

    def _match(self, text: Mapping[str, Tensor], conditions: Conditions, i: Tensor, j: Tensor) -> Tensor:
        """How much a text matches a set: the difference of the two scores. Texts and sets may lie in main memory."""
        device = self.head.linear1.weight.device
        i, j = i.to(conditions[0].device), j.to(conditions[0].device)
        near = {key: value[i.to(value.device)].to(device) for key, value in text.items()}
        sets = conditions[0][j].to(device), conditions[1][j].to(device)
        every = torch.arange(len(i), device=device)
        logits = self.logits(near, sets, every, every)
        return (logits[:, 1] - logits[:, 0]).float()


def frame_embedding(embedding: Tensor, frames: int) -> Tensor:
    """(1, frames, width): as it is, or for another number of frames the nearest ones."""
    if embedding.shape[1] == frames:
        return embedding
    return interpolate(embedding.float().transpose(1, 2), frames, mode="nearest").transpose(1, 2).to(embedding.dtype)


def cat_conditions(parts: Sequence[Conditions]) -> Conditions:
    """The conditions of several batches as one; where one batch has fewer tokens, the rest is not there."""
    longest = max(there.shape[1] for _, there in parts)
    tokens = [pad(x, (0, 0, 0, longest - x.shape[1])) for x, _ in parts]
    there = [pad(mask, (0, longest - mask.shape[1])) for _, mask in parts]
    return torch.cat(tokens), torch.cat(there)


def _of_all(
    summaries: Tensor, marks: Tensor, text: Mapping[str, Tensor], conditions: Conditions
) -> tuple[slice, Tensor, Tensor, Mapping[str, Tensor], Conditions]:
    """(which rows are mine, and the same four of the rows of all processes in the order of the ranks).

    Only my own conditions keep their gradient: processes whose rows lack different modalities have different graphs, and
    a message in the backward pass would have to come at the same place in all of them.
    """
    size, rank = world()
    if size == 1:
        return slice(0, len(summaries)), summaries, marks, text, conditions
    headers = gather_headers([len(summaries), conditions[0].shape[1]], summaries.device)
    counts, longest = [count for count, _ in headers], max(tokens for _, tokens in headers)
    own = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
    mine = pad(conditions[0], (0, 0, 0, longest - conditions[0].shape[1]))
    there = pad(conditions[1], (0, longest - conditions[1].shape[1]))
    with torch.no_grad():
        summaries, every = gather_rows(summaries, counts), gather_rows(mine.detach(), counts)
        marks, there = (gather_rows(mask.to(torch.uint8), counts).bool() for mask in (marks, there))
        text = {key: gather_rows(value, counts) for key, value in text.items()}
    return own, summaries, marks, text, (torch.cat([every[: own.start], mine, every[own.stop :]]), there)


def _older_models(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Models that were saved before the temperature was a part of them keep the one they were built with."""
    state.setdefault(f"{prefix}temperature", module.temperature)
