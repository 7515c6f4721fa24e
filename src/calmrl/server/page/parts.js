// The pieces that the page is made of. Text goes into text nodes, never into HTML.

const SVG = "http://www.w3.org/2000/svg";
const NOUNS = { image: "picture", audio: "sound", text: "text" };
const FOUND_BY = { name: ["name", "Its name has your words"], words: ["words", "Its text has your words"], file: ["same file", "It has the very file that you gave"] };

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

export function button(words, kind, action, attributes = {}) {
  const node = element("button", { type: "button", class: "quiet", ...attributes }, kind ? icon(kind) : null, words);
  node.addEventListener("click", () => action(node));
  return node;
}

/** The modality's own name; its noun where the name is only the kind. */
export function noun(name, modalities) {
  const kind = modalities[name]?.kind;
  return name === kind ? NOUNS[kind] : name;
}

const drawn = (name, modalities) => modalities[name]?.kind in NOUNS;
const iconName = (name, modalities) => (!drawn(name, modalities) ? "observed" : name === "video" ? name : modalities[name].kind);
const kindIcon = (name, modalities) => icon(iconName(name, modalities));
const alone = (name, modalities) => Object.values(modalities).filter((one) => one.kind === modalities[name]?.kind).length === 1;
const toldByIcon = (name, modalities) => drawn(name, modalities) && Object.keys(modalities).filter((one) => iconName(one, modalities) === iconName(name, modalities)).length === 1;
const known = (name, modalities) => modalities[name]?.n !== 0; // some item has it
const firstLine = (item) => (item.text || "").split("\n")[0].trim();

const letters = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "");
const same = (name, text) => letters(name) === letters(text);

/** The name of an item; where that is only a number or a code, what is written about it. */
export function title(item) {
  const code = !/\p{L}/u.test(item.id) || /^(?=.*\d)[0-9a-f_-]+$/i.test(item.id);
  return (code && firstLine(item)) || item.id;
}

/** A title with the folder before it in quiet letters, only the last of several; lines break after an underscore or a dot. */
function titleNodes(item) {
  const parts = title(item).split("/");
  if (title(item) !== item.id || parts.length < 2 || !parts.at(-1)) return [title(item)];
  const name = parts.at(-1).split(/(?<=[_.])/).flatMap((part) => [element("wbr"), part]);
  return [element("span", { class: "folder" }, `${parts.length > 2 ? "…/" : ""}${parts.at(-2)}/`), ...name];
}

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** 0.53, −0.12 */
const decimals = (value) => value.toFixed(2).replace(/^-(?=0\.00$)/, "").replace("-", "−");

/** What an item has and what it lacks, as icons with words for those who do not see them; names of what icons do not tell and it lacks. */
function seenList(item, modalities) {
  const parts = [...item.modalities.map((name) => [name, true]), ...item.missing.filter((name) => known(name, modalities)).map((name) => [name, false])];
  return element("ul", { class: "seen", "aria-label": "What it has" }, ...parts.map(([name, has]) => {
    const words = has ? noun(name, modalities) : `no ${noun(name, modalities)}`;
    const told = has || toldByIcon(name, modalities);
    return element("li", { class: has ? null : "missing", title: words }, kindIcon(name, modalities), element("span", { class: told ? "unseen" : null }, words));
  }));
}

/** What of an item met the query; a text that it lacks is its name, which stands for one. */
const met = (item, name, modalities) => (item.missing.includes(name) && modalities[name]?.kind === "text" ? "name" : noun(name, modalities));

/** Why it was found, in a few words: "name, picture 80 %", parts that pushed it away left out. */
function reason(item, modalities) {
  const found = (item.found ?? []).map((by) => FOUND_BY[by]?.[0]).filter(Boolean);
  const shares = new Map();
  for (const one of item.why ?? []) {
    const by = one.item && met(item, one.item, modalities);
    if (by && one.share > 0) shares.set(by, (shares.get(by) ?? 0) + one.share);
  }
  const whole = [...shares.values()].reduce((sum, share) => sum + share, 0);
  const told = [...shares].filter(([, share]) => share >= 0.05 * whole).sort((a, b) => b[1] - a[1]);
  const parts = told.map(([by, share]) => `${by}${told.length > 1 ? ` ${Math.round((100 * share) / whole)} %` : ""}`);
  return [...found.filter((by) => !shares.has(by)), ...parts].join(", ");
}

