// The pieces that the page is made of. Text goes into text nodes, never into HTML.

const SVG = "http://www.w3.org/2000/svg";
const FOUND_BY = { name: "name", words: "words", file: "same file" };
const NOUNS = { image: "picture", audio: "sound", text: "text" };

/** element("a", {href: "/"}, "home") */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/** The modality's own name; its noun where the name is only the kind. */
export function noun(name, modalities) {
  const kind = modalities[name]?.kind;
  return name === kind ? NOUNS[kind] : name;
}

export const kindIcon = (name, modalities) => icon(NOUNS[modalities[name]?.kind] ? modalities[name].kind : "observed");

/** The first caption; without one, the id. */
export const title = (item) => (item.text || item.id).split("\n")[0];

/** What is observed and what is not: icon, words and border, not colour alone. */
export function seenList(item, modalities) {
  const parts = [...item.modalities.map((name) => [name, true]), ...item.missing.map((name) => [name, false])];
  return element("ul", { class: "seen", "aria-label": "Modalities" }, ...parts.map(([name, observed]) =>
    observed
      ? element("li", {}, kindIcon(name, modalities), noun(name, modalities), element("span", { class: "unseen" }, " observed"))
      : element("li", { class: "missing" }, icon("missing"), `no ${noun(name, modalities)}`)));
}

/** Similarity, certainty, and what found it besides being near. */
export function score(item) {
  const parts = [];
  if (item.similarity != null) parts.push(element("span", {}, "similarity ", element("b", {}, item.similarity.toFixed(2))));
  if (item.certainty != null) {
    parts.push(element("span", {}, "certainty ", element("b", {}, `${Math.round(100 * item.certainty)} %`)));
  }
  const found = (item.found ?? []).map((by) => FOUND_BY[by]).filter(Boolean);
  if (found.length) parts.push(element("span", {}, "found by ", element("b", {}, found.join(", "))));
  return parts.length ? element("p", { class: "score" }, ...parts) : null;
}

const ofKind = (item, modalities, kind) => item.modalities.filter((name) => modalities[name]?.kind === kind && item.files[name]);

const pictured = (item, modalities) => item.modalities.find((name) => modalities[name]?.kind === "image");

function player(item, name, modalities) {
  const file = item.files[name];
  const tag = file.type.startsWith("video/") ? "video" : "audio";
  return element(tag, { controls: true, preload: "none", src: file.url, "aria-label": `${noun(name, modalities)}: ${title(item)}` });
}

function shot(item) {
  const empty = (words) => element("div", { class: "shot none" }, icon("missing"), element("span", {}, words));
  if (!item.thumbnail) return empty("no picture");
  const image = element("img", { src: item.thumbnail, alt: "", loading: "lazy", decoding: "async" });
  const box = element("div", { class: "shot" }, image);
  image.addEventListener("error", () => box.replaceWith(empty("no preview")), { once: true });
  return box;
}

/** One item in the grid. `href` opens it, `like` searches by it. */
export function card(item, modalities, href, like) {
  const more = element("button", { type: "button", class: "quiet", "aria-label": `More like this: ${title(item)}` }, icon("like"), "More like this");
  more.addEventListener("click", () => like(item));
  const body = element("div", { class: "body" },
    element("h3", {}, element("a", { href, "data-item": item.id }, title(item))),
    item.label ? element("span", { class: "tag" }, item.label) : null,
    seenList(item, modalities),
    ...ofKind(item, modalities, "audio").map((name) => player(item, name, modalities)),
    score(item),
    element("div", { class: "foot" }, more));
  return element("li", { class: "card" }, shot(item), body);
}

/** All modalities of one item, those that are missing included, and what else its source says about it. */
export function itemView(item, modalities, like) {
  const more = element("button", { type: "button", class: "quiet" }, icon("like"), "More like this");
  more.addEventListener("click", () => like(item));
  const fact = (name, value) => (value == null || value === "" ? null : element("span", {}, `${name} `, element("b", {}, String(value))));
  const certainty = item.certainty == null ? null : `${Math.round(100 * item.certainty)} %`;
  const others = Object.entries(item.columns).filter(([name]) => !(name in modalities));
  return [
    element("div", { class: "facts" }, fact("id", item.id), fact("label", item.label), fact("certainty", certainty), more),
    ...Object.keys(modalities).map((name) => modalityView(item, name, modalities)),
    others.length ? element("div", { class: "facts" }, ...others.map(([name, value]) => fact(name, value)).filter(Boolean)) : "",
  ];
}

function modalityView(item, name, modalities) {
  const observed = item.modalities.includes(name);
  const head = element("h3", {}, observed ? kindIcon(name, modalities) : icon("missing"), noun(name, modalities),
    element("span", {}, observed ? "observed" : "not observed"));
  return element("section", { class: "modality" }, head, observed ? content(item, name, modalities)
    : element("p", { class: "gap" }, `This item has no ${noun(name, modalities)}; searches reach it through its other modalities.`));
}

function content(item, name, modalities) {
  const { kind } = modalities[name];
  const file = item.files[name];
  const words = name in item.columns ? item.columns[name] : name === "text" || onlyText(name, modalities) ? item.text : null;
  if (words) return element("blockquote", {}, String(words));
  const image = (source) => element("img", { src: source, alt: `${noun(name, modalities)} of ${title(item)}` });
  if (kind === "image" && !file && item.thumbnail && name === pictured(item, modalities)) return image(item.thumbnail);
  if (!file) return element("p", { class: "unshown" }, "Observed, but the collection holds only its features.");
  return kind === "audio" || file.type.startsWith("video/") ? player(item, name, modalities) : image(file.url);
}

const onlyText = (name, modalities) => Object.keys(modalities).filter((one) => modalities[one].kind === "text").join() === name;

/** A part of the query that can be taken out again. */
export function queryPart(label, picture, kind, remove) {
  const button = element("button", { type: "button", "aria-label": `Remove ${label}` }, icon("close"));
  button.addEventListener("click", remove);
  return element("li", {}, picture ? element("img", { src: picture, alt: "" }) : icon(kind), element("span", {}, label), button);
}

export function choice(name, modalities, checked) {
  const box = element("input", { type: "checkbox", name: "having", value: name, checked });
  return element("label", { class: "choice" }, box, kindIcon(name, modalities), noun(name, modalities));
}
