"use strict";
// Filters of the heat map: an entry is hidden unless its type and its releases of TVM are those that are chosen.
const filters = document.getElementById("heat-filters");
if (filters) {
  filters.hidden = false;
  filters.addEventListener("change", () => {
    const chosen = Object.fromEntries([...filters.querySelectorAll("select")].map((each) => [each.dataset.filter, each.value]));
    for (const entry of document.querySelectorAll("#heat td a")) {
      const fits = (!chosen.dtype || entry.dataset.dtype === chosen.dtype) && (!chosen.tvm || entry.dataset.tvm.split(" ").includes(chosen.tvm));
      entry.hidden = !fits;
    }
  });
}
