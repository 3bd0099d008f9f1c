"use strict";
// Sorts a table by the column whose header was pressed; rows of one tbody stay together.
for (const table of document.querySelectorAll("table.sortable")) {
  const headers = [...table.tHead.rows[0].cells];
  const original = [...table.tBodies];
  const keyOf = (body, column) => {
    const cell = body.rows[0].cells[column];
    return { number: cell.dataset.value === undefined ? null : Number(cell.dataset.value),
      text: cell.textContent };
  };
  // Words come after all numbers and empty cells last, whichever way the numbers run.
  const rank = (key) => (key.number !== null ? 0 : key.text !== "" ? 1 : 2);
  headers.forEach((header, column) => {
    header.querySelector("button").addEventListener("click", () => {
      const before = header.getAttribute("aria-sort");
      const next = { ascending: "descending", descending: null }[before];
      const order = before === null ? "ascending" : next;
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      let bodies = original;
      if (order) {
        header.setAttribute("aria-sort", order);
        const sign = order === "ascending" ? 1 : -1;
        const keyed = original.map((body) => ({ body, key: keyOf(body, column) }));
        keyed.sort((a, b) => rank(a.key) - rank(b.key) ||
          sign * (a.key.number !== null ? a.key.number - b.key.number
            : a.key.text.localeCompare(b.key.text, "en", { numeric: true })));
        bodies = keyed.map((entry) => entry.body);
      }
      table.append(...bodies);
    });
  });
}
