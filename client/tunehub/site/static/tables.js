"use strict";
// Tables: a button in each heading sorts the rows; where a list has more pages, the rows of all of them. A box that does
// not scroll is no stop of the keyboard. Commands can be copied.

const ROWS_SHOWN = 100;

// What a cell is sorted by: a number where its column has numbers; null for an empty cell, which always comes last.
const sortKey = (text, numeric) => {
  if (!text) return null;
  return numeric ? parseFloat(text.replaceAll(",", "")) : text;
};

function compare(one, other, falling) {
  if (one === null || other === null) return (one === null) - (other === null);
  const order = typeof one === "number" ? one - other : one.localeCompare(other, "en", { numeric: true });
  return falling ? -order : order;
}

function sortOwnRows(table, column, numeric, falling) {
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => {
    const cell = row.cells[column]; // none where another one spans columns
    return [cell?.dataset.value ? parseFloat(cell.dataset.value) : sortKey(cell?.textContent.trim(), numeric), row];
  });
  body.append(...keyed.sort(([one], [other]) => compare(one, other, falling)).map(([, row]) => row));
}

function listRow([path, note, ...columns], numeric) {
  return element("tr", {}, ...columns.map((column, number) => {
    const text = String(Array.isArray(column) ? column[1] : column);
    if (number) return element("td", numeric[number] ? { class: "n" } : {}, text);
    const link = element("a", { href: `${root}${path}/index.html` }, text);
    return element("th", { scope: "row" }, link, ...(note ? [" ", element("span", { class: "tag bad" }, note)] : []));
  }));
}

async function sortWholeList(table, kind, column, numeric, falling) {
  const rows = (await rowsOf(kind)).map((row) => {
    const value = row[column + 2];
    return [Array.isArray(value) ? value[0] : value === "" ? null : value, row];
  });
  rows.sort(([one], [other]) => compare(one, other, falling));
  const pager = document.querySelector("nav.pager");
  const count = Math.ceil(rows.length / ROWS_SHOWN);
  const show = (page) => {
    const some = rows.slice((page - 1) * ROWS_SHOWN, page * ROWS_SHOWN);
    table.tBodies[0].replaceChildren(...some.map(([, row]) => listRow(row, numeric)));
    const button = (text, to) => {
      const made = element("button", { type: "button" }, text);
      made.disabled = to < 1 || to > count;
      made.addEventListener("click", () => { show(to); table.scrollIntoView({ block: "start" }); });
      return made;
    };
    pager.replaceChildren(button("Previous", page - 1), `Page ${page} of ${count}`, button("Next", page + 1));
  };
  show(1);
}

for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  const numeric = headings.map((heading) => heading.classList.contains("n"));
  const { rows: kind } = table.dataset;
  if (!kind && table.tBodies[0].rows.length < 2) continue;
  headings.forEach((heading, column) => {
    if (!heading.textContent.trim()) return;
    const button = element("button", { type: "button", class: "sort" }, ...heading.childNodes);
    heading.replaceChildren(button);
    button.addEventListener("click", async () => {
      const now = heading.getAttribute("aria-sort");
      const falling = now ? now === "ascending" : numeric[column];
      for (const each of headings) each.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
      if (kind) await sortWholeList(table, kind, column, numeric, falling);
      else sortOwnRows(table, column, numeric[column], falling);
    });
  });
}

{
  const boxes = document.querySelectorAll(".scroll");
  const measured = new ResizeObserver((changes) => {
    for (const { target } of changes) {
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  boxes.forEach((box) => measured.observe(box));
}

for (const command of navigator.clipboard ? document.querySelectorAll("pre.copy") : []) {
  const button = element("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(command.querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  command.append(button);
}
