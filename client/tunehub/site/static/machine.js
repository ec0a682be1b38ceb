"use strict";
// "Is my machine here?": what `tunehub doctor` printed opens what there is for the machine that it names.

{
  const box = document.getElementById("machine-paste");
  if (box) box.hidden = false;
  const machines = [...document.querySelectorAll("details.machine")];
  const escaped = (word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const named = (text, word) => new RegExp(`(^|[^a-z0-9_-])${escaped(word)}([^a-z0-9_-]|$)`).test(text);

  box?.addEventListener("input", () => {
    const all = box.querySelector("textarea").value.toLowerCase();
    const lines = all.split("\n").filter((line) => /\b(cpu|gpu):/.test(line));
    const text = lines.length ? lines.join("\n") : all;
    const found = machines.filter((each) => each.dataset.words.split("|").some((word) => named(text, word)));
    for (const each of machines) each.open = found.includes(each);
    const names = found.map((each) => each.querySelector(".name").textContent);
    const none = all.trim() ? "No package is for it: the nearest one serves, and kernels by rule do the rest." : "";
    box.querySelector("[role=status]").textContent = names.length ? `Here: ${names.join(", ")}` : none;
  });
}
