/* Updates the sections of a page by Server-Sent Events, or by polling if these are unavailable. */
"use strict";
(() => {
  const POLL = 5000, POLLS_PER_STREAM = 6, SPEAK = 10000; // milliseconds, and polls before a stream is tried again
  const news = document.getElementById("news");
  if (!news) return;
  const { root, page } = news.dataset;
  let version = news.dataset.version, source = null, timer = 0, spoken = 0, failed = 0, asked = 0, leaving = false;

  const address = (way) =>
    `${root}/${way}?page=${encodeURIComponent(page)}&seen=${encodeURIComponent(version)}`;

  const say = (text, always) => { // so that screen readers do not announce every change
    const now = Date.now();
    if (always || now - spoken >= SPEAK) { spoken = now; news.textContent = text; }
  };

  const at = () => new Date().toLocaleTimeString();

  const places = (part) => [...part.querySelectorAll("a[href], button, input, select, summary, [tabindex]")];

  const replace = (id, html) => {
    const old = document.getElementById(`${id}-body`);
    if (!old) return;
    const active = document.activeElement;
    if (old.contains(active) && active.matches("input, select, textarea")) return; // the user is filling it in
    const focus = old.contains(active) ? places(old).indexOf(active) : -1;
    const open = [...old.querySelectorAll("details")].map((one) => one.open);
    const scrolled = [...old.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    old.innerHTML = html; // made and escaped by the server
    old.querySelectorAll("details").forEach((one, n) => { if (n in open) one.open = open[n]; });
    old.querySelectorAll(".scroll").forEach((one, n) => { if (n in scrolled) one.scrollLeft = scrolled[n]; });
    sortable(old);
    if (focus >= 0) places(old)[focus]?.focus({ preventScroll: true });
  };

  const orders = new Map(); // by the caption of a table: the column it is sorted by, and the direction

  const sort = (table, column, up) => {
    const key = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
    const compare = (a, b) => {
      const [x, y] = [key(a), key(b)];
      const numbers = x !== "" && y !== "" && !isNaN(x) && !isNaN(y);
      return numbers ? x - y : x.localeCompare(y);
    };
    const rows = [...table.tBodies[0].rows].sort(compare);
    table.tBodies[0].append(...(up ? rows : rows.reverse()));
    [...table.tHead.rows[0].cells].forEach((cell, n) => {
      if (n === column) cell.setAttribute("aria-sort", up ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    });
  };

  const sortable = (part) => part.querySelectorAll("table.sortable").forEach((table) => {
    const name = table.caption.textContent;
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      if (!cell.textContent.trim() || table.tBodies[0].rows.length < 2) return;
      const button = document.createElement("button");
      button.textContent = cell.textContent;
      cell.replaceChildren(button);
      button.addEventListener("click", () => {
        const up = cell.getAttribute("aria-sort") !== "ascending";
        orders.set(name, [column, up]);
        sort(table, column, up);
      });
    });
    if (orders.has(name)) sort(table, ...orders.get(name));
  });
  sortable(document);

  const take = (sections, next) => {
    for (const [id, html] of Object.entries(sections)) replace(id, html);
    version = next;
    if (Object.keys(sections).length) say(`Updated at ${at()}.`, false);
  };

  const poll = async () => {
    try {
      const answer = await fetch(address("news"), { headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error(answer.status);
      const news = await answer.json();
      take(news.sections, news.version);
      if (failed) say(`Connected again at ${at()}.`, true);
      failed = 0;
    } catch {
      if (!failed) say(`Not updated since ${at()}: the dashboard does not respond.`, true);
      failed += 1;
    }
    asked += 1;
    if (!document.hidden) timer = setTimeout(asked % POLLS_PER_STREAM ? poll : listen, POLL);
  };

  const listen = () => {
    source = new EventSource(address("live"));
    source.addEventListener("sections", (event) => take(JSON.parse(event.data), event.lastEventId));
    source.onerror = () => {
      if (leaving || source?.readyState !== EventSource.CLOSED) return; // the browser reopens it
      stop();
      poll();
    };
  };

  const stop = () => {
    if (source) source.close();
    source = null;
    clearTimeout(timer);
  };

  document.addEventListener("visibilitychange", () => {
    stop();
    if (!document.hidden) listen();
  });
  window.addEventListener("beforeunload", () => { leaving = true; });
  window.addEventListener("pagehide", stop);
  window.addEventListener("pageshow", (event) => { if (event.persisted) { leaving = false; stop(); listen(); } });
  requestAnimationFrame(() => setTimeout(() => { // the page is painted first
    say(`Updates live; loaded at ${at()}.`, true);
    stop();
    if (!document.hidden) listen();
  }));
})();
