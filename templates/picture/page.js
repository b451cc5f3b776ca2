"use strict";
(() => {
  const form = document.getElementById("filter"), text = document.getElementById("text");
  const selects = [...form.querySelectorAll("select")];
  const sections = [...document.querySelectorAll("main section")];
  const rows = sections.map((section) => [...section.querySelectorAll("tbody tr")]);
  const words = rows.map((some) => some.map((row) => row.textContent.toLowerCase()));

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
      section.hidden = here === 0 && rows[at].length > 0;
      shown += here;
      all += rows[at].length;
    });
    document.getElementById("shown").value = `${shown} of ${all} rows`;
  };

  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !["INPUT", "SELECT"].includes(document.activeElement.tagName)) {
      event.preventDefault();
      text.focus();
    } else if (event.key === "Escape") {
      form.reset();
      filter();
    }
  });
  filter();
})();
