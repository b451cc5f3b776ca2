"use strict";
(() => {
  const form = document.getElementById("filter"), text = document.getElementById("text");
  const selects = [...form.querySelectorAll("select")];
  const sections = [...document.querySelectorAll("main section")];
  // What is chosen from: what the cells of a grid have.
  const rows = sections.map((section) => [...section.querySelectorAll(".grid tbody li")]);
  const words = rows.map((some, at) => some.map((row) => {
    const about = row.querySelector("a"), line = row.closest("tr").cells[0].textContent;
    const reason = about && document.getElementById(about.hash.slice(1));
    return [sections[at].querySelector("h2"), row, reason].map((one) => (one ? one.textContent : line)).join(" ").toLowerCase() + line;
  }));
  const folds = [...document.querySelectorAll("details")], open = folds.map((fold) => fold.open);

  const filter = () => {
    const wanted = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0, all = 0;
    sections.forEach((section, at) => {
      let here = 0;
      rows[at].forEach((row, number) => {
        const fits = selects.every((select) => !select.value || (row.dataset[select.dataset.key] || "").split(" ").includes(select.value));
        row.hidden = !(fits && wanted.every((word) => words[at][number].includes(word)));
        here += !row.hidden;
      });
      section.querySelectorAll(".grid tbody tr").forEach((row) => { row.hidden = !row.querySelector("li:not([hidden])"); });
      section.hidden = here === 0 && rows[at].length > 0;
      shown += here;
      all += rows[at].length;
    });
    const asked = wanted.length > 0 || selects.some((select) => select.value);
    folds.forEach((fold, at) => { fold.open = open[at] || (asked && shown <= 200); });
    document.getElementById("shown").value = `${shown} of ${all} rows shown`;
  };

  addEventListener("hashchange", () => { const place = document.querySelector("article:target"); if (place) place.focus(); });

  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !["INPUT", "SELECT"].includes(document.activeElement.tagName)) {
      event.preventDefault();
      text.focus();
    } else if (event.key === "Escape" && document.querySelector("article:target")) {
      location.hash = document.querySelector("article:target .close").hash;
    } else if (event.key === "Escape") {
      form.reset();
      filter();
    }
  });
  filter();
})();
