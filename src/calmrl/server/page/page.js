// State lives in the address; files, which cannot, live in this page and are found again through the history.

import { changeButtons, listenForAdding } from "/changing.js";
import { listenForDrops } from "/dropping.js";
import { capital, card, columnChoice, element, filterChoice, itemView, noun, queryPart, title } from "/parts.js";

const PAGE = 24;
const at = (id) => document.getElementById(id);
const grid = at("grid"), words = at("words"), label = at("label"), dialog = at("item");
const KINDS = { image: "image", sound: "audio" };
const keptFiles = new Map(); // history key -> {image: File, sound: File}
const columns = {}; // image, sound -> the modality that a file is compared with
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
  if (!answer.ok) throw new Error(content.error ? capital(content.error) : `The server answered with status ${answer.status}.`);
  return content;
}

// ---- the query and the address

const filterSelects = () => [...document.querySelectorAll("#having select")];
const chosen = (what) => filterSelects().filter((select) => select.value === what).map((select) => select.name);

/** Modalities to have and to lack, and the label, into the parameters of an address. */
function setFilters(query) {
  for (const what of ["having", "lacking"]) if (chosen(what).length) query.set(what, chosen(what).join(","));
  if (label.value) query.set("label", label.value);
  return query;
}

function address(item = null) {
  const query = new URLSearchParams();
  if (words.value.trim()) query.set("q", words.value.trim());
  if (like) query.set("like", like);
  if (Object.keys(files).length) query.set("files", Object.keys(files).sort().join(","));
  setFilters(query);
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
  for (const select of filterSelects()) {
    select.value = ["having", "lacking"].find((what) => (query.get(what) || "").split(",").includes(select.name)) || "";
  }
  label.value = query.get("label") || "";
  files = { ...(keptFiles.get(history.state?.key) || {}) };
  return (query.get("files") || "").split(",").filter((name) => name && !files[name]);
}

// ---- searching

function request(count, offset) {
  const query = setFilters(new URLSearchParams());
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
  for (const [name, file] of Object.entries(files)) form.set(columns[name], file, file.name);
  return ["/api/search", { method: "POST", body: form }];
}

async function run({ more = false } = {}) {
  asking?.abort();
  const mine = (asking = new AbortController());
  const before = more ? shown.length : 0;
  if (!more) { drawParts(); drawQuality(); drawFilters(); }
  lastQuery = location.search.replace(/[?&]item=[^&]*/, "");
  grid.setAttribute("aria-busy", "true");
  try {
    const [where, options] = request(before + PAGE, before);
    const answer = await ask(where, { ...options, signal: mine.signal });
    const searching = Boolean(answer.hits);
    const fresh = searching ? answer.hits.slice(before) : answer.items;
    shown = more ? [...shown, ...fresh] : fresh;
    const most = Math.min(about.limits.hits, about.items);
    draw(answer, fresh, more, searching ? fresh.length === PAGE && shown.length < most : answer.more);
    complain("");
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!more) { grid.replaceChildren(); at("weak").hidden = at("more").hidden = true; at("count").textContent = ""; }
    complain(error.message);
  } finally {
    if (mine === asking) grid.removeAttribute("aria-busy");
  }
}

/** Cards into the grid, and those of weak matches below it. */
function draw(answer, fresh, more, further) {
  const cards = [[], []];
  for (const item of fresh) cards[Number(item.weak === true)].push(card(item, about.modalities, address(item.id), searchLike));
  for (const [place, some] of [[grid, cards[0]], [at("weak-grid"), cards[1]]]) more ? place.append(...some) : place.replaceChildren(...some);
  if (more) (cards[0][0] ?? cards[1][0])?.querySelector("a").focus();
  at("weak").hidden = !at("weak-grid").childElementCount;
  at("more").hidden = !further;
  at("results-title").textContent = answer.hits ? "Results" : "Items";
  at("count").textContent = sentence(answer, further);
  document.title = answer.hits && words.value.trim() ? `${words.value.trim()} · calmrl` : "Search · calmrl";
}

function sentence(answer, further) {
  const filtered = Boolean(setFilters(new URLSearchParams()).size);
  const amount = (count) => (count === 1 ? "1 item" : `${count} items`);
  const close = shown.filter((item) => item.weak !== true).length;
  if (!shown.length) return filtered ? "No item fits the filters. Remove one of them." : "There is nothing in this collection.";
  if (!answer.hits) return filtered ? `${amount(shown.length)} shown${further ? ", more below" : ""}` : `${shown.length} of ${about.items.toLocaleString("en")} shown`;
  if (answer.nothing_close) return "Nothing in this collection is close to that.";
  const doubt = answer.verdict === "perhaps" ? ", perhaps none that you mean" : "";
  return `${amount(close)}, nearest first${doubt}${close < shown.length ? `; ${shown.length - close} weak` : ""}`;
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
    const choose = several(name).length < 2 ? null
      : columnChoice(several(name), columns[name], about.modalities, (column) => { columns[name] = column; go(); });
    parts.push(queryPart(file.name || name, url, KINDS[name], () => { delete files[name]; words.focus(); go(); }, choose));
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
    const kind = file.type.split("/")[0] || (/\.(hei[cf]|avif)$/i.test(file.name) ? "image" : "");
    const name = { image: "image", audio: "sound", video: "sound" }[kind];
    if (!name) return complain(`${file.name} is neither a picture nor a sound.`);
    if (!several(name).length) return complain(`This collection cannot be searched by ${name === "image" ? "picture" : name}.`);
    if (file.size > about.limits.body_bytes) {
      return complain(`${file.name} is larger than ${Math.floor(about.limits.body_bytes / 2 ** 20)} MiB.`);
    }
    taken.push([name, file]);
  }
  if (!taken.length) return;
  Object.assign(files, Object.fromEntries(taken));
  go();
}