/** The same in full: what found it, and what its similarity is the sum of. */
function reasons(hit, modalities) {
  const lines = (hit?.found ?? []).map((by) => FOUND_BY[by]?.[1]).filter(Boolean);
  const sums = (hit?.why ?? []).filter((one) => one.share != null && Math.abs(one.share) >= 0.005).map((one) => {
    const what = one.item ? `its ${met(hit, one.item, modalities)} and the ${noun(one.query, modalities)} of the query` : "being near to everything";
    return `${decimals(one.share)} for ${what}`;
  });
  return sums.length ? [...lines, `Its similarity is the sum of ${sums.join(", ")}`] : lines;
}

function score(item, modalities) {
  if (item.similarity == null) return null;
  const why = reason(item, modalities);
  return element("p", { class: "score" }, "similarity ", element("b", {}, decimals(item.similarity)), item.close && !item.found.some((by) => by in FOUND_BY) ? ", close" : null,
    why ? element("span", { class: "why", title: why }, `by ${why}`) : null);
}

// ---- sounds and films

const isFilm = (file) => file.type.startsWith("video/");
const heard = (item, modalities) => item.modalities.filter((name) => item.files[name] && (modalities[name]?.kind === "audio" || isFilm(item.files[name])));
const clock = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.round(seconds) % 60).padStart(2, "0")}`;
const inView = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    inView.unobserve(target);
    target.dispatchEvent(new Event("inview"));
  }
});

/** A button that plays and stops, and says how long it is as soon as it can be seen. */
function playButton(item, name, modalities) {
  const audio = element("audio", { preload: "none", src: item.files[name].url });
  const time = element("span", { class: "time" }, "");
  const what = `${noun(name, modalities)} of ${title(item)}`;
  const node = button(time, "play", () => (audio.paused ? audio.play() : audio.pause()), { class: "quiet play", "aria-label": `Play ${what}` });
  const told = (kind, verb) => { node.firstChild.replaceWith(icon(kind)); node.setAttribute("aria-label", `${verb} ${what}${time.textContent ? `, ${time.textContent}` : ""}`); };
  audio.addEventListener("play", () => {
    for (const other of document.querySelectorAll("audio, video")) if (other !== audio) other.pause();
    told("pause", "Stop");
  });
  audio.addEventListener("pause", () => told("play", "Play"));
  audio.addEventListener("error", () => { node.disabled = true; time.textContent = "cannot be played"; });
  audio.addEventListener("loadedmetadata", () => {
    if (Number.isFinite(audio.duration)) time.textContent = clock(audio.duration);
    if (audio.paused) told("play", "Play");
  });
  node.addEventListener("inview", () => { audio.preload = "metadata"; });
  inView.observe(node);
  return [node, audio];
}

const span = ([begin, end]) => `${clock(begin)} to ${clock(end)}`;

/** How long a video is, and where the query is nearest to it; it plays where the item is opened. */
function filmTime(item, name) {
  const time = element("span", { class: "time" });
  const node = element("span", { class: "film" }, icon("play"), time);
  node.addEventListener("inview", () => {
    const film = element("video", { preload: "metadata", src: item.files[name].url });
    film.addEventListener("loadedmetadata", () => {
      time.textContent = item.segment ? `at ${clock(item.segment[0])}` : clock(film.duration);
      if (item.segment) node.title = `${span(item.segment)} of ${clock(film.duration)}`;
    });
  });
  inView.observe(node);
  return [node];
}

/** A video starts where the query is nearest to it. */
function player(item, name, modalities, segment) {
  const tag = isFilm(item.files[name]) ? "video" : "audio";
  const from = tag === "video" && segment ? `#t=${segment[0]}` : "";
  return element(tag, { controls: true, preload: "metadata", src: item.files[name].url + from, "aria-label": `${noun(name, modalities)} of ${title(item)}` });
}

// ---- an item among others

/** The picture; without one, what is written about the item, or what it has. */
function shot(item, modalities) {
  const empty = () => element("div", { class: "shot none" },
    firstLine(item) && !same(title(item), firstLine(item)) ? element("p", {}, firstLine(item)) : kindIcon(item.modalities[0], modalities));
  if (!item.thumbnail) return empty();
  const image = element("img", { src: item.thumbnail, alt: "", loading: "lazy", decoding: "async" });
  const box = element("div", { class: "shot" }, image);
  image.addEventListener("error", () => box.replaceWith(empty()), { once: true });
  return box;
}

