// State lives in the address; files, which cannot, live in this page and are found again through the history.

import { listenForAdding } from "/adding.js";
import { listenForDrops } from "/dropping.js";
import { card, choice, element, itemView, queryPart, title } from "/parts.js";

const PAGE = 24;
const at = (id) => document.getElementById(id);
const grid = at("grid"), words = at("words"), label = at("label"), dialog = at("item");
const keptFiles = new Map(); // history key -> {image: File, sound: File}
let about = null, files = {}, like = null, shown = [], asking = null, lastQuery = null, previews = [];

async function ask(address, options) {
  let answer;
  try {
    answer = await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is it still running?");
  }
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(content.error || `The server answered with status ${answer.status}.`);
  return content;
}

// ---- the query and the address

const chosen = () => [...document.querySelectorAll("#having input:checked")].map((box) => box.value);

function address(item = null) {
  const query = new URLSearchParams();
  if (words.value.trim()) query.set("q", words.value.trim());
  if (like) query.set("like", like);
  if (Object.keys(files).length) query.set("files", Object.keys(files).sort().join(","));
  if (chosen().length) query.set("having", chosen().join(","));
  if (label.value) query.set("label", label.value);
  if (item) query.set("item", item);
  return query.size ? `/?${query}` : "/";
}

function go() {
  const key = Object.keys(files).length ? crypto.randomUUID() : null;
  if (key) keptFiles.set(key, { ...files });
  history.pushState({ key }, "", address());
  return run();
}

/** Puts what the address says into the form. */
function restore() {
  const query = new URLSearchParams(location.search);
  words.value = query.get("q") || "";
  like = query.get("like");
  const having = (query.get("having") || "").split(",");
  for (const box of document.querySelectorAll("#having input")) box.checked = having.includes(box.value);
  label.value = query.get("label") || "";
  files = { ...(keptFiles.get(history.state?.key) || {}) };
  return (query.get("files") || "").split(",").filter((name) => name && !files[name]);
}

// ---- searching

function request(count, offset) {
  const query = new URLSearchParams();
  if (chosen().length) query.set("having", chosen().join(","));
  if (label.value) query.set("label", label.value);
  const text = words.value.trim();
  if (!text && !like && !Object.keys(files).length) {
    query.set("offset", offset);
    query.set("limit", PAGE);
    return [`/api/items?${query}`, {}];
  }
  query.set("k", count);
  if (text) query.set("text", text);
  if (like) query.set("like", like);
  if (!Object.keys(files).length) return [`/api/search?${query}`, {}];
  const form = new FormData();
  for (const [name, value] of query) form.set(name, value);
  for (const [name, file] of Object.entries(files)) form.set(name, file, file.name);
  return ["/api/search", { method: "POST", body: form }];
}

async function run({ more = false } = {}) {
  asking?.abort();
  const mine = (asking = new AbortController());
  const before = more ? shown.length : 0;
  if (!more) { drawParts(); drawQuality(); }
  lastQuery = location.search.replace(/[?&]item=[^&]*/, "");
  grid.setAttribute("aria-busy", "true");
  try {
    const [where, options] = request(before + PAGE, before);
    const answer = await ask(where, { ...options, signal: mine.signal });
    const searching = Boolean(answer.hits);
    const fresh = searching ? answer.hits.slice(before) : answer.items;
    shown = more ? [...shown, ...fresh] : fresh;
    const most = Math.min(about.limits.hits, about.items);
    draw(fresh, more, searching, searching ? fresh.length === PAGE && shown.length < most : answer.more);
    complain("");
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!more) { grid.replaceChildren(); at("more").hidden = true; at("count").textContent = ""; }
    complain(error.message);
  } finally {
    if (mine === asking) grid.removeAttribute("aria-busy");
  }
}

function draw(fresh, more, searching, further) {
  const cards = fresh.map((item) => card(item, about.modalities, address(item.id), searchLike));
  if (more) {
    grid.append(...cards);
    cards[0]?.querySelector("a").focus();
  } else {
    grid.replaceChildren(...cards);
  }
  at("more").hidden = !further;
  at("results-title").textContent = searching ? "Results" : "Items";
  const filtered = chosen().length || label.value;
  const amount = shown.length === 1 ? "1 item" : `${shown.length} items`;
  at("count").textContent = !shown.length ? "Nothing matches. Remove a filter or use other words."
    : searching ? `${amount}, nearest first`
    : filtered ? `${amount} shown${further ? ", more below" : ""}`
    : `${shown.length} of ${about.items.toLocaleString("en")} shown`;
  document.title = searching && words.value.trim() ? `${words.value.trim()} · calmrl` : "Search · calmrl";
}

function complain(sentence) {
  at("problem").textContent = sentence;
  at("problem").hidden = !sentence;
}

function searchLike(item) {
  like = item.id;
  words.value = "";
  files = {};
  if (dialog.open) dialog.close("kept");
  window.scrollTo(0, 0);
  go().then(() => at("results").focus({ preventScroll: true }));
}

// ---- pictures and sounds of the query

function drawParts() {
  previews.forEach((url) => URL.revokeObjectURL(url));
  previews = [];
  const parts = [];
  for (const [name, file] of Object.entries(files)) {
    const url = name === "image" ? URL.createObjectURL(file) : null;
    if (url) previews.push(url);
    parts.push(queryPart(file.name || name, url, "audio", () => { delete files[name]; words.focus(); go(); }));
  }
  if (like) {
    const item = shown.find((one) => one.id === like);
    const text = `like ${item ? title(item) : like}`;
    parts.push(queryPart(text, item?.thumbnail, "like", () => { like = null; words.focus(); go(); }));
  }
  at("parts").replaceChildren(...parts);
}

