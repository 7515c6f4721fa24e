// Adding, renaming and removing items, where the server was started with --allow-add.

import { button, capital, element, noun } from "/parts.js";

const at = (id) => document.getElementById(id);

/** What was filled in; empty fields and files that were not chosen are left out. */
function filled(form) {
  const content = new FormData();
  for (const [name, value] of new FormData(form)) {
    if (typeof value === "string" ? value.trim() : value.size) content.set(name, value);
  }
  return content;
}

function complain(sentence) {
  at("adding-problem").textContent = sentence;
  at("adding-problem").hidden = !sentence;
}

async function add(form, about, ask, added) {
  const content = filled(form);
  const bytes = [...content.values()].reduce((sum, value) => sum + (value.size || 0), 0);
  if (bytes > about.limits.body_bytes) {
    return complain(`The files are larger than ${Math.floor(about.limits.body_bytes / 2 ** 20)} MiB.`);
  }
  const submit = form.querySelector("[type=submit]");
  submit.disabled = true;
  try {
    const item = await ask("/api/items", { method: "POST", body: content });
    form.reset();
    at("adding").close();
    added(item);
  } catch (error) {
    complain(error.message);
  } finally {
    submit.disabled = false;
  }
}

/** `ask` sends a request, `added` is called with the new item. */
export function listenForAdding(about, ask, added) {
  at("adding-open").hidden = !about.allow_add;
  if (!about.allow_add) return;
  const takesFiles = Object.keys(about.modalities).filter((name) => ["image", "audio"].includes(about.modalities[name].kind) && about.modalities[name].searchable);
  at("adding-files").replaceChildren(...takesFiles.map((name) => element("label", {}, capital(noun(name, about.modalities)),
    element("input", { type: "file", name, accept: `${about.modalities[name].kind}/*` }))));
  at("adding-open").addEventListener("click", () => { complain(""); at("adding").showModal(); });
  at("adding-close").addEventListener("click", () => at("adding").close());
  at("adding-form").addEventListener("submit", (event) => {
    event.preventDefault();
    add(event.target, about, ask, added);
  });
}

/** Buttons for an item: rename it, where it was added here, and remove it. Each asks once more, in its own place. */
export function changeButtons(item, ask, renamed, removed) {
  const address = `/api/items/${encodeURIComponent(item.id)}`;
  const box = element("div", { class: "change" });
  const problem = element("p", { class: "problem", role: "alert", hidden: true });
  const attempt = async (options, done) => {
    try {
      done(await ask(address, options));
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
  };
  const start = () => {
    problem.hidden = true;
    box.replaceChildren(...(item.added ? [button("Rename", null, rename)] : []), button("Remove", null, remove));
    box.firstChild.focus();
  };
  const rename = () => {
    const name = element("input", { name: "id", maxlength: 2000, value: item.id, required: true, "aria-label": "New name" });
    const form = element("form", {}, name, element("button", { class: "main", type: "submit" }, "Rename"), button("Keep its name", null, start));
    form.addEventListener("submit", (event) => { event.preventDefault(); attempt({ method: "PATCH", body: filled(form) }, renamed); });
    box.replaceChildren(form, problem);
    name.select();
  };
  const remove = () => {
    const sentence = item.added ? "Its files, which were added here, are deleted too." : "Its files stay where they are.";
    const sure = button("Remove it", null, () => attempt({ method: "DELETE" }, removed), { class: "main" });
    box.replaceChildren(element("span", {}, sentence), sure, button("Keep it", null, start), problem);
    sure.focus();
  };
  start();
  return [box];
}
