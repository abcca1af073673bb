// Stores selected models in the address (`pick`), so the selection survives sorting, filtering, paging and updates.
// Without this script the checkboxes form a plain form with a button.
"use strict";
(() => {
  const MAX_MODELS = 50;
  document.addEventListener("change", (event) => {
    if (!event.target.matches("#rows input[name=pick]")) return;
    const url = new URL(location.href);
    const chosen = new Set(url.searchParams.getAll("pick").join(",").split(",").filter(Boolean));
    if (event.target.checked) chosen.add(event.target.value);
    else chosen.delete(event.target.value);
    const pick = [...chosen].slice(-MAX_MODELS).join(",");
    if (pick) url.searchParams.set("pick", pick);
    else url.searchParams.delete("pick");
    url.search = url.search.replaceAll("%2C", ",");
    event.target.closest("tr").classList.toggle("chosen", event.target.checked);
    document.dispatchEvent(new CustomEvent("live:go", { detail: { url: url.href, isNew: false } }));
  });
})();
