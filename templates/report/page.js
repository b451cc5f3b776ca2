"use strict";
(() => {
  const get = (id) => document.getElementById(id);
  const table = get("grid"), form = get("filter"), text = get("text"), state = get("state"), backend = get("backend");
  const head = [...table.tHead.rows[0].cells], rows = [...table.tBodies[0].rows];
  const names = rows.map((row) => row.cells[0].textContent.toLowerCase());

  const filter = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = head.map((cell, at) => at === 0 || !backend || !backend.value || cell.dataset.b === backend.value);
    let shown = 0;
    head.forEach((cell, at) => { cell.hidden = !wanted[at]; });
    rows.forEach((row, number) => {
      let has = !state.value;
      [...row.cells].forEach((cell, at) => {
        cell.hidden = !wanted[at];
        has ||= wanted[at] && (cell.className === state.value || cell.querySelector("a." + state.value) !== null);
      });
      row.hidden = !(has && words.every((word) => names[number].includes(word)));
      shown += !row.hidden;
    });
    get("shown").value = `${shown} of ${rows.length} rows`;
    entry();
  };

  const links = () => [...table.querySelectorAll("td a")].filter((link) => link.offsetParent !== null);
  let current = null;
  const entry = (link) => {
    const next = link || (current && current.offsetParent !== null ? current : table.querySelector("tr:not([hidden]) td:not([hidden]) a"));
    if (current) current.tabIndex = -1;
    current = next;
    if (current) current.tabIndex = 0;
  };
  table.querySelectorAll("td a").forEach((link) => { link.tabIndex = -1; });

  const near = (link, down, right) => {
    const cell = link.parentNode, row = cell.parentNode;
    if (right) {
      let next = cell;
      do next = right > 0 ? next.nextElementSibling : next.previousElementSibling;
      while (next && (next.hidden || !next.querySelector("a")));
      return next && next.querySelector("a");
    }
    let next = row;
    do next = down > 0 ? next.nextElementSibling : next.previousElementSibling;
    while (next && (next.hidden || !next.cells[cell.cellIndex].querySelector("a")));
    return next && next.cells[cell.cellIndex].querySelector("a");
  };
  const steps = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] };

  table.addEventListener("keydown", (event) => {
    const link = event.target.closest("td a");
    if (!link || event.ctrlKey || event.metaKey || event.altKey) return;
    let next = null;
    if (steps[event.key]) next = near(link, ...steps[event.key]);
    else if (event.key === "Home") next = links().find((other) => other.closest("tr") === link.closest("tr"));
    else if (event.key === "End") next = links().filter((other) => other.closest("tr") === link.closest("tr")).pop();
    else return;
    event.preventDefault();
    if (next) { entry(next); next.focus(); next.scrollIntoView({ block: "nearest", inline: "center" }); }
  });
  table.addEventListener("focusin", (event) => { if (event.target.matches("td a")) entry(event.target); });

  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, select");
    if (event.key === "/" && !typing) { event.preventDefault(); text.focus(); }
    else if (event.key === "Escape" && typing) { text.value = ""; filter(); }
    else if (event.key === "Escape" && /^#c\d+$/.test(location.hash)) location.hash = "l" + location.hash.slice(2);
  });
  // A cell's text opens by its address alone; what is left to do is to take the focus there and back.
  addEventListener("hashchange", () => {
    const place = /^#[cl]\d+$/.test(location.hash) && get(location.hash.slice(1));
    if (place) place.focus();
  });

  for (const field of [text, state, backend]) if (field) field.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  filter();
})();
