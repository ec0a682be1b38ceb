"use strict";
// The search: a combobox over the names of packages, networks and targets. All words typed must be parts of a name.

const KINDS = { p: "package", n: "network", t: "target" };
const MOST_FOUND = 12;

{
  const box = document.getElementById("search");
  const query = document.getElementById("query");
  const list = document.getElementById("found");
  const status = document.getElementById("found-status");
  let entries = null;
  let asked = 0;
  let active = -1;

  const load = async () => {
    if (!entries) {
      const { folders } = window.TUNEHUB;
      entries = (await rowsOf("search")).flatMap(([kinds, name, about, path]) => [...kinds].map((kind) => ({
        kind, name, about, text: `${name} ${about} ${KINDS[kind]}`.toLowerCase(),
        href: `${root}${path ?? folders[kind] + name}/index.html`,
      })));
    }
    return entries;
  };

  // The smaller the better: the name itself, its beginning, the beginning of a part of it, anywhere.
  const rank = (entry, words) => {
    const name = entry.name.toLowerCase();
    const place = name.indexOf(words[0]);
    if (name === words.join(" ")) return 0;
    if (place === 0) return 1;
    return place > 0 && !/[a-z0-9]/.test(name[place - 1]) ? 2 : 3;
  };

  const find = (all, text) => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const fitting = words.length ? all.filter((entry) => words.every((word) => entry.text.includes(word))) : [];
    const ranked = fitting.map((entry) => [rank(entry, words), entry]);
    return ranked.sort(([a, one], [b, other]) => a - b || one.name.length - other.name.length).map(([, entry]) => entry);
  };

  const close = () => {
    list.hidden = true;
    query.setAttribute("aria-expanded", "false");
    query.removeAttribute("aria-activedescendant");
    active = -1;
  };

  const choose = (place) => {
    const options = [...list.querySelectorAll("[role=option]")];
    if (!options.length) return;
    active = (place + options.length) % options.length;
    options.forEach((option, number) => option.setAttribute("aria-selected", String(number === active)));
    options[active].scrollIntoView({ block: "nearest" });
    query.setAttribute("aria-activedescendant", options[active].id);
  };

  const show = (found) => {
    const options = found.slice(0, MOST_FOUND).map((entry, number) => element(
      "a", { role: "option", id: `found-${number}`, href: entry.href, tabindex: "-1", "aria-selected": "false" },
      element("span", { class: "name" }, entry.name), element("span", { class: "about" }, entry.about),
      element("span", { class: "tag" }, KINDS[entry.kind]),
    ));
    const more = found.length - options.length;
    const note = more ? `${more.toLocaleString("en")} more` : found.length ? "" : "Nothing has this name.";
    status.textContent = found.length ? `${found.length.toLocaleString("en")} found` : note;
    list.replaceChildren(...options, ...(note ? [element("p", { class: "note", "aria-hidden": "true" }, note)] : []));
    list.hidden = false;
    query.setAttribute("aria-expanded", "true");
    active = -1;
    if (options.length) choose(0);
  };

  const answer = async () => {
    const number = ++asked;
    if (!query.value.trim()) {
      status.textContent = "";
      close();
      return;
    }
    try {
      const all = await load();
      if (number === asked) show(find(all, query.value));
    } catch (error) {
      status.textContent = String(error.message);
    }
  };

  query.addEventListener("focus", () => load().catch(() => {}));
  query.addEventListener("input", answer);
  query.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && list.hidden) answer();
    else if (step) choose(active + step);
    else if (event.key === "Enter") list.querySelector("[aria-selected=true]")?.click();
    else if (event.key === "Escape" && !list.hidden) close();
    else if (event.key === "Escape") query.blur();
    else return;
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea, [contenteditable]");
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    query.focus();
    query.select();
  });
  document.addEventListener("pointerdown", (event) => { if (!box.contains(event.target)) close(); });
  box.addEventListener("focusout", (event) => { if (!box.contains(event.relatedTarget)) close(); });
  box.hidden = false;
  if (document.activeElement === query) answer(); // for what was typed before this script was there
}
