"use strict";
// Rows of data/*.js, loaded once, when they are asked for. A page from a file system cannot fetch: a script can be added.

const root = document.body.dataset.root;
const loaded = new Map();

function script(path) {
  if (!loaded.has(path)) {
    loaded.set(path, new Promise((resolve, reject) => {
      const element = document.createElement("script");
      element.src = root + path;
      element.onload = () => resolve(window.TUNEHUB.rows[path]);
      element.onerror = () => { loaded.delete(path); reject(new Error(`${path} could not be read`)); };
      document.head.append(element);
    }));
  }
  return loaded.get(path);
}

// All rows of a kind ("search", "packages", "networks" or "targets"), as client/tunehub/site/data.py describes them.
async function rowsOf(kind) {
  return (await Promise.all(window.TUNEHUB.scripts[kind].map(script))).flat();
}

// An element with attributes and children; text is always a text node.
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
