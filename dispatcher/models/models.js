// Stores selected models in the address (`pick`), so the selection survives sorting, filtering, paging and updates.
// `pick=*` selects all models that match. Without this script the checkboxes form a plain form with a button.
"use strict";
(() => {
  const ALL = "*", MAX_MODELS = 500;
  const shown = () => [...document.querySelectorAll("#rows input[name=pick]")].filter((each) => each.value !== ALL);
  document.addEventListener("change", (event) => {
    const { target } = event;
    if (!target.matches("#rows input[name=pick]")) return;
    const url = new URL(location.href);
    const chosen = new Set(url.searchParams.getAll("pick").join(",").split(",").filter(Boolean));
    if (chosen.delete(ALL)) shown().forEach((each) => each.checked && chosen.add(each.value));
    if (target.value === ALL) {
      chosen.clear();
      shown().forEach((each) => {
        if (each.type !== "checkbox") return;
        each.checked = target.checked;
        each.closest("tr").classList.toggle("chosen", target.checked);
      });
    } else target.closest("tr").classList.toggle("chosen", target.checked);
    if (target.checked) chosen.add(target.value);
    else chosen.delete(target.value);
    const pick = [...chosen].slice(-MAX_MODELS).join(",");
    if (pick) url.searchParams.set("pick", pick);
    else url.searchParams.delete("pick");
    url.search = url.search.replaceAll("%2C", ",");
    document.dispatchEvent(new CustomEvent("live:go", { detail: { url: url.href, isNew: false } }));
  });
})();