/** One item in the grid. `href` opens it, `like` searches by it. */
export function card(item, modalities, href, like) {
  const said = item.thumbnail && !same(title(item).split("/").at(-1), firstLine(item)) ? firstLine(item) : "";
  return element("li", { class: "card" }, shot(item, modalities), element("div", { class: "body" },
    element("h3", {}, element("a", { href, "data-item": item.id, title: item.id }, ...titleNodes(item))),
    said ? element("p", { class: "said", title: said }, said) : null,
    score(item, modalities),
    element("div", { class: "foot" }, seenList(item, modalities),
      ...heard(item, modalities).flatMap((name) => (isFilm(item.files[name]) ? filmTime(item, name) : playButton(item, name, modalities))),
      button(null, "like", () => like(item), { class: "quiet square", "aria-label": `More like this: ${title(item)}`, title: "More like this" }))));
}

/** All that is known of one item, what it lacks included; `hit` is what the search said about it. */
export function itemView(item, hit, modalities, like, changes) {
  const fact = (name, value) => (value == null || value === "" ? null : element("span", {}, `${name} `, element("b", {}, String(value))));
  const certainty = item.certainty == null ? null : `${Math.round(100 * item.certainty)} %`;
  const others = Object.entries(item.columns).filter(([name]) => !(name in modalities));
  const why = reasons(hit, modalities);
  if (hit?.segment) why.push(`The nearest part of its video is from ${span(hit.segment)}`);
  return [
    element("div", { class: "facts" }, title(item) === item.id ? null : fact("name", item.id), fact("label", item.label),
      fact("similarity", hit?.similarity == null ? null : decimals(hit.similarity)), fact("certainty", certainty),
      button("More like this", "like", () => like(item)), ...changes),
    why.length ? element("div", { class: "modality" }, element("h3", {}, "Why it was found"), element("ul", { class: "reasons" }, ...why.map((line) => element("li", {}, line)))) : "",
    ...Object.keys(modalities).filter((name) => known(name, modalities)).map((name) => modalityView(item, name, modalities, hit?.segment)),
    others.length ? element("div", { class: "facts" }, ...others.map(([name, value]) => fact(name, value)).filter(Boolean)) : "",
  ];
}

function modalityView(item, name, modalities, segment) {
  if (!item.modalities.includes(name)) {
    return element("p", { class: "gap" }, icon("missing"), `no ${noun(name, modalities)}`);
  }
  return element("div", { class: "modality" }, element("h3", {}, kindIcon(name, modalities), noun(name, modalities)), content(item, name, modalities, segment));
}

function content(item, name, modalities, segment) {
  const { kind } = modalities[name];
  const file = item.files[name];
  const words = name in item.columns ? item.columns[name] : name === "text" || (kind === "text" && alone(name, modalities)) ? item.text : null;
  if (words) return element("blockquote", {}, String(words));
  const image = (source) => element("img", { src: source, alt: `${noun(name, modalities)} of ${title(item)}` });
  const pictured = item.modalities.find((one) => modalities[one]?.kind === "image");
  if (kind === "image" && !file && item.thumbnail && name === pictured) return image(item.thumbnail);
  if (!file) return element("p", { class: "unshown" }, "It is there, but the collection keeps only numbers made of it.");
  return kind === "audio" || isFilm(file) ? player(item, name, modalities, segment) : image(file.url);
}

// ---- the query

/** A part of the query that can be taken out again; `choose` says which column a file is compared with, if there are several. */
export function queryPart(label, picture, kind, remove, choose = null) {
  const image = picture ? element("img", { src: picture, alt: "" }) : icon(kind);
  if (picture) image.addEventListener("error", () => image.replaceWith(icon(kind)), { once: true });
  return element("li", {}, image, element("span", {}, label), choose, button(null, "close", remove, { class: null, "aria-label": `Remove ${label}` }));
}

/** Which of several modalities of a kind a file is compared with. */
export function columnChoice(names, chosen, modalities, change) {
  const select = element("select", { "aria-label": "Compare it with" }, ...names.map((name) => element("option", { value: name, selected: name === chosen }, `as ${noun(name, modalities)}`)));
  select.addEventListener("change", () => change(select.value));
  return select;
}

export function filterChoice(name, modalities) {
  const options = [["", "any"], ["having", "must have"], ["lacking", "must lack"]];
  return element("label", {}, kindIcon(name, modalities), noun(name, modalities),
    element("select", { name, "aria-label": noun(name, modalities) }, ...options.map(([value, words]) => element("option", { value }, words))));
}
