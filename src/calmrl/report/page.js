"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending" || !head.classList.contains("num") && !head.hasAttribute("aria-sort");
      const key = row => {
        const cell = row.cells[column];
        return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
      };
      const order = (a, b) => {
        const x = key(a), y = key(b);
        const numbers = typeof x === "number" && typeof y === "number";
        if (!numbers && typeof x !== typeof y) return typeof x === "number" ? -1 : 1;
        return (up ? 1 : -1) * (numbers ? x - y : String(x).localeCompare(String(y), "en", {numeric: true}));
      };
      body.append(...[...body.rows].sort(order));
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
    });
  });
}
