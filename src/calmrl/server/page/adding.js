// Adding an item, where the server was started with --allow-add.

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
  const button = form.querySelector("[type=submit]");
  button.disabled = true;
  try {
    const item = await ask("/api/items", { method: "POST", body: content });
    form.reset();
    at("adding").close();
    added(item);
  } catch (error) {
    complain(error.message);
  } finally {
    button.disabled = false;
  }
}

/** `ask` sends a request, `added` is called with the new item, `searchable` says whether a kind can be encoded. */
export function listenForAdding(about, ask, added, searchable) {
  at("adding-open").hidden = !about.allow_add;
  if (!about.allow_add) return;
  at("adding-image").hidden = !searchable("image");
  at("adding-sound").hidden = !searchable("audio");
  at("adding-open").addEventListener("click", () => { complain(""); at("adding").showModal(); });
  at("adding-close").addEventListener("click", () => at("adding").close());
  at("adding-form").addEventListener("submit", (event) => {
    event.preventDefault();
    add(event.target, about, ask, added);
  });
}
