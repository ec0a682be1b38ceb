"use strict";
// Filters of the heat map: an entry is hidden unless its type and its releases of TVM are those that are chosen.

{
  const filters = document.getElementById("heat-filters");
  const tables = [...document.querySelectorAll("table.heat")];
  if (filters) filters.hidden = false;
  const chosen = (name) => filters.querySelector(`[data-filter=${name}]`).value;

  filters?.addEventListener("change", () => {
    const dtype = chosen("dtype");
    const tvm = chosen("tvm");
    for (const entry of tables.flatMap((table) => [...table.querySelectorAll("td a")])) {
      entry.hidden = (dtype && entry.dataset.dtype !== dtype) || (tvm && !entry.dataset.tvm.split(" ").includes(tvm));
    }
    const rows = tables.flatMap((table) => [...table.tBodies[0].rows]);
    for (const row of rows) row.hidden = !row.querySelector("td a:not([hidden])");
    const shown = rows.filter((row) => !row.hidden).length;
    filters.querySelector("[role=status]").textContent = `${shown} of ${rows.length} networks`;
  });
}