const searchable = (kind) => Object.keys(about.modalities).filter((name) => about.modalities[name].kind === kind && about.modalities[name].searchable);

/** Modalities that a picture or a sound can be compared with, those that most items have first. */
const several = (name) => searchable(KINDS[name]).sort((a, b) => about.modalities[b].n - about.modalities[a].n);

function listenForFiles() {
  for (const name of ["image", "sound"]) {
    const button = at(`choose-${name}`), input = at(`file-${name}`);
    columns[name] = several(name)[0];
    button.hidden = !columns[name];
    button.addEventListener("click", () => input.click());
    input.addEventListener("change", () => { take(input.files); input.value = ""; });
  }
  at("drop-hint").hidden = at("choose-image").hidden && at("choose-sound").hidden;
  listenForDrops(take);
}

// ---- filters

function drawFilters() {
  const set = [...filterSelects().filter((select) => select.value).map((select) => `${{ having: "with", lacking: "without" }[select.value]} ${noun(select.name, about.modalities)}`), ...(label.value ? [label.value] : [])];
  at("filters-said").textContent = set.length ? `Filters: ${set.join(", ")}` : "Filters";
  at("filters-open").classList.toggle("set", set.length > 0);
}

function listenForFilters() {
  at("filters-open").addEventListener("click", () => {
    at("filters").hidden = !at("filters").hidden;
    at("filters-open").setAttribute("aria-expanded", String(!at("filters").hidden));
  });
  at("filters").addEventListener("change", go);
  at("filters-clear").addEventListener("click", () => {
    for (const select of [...filterSelects(), label]) select.value = "";
    go();
  });
}

// ---- one item

/** After an item was added or renamed: count anew and show it among the others. */
async function added(item) {
  await recount();
  history.pushState({ ...history.state, opened: true }, "", address(item.id));
  await open(item.id);
}

async function renamed(item) {
  await recount();
  history.replaceState({ ...history.state }, "", address(item.id));
  await open(item.id);
}

async function removed() {
  dialog.close();
  await recount();
}

async function recount() {
  about = await ask("/api/about");
  countItems();
  await run();
}

async function open(id) {
  try {
    const item = await ask(`/api/items/${encodeURIComponent(id)}`);
    at("item-title").textContent = title(item);
    const changes = about.allow_add ? changeButtons(item, ask, renamed, removed) : [];
    at("item-body").replaceChildren(...itemView(item, shown.find((hit) => hit.id === id), about.modalities, searchLike, changes));
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  } catch (error) {
    complain(error.message);
  }
}

function listenForItems() {
  at("results").addEventListener("click", (event) => {
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
  const kinds = Object.entries(about.modalities).filter(([, one]) => one.n).map(([name, one]) => `${one.n.toLocaleString("en")} with ${noun(name, about.modalities)}`);
  at("summary").textContent = `${about.items.toLocaleString("en")} items: ${kinds.join(", ")}`;
}

function describe() {
  countItems();
  at("having").append(...Object.keys(about.modalities).map((name) => filterChoice(name, about.modalities)));
  label.append(...about.labels.map((name) => element("option", { value: name }, name)));
  at("label-box").hidden = !about.labels.length;
  if (!searchable("text").length) {
    words.disabled = document.querySelector("#query button[type=submit]").disabled = true;
    words.placeholder = "This collection cannot be searched by words";
    at("help").hidden = true;
  }
  at("quality").hidden = !about.expected.length;
  at("quality").querySelector("ul").append(...about.expected.map((row) => element("li", {}, row.sentence)),
    element("li", {}, "Similarity compares an item with the query. Certainty says how much is known about an item: little if it has only a sound that says little."));
}

/** The expectation that fits the query best: from what was asked with, to pictures if there are any. */
function drawQuality() {
  const kind = (name) => about.modalities[name]?.kind;
  const asked = files.image && !words.value.trim() ? "image" : files.sound && !words.value.trim() ? "audio" : "text";
  const fitting = about.expected.filter((row) => kind(row.from) === asked && kind(row.to) !== asked);
  const row = fitting.find((one) => kind(one.to) === "image") || fitting[0] || about.expected[0];
  if (!row) return;
  const called = kind(row.from) === "text" ? "words" : noun(row.from, about.modalities);
  at("quality").querySelector("summary").replaceChildren("How well it finds", element("span", { class: "wide" },
    `: by ${called}, the right ${noun(row.to, about.modalities)} comes first in ${Math.round(row["R@1"])} of 100 searches`));
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
  listenForFilters();
  listenForAdding(about, ask, added);
  at("query").addEventListener("submit", (event) => { event.preventDefault(); go(); });
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
