"""How a query is answered: items ranked by vectors, words and files, their hits judged and explained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from calmrl.aligner.posterior import item_parts, place_rows
from calmrl.search import levels as levels_module
from calmrl.search import neighbours, store
from calmrl.search.collection import REPLACED, SEGMENTS, TEXTS, segments_key
from calmrl.search.hits import Contribution, Hit, StoredItems, hub_levels
from calmrl.search.levels import APART, EVERYTHING, LEVELS, Side, both_sides
from calmrl.search.query import LIKE, PreparedQuery, QueryVectors, Term
from calmrl.search.syntax import id_in, quote
from calmrl.search.words import COLUMNS, FILE, MOST, VECTORS, Match, Read, fused, joined, matches

DEPTH = 50  # of both ranks that are fused, at least
NAMES_DEPTH = 200  # of the ranks by place and by name, at least
HUB_CANDIDATES = 1000  # nearest items among which hubs are taken back, at least


class Searcher:
    """Answers queries from the items of an index, as they are when it is asked.

    Parameters
    ----------
    stored : StoredItems
        The items.
    queries : QueryVectors
        Turns terms into vectors.
    """

    def __init__(self, stored: StoredItems, queries: QueryVectors) -> None:
        self.stored, self.queries = stored, queries
        self.table, self.layout, self.aligner = stored.table, stored.layout, queries.aligner

    def search(self, terms: list[Term], k: int, conditions: list[str], hubs: bool, words: bool, why: bool) -> list[Hit]:
        """The first k hits among items that fulfil all conditions; the arguments are those of `Index.search`."""
        asked = self.queries.prepared(terms, hubs, k)
        if own := [str(term.value) for term in terms if term.modality == LIKE]:
            conditions = [*conditions, f"NOT {id_in(own)}"]
        found = self._typed(terms, conditions) if words else []
        hits = self._located(asked, self._with_levels(asked, self._hits(asked, conditions, found), found))
        return self._explained(asked, hits) if why else hits

    def _typed(self, terms: list[Term], conditions: list[str]) -> list[Match]:
        """Items that words of the query name, or that have the very file that is asked with."""
        if (asked := self.queries.words(terms)) is not None:
            return matches(asked[0], self._reader(conditions), self._counter(conditions), asked[1])
        if len(terms) == 1 and (digest := self.queries.file_digest(terms[0])) is not None:
            rows = self._reader(conditions)(f"contains(stamps, {quote(digest)})", MOST)
            return [Match(row["id"], 1.0, 1.0, True, (FILE,)) for row in rows]
        return []

    def _reader(self, conditions: list[str]) -> Read:
        def read(condition: str, most: int) -> list[Any]:
            query = self.table.search().where(" AND ".join([*conditions, f"({condition})"]))
            with self.stored.reading():
                return query.select(COLUMNS).limit(most).to_list()

        return read

    def _counter(self, conditions: list[str]) -> Callable[[str | None], int]:
        return lambda condition: self.stored.count(*conditions, *([condition] if condition else []))

    def _hits(self, asked: PreparedQuery, conditions: list[str], found: list[Match]) -> list[Hit]:
        """The first k: by vectors alone, or by both ranks where names or words match, or names are all that is written."""
        k, groups, sides = asked.k, asked.groups, self._sides(asked)
        names = self._names(asked)
        if not found and names is None:
            rows, scores, _ = self._nearest(asked, sides, conditions, k)
            hits = self.stored.verified(rows, self.stored.of_hits, *groups)
            return [self.stored.hit(row, score) for row, score in zip(hits, scores, strict=True)]
        found, depth = found[: max(k, DEPTH)], max(k, DEPTH if names is None else NAMES_DEPTH)
        wanted = dict.fromkeys(match.id for match in found)
        if names is not None:
            by_names, _ = self._near(names, [*conditions, self.stored.encoded(TEXTS)], depth)
            wanted |= dict.fromkeys(by_names["id"].to_pylist())
        score: dict[str, float] = {}
        above: dict[str, float] = {}
        for where, most in (([*conditions, id_in(wanted)], len(wanted)), (conditions, depth)):
            if not most:
                continue
            rows, similar, standing = self._nearest(asked, sides, where, most)
            score |= dict(zip(rows["id"].to_pylist(), similar, strict=True))
            above |= dict(zip(rows["id"].to_pylist(), standing, strict=True))
        order = sorted(above, key=lambda id: -above[id])  # a stable order, as LanceDB gave it
        if names is not None:
            order = self._by_place_and_name(asked, names, order)
        first = fused(order, found)[:k]
        nearest, by_words = set(order[:k]), {match.id: match.parts for match in found}
        rows = self.stored.fetch(self.stored.by_id(first), self.stored.of_hits, *groups)
        stored = {row["id"]: row for row in rows}
        return [
            self.stored.hit(
                stored[id], score.get(id, 0.0), (*by_words.get(id, ()), *((VECTORS,) if id in nearest else ()))
            )
            for id in first
            if id in stored
        ]

    def _names(self, asked: PreparedQuery) -> PreparedQuery | None:
        """A query of one text, to be compared with names alone; None where items have other texts."""
        if asked.column != "vector" or asked.hubs or list(asked.alone) != [TEXTS] or not self.stored.names_alone():
            return None
        number = list(self.layout["modalities"]).index(TEXTS)
        return replace(asked, parts=[(TEXTS, levels_module.unit(asked.alone[TEXTS][None])[0])], column=f"f_{number}")

    def _by_place_and_name(self, asked: PreparedQuery, names: PreparedQuery, ids: list[str]) -> list[str]:
        """Ids by two ranks: of the place that an item has without its name, and of its name.

        A name is no caption: where it says little of a picture, it would draw the place away from what the picture shows.
        """
        assert self.aligner is not None
        column = {name: f"f_{j}" for j, name in enumerate(self.layout["modalities"]) if name in self.aligner.widths_}
        rows = self.stored.fetch(self.stored.by_id(ids), ["id", *column.values()], "features")
        features = {name: [row[c] for row in rows] for name, c in column.items()}
        present = np.array([[value is not None for value in values] for values in features.values()]).T
        width = self.aligner.widths_
        z = {name: np.array([v or [0.0] * width[name] for v in values]) for name, values in features.items()}
        text = list(z).index(TEXTS)
        called = np.where(present[:, text], levels_module.unit(z[TEXTS]) @ names.vector, -np.inf)
        present[:, text] = False
        similar = np.where(present.any(axis=1), place_rows(self.aligner, z, present) @ asked.vector, -np.inf)
        orders = [np.argsort(-values, kind="stable") for values in (similar, called)]
        return joined(*([rows[n]["id"] for n in order] for order in orders))

    def _nearest(
        self, asked: PreparedQuery, sides: list[Side], conditions: list[str], count: int
    ) -> tuple[Any, np.ndarray, np.ndarray]:
        """(an Arrow table of items, their similarities, how far these are above what is usual), the best first."""
        if asked.column != "vector":
            conditions = [*conditions, self.stored.encoded(list(self.layout["modalities"])[int(asked.column[2:])])]
        tables, scores, above = [], [], []
        for side in sides:
            rows, similar = self._near(asked, [*conditions, *side.conditions], count)
            tables.append(rows)
            scores.append(similar)
            above.append(side.above(similar))
        order = np.argsort(-np.concatenate(above), kind="stable")[:count]
        return pa.concat_tables(tables).take(order), np.concatenate(scores)[order], np.concatenate(above)[order]

    def _near(self, asked: PreparedQuery, conditions: list[str], count: int) -> tuple[Any, np.ndarray]:
        """(an Arrow table of items, their similarities), those nearest by similarity."""
        within, levels = asked.column != "vector", self._hub_columns(asked)
        corrected = asked.hubs or bool(levels)
        query = neighbours.near_query(
            self.table,
            asked.vector,
            max(HUB_CANDIDATES, 10 * count) if corrected else count,
            None if within else self.layout["search"],
            " AND ".join(conditions) or None,
            asked.column,
            neighbours.COSINE if within else self.stored.metric,
        )
        columns = [*self.stored.of_hits, *(["nearness"] if asked.hubs else levels), "_distance"]
        rows = self.stored.read(query, columns, *asked.groups)
        scores = 1.0 - rows["_distance"].to_numpy().astype(np.float64)
        if asked.hubs:
            vector = np.asarray(asked.vector, np.float32)[None]
            own = float(neighbours.hubness(vector, self.stored.hub_vectors())[0])
            scores = 2 * scores - own - rows["nearness"].to_numpy().astype(np.float64)
        scores = scores - hub_levels(rows, levels)
        if corrected:
            best = np.argsort(-scores, kind="stable")[:count]
            rows, scores = rows.take(best), scores[best]
        return rows, scores

    def _hub_columns(self, asked: PreparedQuery) -> list[str]:
        """What is taken off similarities to this query, where hubs are corrected for by training items."""
        kept = [] if asked.column != "vector" or asked.hubs else self.layout.get("hubs") or []
        return [f"hub_{kept.index(name)}" for name in asked.modalities if name in kept] or [
            f"hub_{j}" for j in range(len(kept))
        ]

    def _sides(self, asked: PreparedQuery) -> list[Side]:
        """Items that share a modality with the query and those that do not, where they are ranked side by side; or all."""
        apart = self.layout.get(APART) or []  # indexes of earlier versions have none
        shared = [self.stored.encoded(name) for name in asked.modalities if name in apart]
        if asked.column != "vector" or asked.hubs or not shared or len(shared) < len(asked.modalities):
            return [EVERYTHING]
        conditions = [f"({' OR '.join(shared)})", f"NOT ({' OR '.join(shared)})"]
        levels = tuple(self._hub_columns(asked))
        samples = [self.stored.sample(condition, levels) for condition in conditions]
        if min(len(vectors) for vectors, _ in samples) < 2:
            return [EVERYTHING]
        return both_sides(conditions, [vectors @ asked.vector - taken_off for vectors, taken_off in samples])

    def _with_levels(self, asked: PreparedQuery, hits: list[Hit], found: list[Match]) -> list[Hit]:
        """Hits with the verdict of the levels: of a query of one value, whose similarities are not those of CSLS."""
        if asked.hubs or not hits or not any(name in (self.layout.get(LEVELS) or {}) for name in asked.alone):
            return hits  # indexes of earlier versions have no levels
        ((name, value),) = asked.alone.items()
        nearest = float((levels_module.unit(value[None]) @ self.stored.sample_of(name).T).max(initial=-1.0))
        sure = {match.id for match in found if match.exact or match.share >= 1}
        out = []
        for hit in hits:
            has = hit.modalities if asked.column == "vector" else ()
            weak: bool | None = False
            close: bool | None = True
            if hit.id not in sure:
                weak, close = levels_module.judged(self.layout, name, has, hit.similarity, nearest)
            out.append(replace(hit, weak=weak, close=close))
        return out

    def _located(self, asked: PreparedQuery, hits: list[Hit]) -> list[Hit]:
        """Hits with the segment of their video that is nearest to the query."""
        if not hits or SEGMENTS not in self.layout:
            return hits
        rows = self.stored.fetch(self.stored.by_id([hit.id for hit in hits]), ["id", SEGMENTS], "features")
        held = {row["id"]: store.unpacked(row[SEGMENTS]) for row in rows}
        best: dict[str, tuple[float, tuple[float, float]]] = {}
        for name, entry in self.layout["modalities"].items():
            key = segments_key(entry.get(REPLACED, name), str(entry["encoder"]))
            own = {id: parts[key] for id, parts in held.items() if key in parts}
            if not own or (places := self._segment_places(asked, name, [part[:, 2:] for part in own.values()])) is None:
                continue
            ends = np.cumsum([len(part) for part in own.values()])[:-1]
            for (id, part), similar in zip(own.items(), np.split(places @ asked.vector, ends), strict=True):
                first = int(similar.argmax())
                one = float(similar[first]), (float(part[first, 0]), float(part[first, 1]))
                best[id] = max(best.get(id, one), one)
        return [replace(hit, segment=best[hit.id][1]) if hit.id in best else hit for hit in hits]

    def _segment_places(self, asked: PreparedQuery, name: str, parts: list[np.ndarray]) -> np.ndarray | None:
        """Where segments lie by their frames alone; None where the query is not compared with that."""
        vectors = np.concatenate(parts)
        if asked.column != "vector":
            return (
                levels_module.unit(vectors)
                if asked.column == f"f_{list(self.layout['modalities']).index(name)}"
                else None
            )
        if self.aligner is None or name not in self.aligner.widths_:
            return None
        return place_rows(self.aligner, {name: vectors}, np.ones((len(vectors), 1), bool))

    def _explained(self, asked: PreparedQuery, hits: list[Hit]) -> list[Hit]:
        """Hits with what their similarity is the sum of."""
        if asked.column != "vector":
            name = asked.parts[0][0]
            return [replace(hit, why=(Contribution(name, name, hit.similarity),)) for hit in hits]
        if not hits or self.aligner is None:
            return hits
        column = {name: f"f_{j}" for j, name in enumerate(self.layout["modalities"]) if name in self.aligner.widths_}
        rows = self.stored.fetch(self.stored.by_id([hit.id for hit in hits]), ["id", *column.values()], "features")
        present = np.array([[row[c] is not None for c in column.values()] for row in rows])
        width = self.aligner.widths_
        z = {name: np.array([row[c] or [0.0] * width[name] for row in rows]) for name, c in column.items()}
        parts = item_parts(self.aligner, z, present)
        factor = 2.0 if asked.hubs else 1.0
        of = {row["id"]: number for number, row in enumerate(rows)}
        out = []
        for hit in hits:
            row = of[hit.id]
            shares: dict[tuple[str | None, str | None], float] = {}
            for (name, vector), (m, its) in product(asked.parts, enumerate(z)):
                if present[row, m]:
                    shares[name, its] = shares.get((name, its), 0.0) + factor * float(vector @ parts[m, row])
            if shares and (asked.hubs or self.layout.get("hubs")):
                shares[None, None] = hit.similarity - sum(shares.values())
            why = (Contribution(*pair, share) for pair, share in shares.items())
            out.append(replace(hit, why=tuple(sorted(why, key=lambda one: -one.share))))
        return out
