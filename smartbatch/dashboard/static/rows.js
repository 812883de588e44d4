/* Moves between the rows of an output with j and k, and marks the current one with 1, 2 and 3. */
"use strict";
(() => {
  const rows = [...document.querySelectorAll('main section[id^="row-"]')];
  const keys = { 1: "right", r: "right", 2: "wrong", w: "wrong", 3: "unsure", u: "unsure" };
  rows.forEach((row) => { row.tabIndex = -1; });
  const current = () => rows.indexOf(document.activeElement?.closest('main section[id^="row-"]'));

  const go = (place) => {
    const row = rows[Math.min(Math.max(place, 0), rows.length - 1)];
    row?.focus({ preventScroll: true });
    row?.scrollIntoView({ block: "nearest" });
  };

  const marked = rows.findIndex((row) => `#${row.id}` === location.hash);
  if (marked >= 0) go(marked);

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input, select, textarea")) return;
    const choice = keys[event.key];
    if (event.key === "j") go(current() + 1);
    else if (event.key === "k") go(current() - 1);
    else if (choice && current() >= 0) rows[current()].querySelector(`button[value="${choice}"]`)?.click();
    else return;
    event.preventDefault();
  });
})();