function take(list) {
  const taken = [];
  for (const file of list) {
    const kind = file.type.split("/")[0];
    const name = { image: "image", audio: "sound", video: "sound" }[kind];
    if (!name) return complain(`${file.name} is neither a picture nor a sound.`);
    if (!searchable(name === "image" ? "image" : "audio")) return complain(`This collection cannot be searched by ${name}.`);
    if (file.size > about.limits.body_bytes) {
      return complain(`${file.name} is larger than ${Math.floor(about.limits.body_bytes / 2 ** 20)} MiB.`);
    }
    taken.push([name, file]);
  }
  if (!taken.length) return;
  Object.assign(files, Object.fromEntries(taken));
  go();
}

const searchable = (kind) => Object.values(about.modalities).some((one) => one.kind === kind && one.searchable);

function listenForFiles() {
  for (const name of ["image", "sound"]) {
    const button = at(`choose-${name}`), input = at(`file-${name}`);
    button.hidden = !searchable(name === "image" ? "image" : "audio");
    button.addEventListener("click", () => input.click());
    input.addEventListener("change", () => { take(input.files); input.value = ""; });
  }
  at("drop-hint").hidden = at("choose-image").hidden && at("choose-sound").hidden;
  listenForDrops(take);
}

// ---- one item

/** After an item was added: count anew and show it. */
async function added(item) {
  about = await ask("/api/about");
  countItems();
  history.pushState({ ...history.state, opened: true }, "", address(item.id));
  await open(item.id);
}

async function open(id) {
  try {
    const item = await ask(`/api/items/${encodeURIComponent(id)}`);
    at("item-title").textContent = title(item);
    at("item-body").replaceChildren(...itemView(item, about.modalities, searchLike));
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  } catch (error) {
    complain(error.message);
  }
}

function listenForItems() {
  grid.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-item]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    history.pushState({ ...history.state, opened: true }, "", address(link.dataset.item));
    open(link.dataset.item);
  });
  at("item-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => {
    at("item-body").replaceChildren(); // stops players
    if (dialog.returnValue !== "kept" && new URLSearchParams(location.search).has("item")) {
      if (history.state?.opened) history.back();
      else history.replaceState({ ...history.state }, "", address());
    }
    dialog.returnValue = "";
  });
}

/** Shows what the address says, after a load and after the back button. */
async function show() {
  const query = new URLSearchParams(location.search);
  const item = query.get("item");
  if (!item && dialog.open) dialog.close("kept");
  if (location.search.replace(/[?&]item=[^&]*/, "") !== lastQuery) {
    const lost = restore();
    await run();
    if (lost.length) complain(`The ${lost.join(" and the ")} of this search is not kept in the address; add it again.`);
  }
  if (item) await open(item);
}

// ---- the collection

function countItems() {
  const kinds = Object.entries(about.modalities).map(([name, one]) => `${one.n.toLocaleString("en")} with ${name}`);
  at("summary").textContent = `${about.items.toLocaleString("en")} items: ${kinds.join(", ")}`;
}

function describe() {
  countItems();
  at("having").append(...Object.keys(about.modalities).map((name) => choice(name, about.modalities, false)));
  label.append(...about.labels.map((name) => element("option", { value: name }, name)));
  at("label-box").hidden = !about.labels.length;
  if (!searchable("text")) {
    words.disabled = document.querySelector("#query button[type=submit]").disabled = true;
    words.placeholder = "This collection cannot be searched by words";
    at("help").hidden = true;
  }
  at("quality").hidden = !about.expected.length;
  at("quality").querySelector("ul").append(...about.expected.map((row) => element("li", {}, row.sentence)),
    element("li", {}, "Similarity compares an item with the query. Certainty says how far what is observed of an item determines its place."));
}

/** The expectation that fits the query best: from what was asked with, to pictures if there are any. */
function drawQuality() {
  const kind = (name) => about.modalities[name]?.kind;
  const asked = files.image && !words.value.trim() ? "image" : files.sound && !words.value.trim() ? "audio" : "text";
  const fitting = about.expected.filter((row) => kind(row.from) === asked && kind(row.to) !== asked);
  const row = fitting.find((one) => kind(one.to) === "image") || fitting[0] || about.expected[0];
  if (!row) return;
  at("quality").querySelector("summary").replaceChildren("Expected quality: ", element("b", {}, `${row.from} → ${row.to}`),
    ` finds the right item first in ${Math.round(row["R@1"])} of 100 searches (by guessing ${row["chance R@1"].toPrecision(2)})`);
}

// ---- start

async function start() {
  try {
    about = await ask("/api/about");
  } catch (error) {
    return complain(error.message);
  }
  describe();
  listenForFiles();
  listenForItems();
  listenForAdding(about, ask, added, searchable);
  at("query").addEventListener("submit", (event) => { event.preventDefault(); go(); });
  at("having").addEventListener("change", go);
  label.addEventListener("change", go);
  at("more").addEventListener("click", () => run({ more: true }));
  at("home").addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    history.pushState({}, "", "/");
    show();
  });
  addEventListener("popstate", show);
  await show();
}

start();
