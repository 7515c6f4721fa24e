// Files dropped or pasted anywhere on the page; in the dialog for adding, only on its own inputs.

const at = (id) => document.getElementById(id);
const withFiles = (event) => event.dataTransfer?.types.includes("Files");
const forAdding = (event) => at("adding").open && event.target.type === "file";

/** `take` is called with the files. */
export function listenForDrops(take) {
  let depth = 0;
  const over = (change) => {
    depth = Math.max(0, depth + change);
    at("drop").classList.toggle("on", depth > 0 && !at("adding").open);
  };
  addEventListener("dragenter", (event) => { if (withFiles(event) && !forAdding(event)) { event.preventDefault(); over(1); } });
  addEventListener("dragleave", (event) => { if (withFiles(event) && !forAdding(event)) over(-1); });
  addEventListener("dragover", (event) => { if (withFiles(event) && !forAdding(event)) event.preventDefault(); });
  addEventListener("drop", (event) => {
    if (!withFiles(event) || forAdding(event)) return;
    event.preventDefault();
    over(-depth);
    if (!at("adding").open) take(event.dataTransfer.files);
  });
  addEventListener("paste", (event) => {
    if (event.clipboardData?.files.length && !at("adding").open) take(event.clipboardData.files);
  });
}
