// Stores selected models in the address (`pick`), so the selection survives sorting, filtering, paging and updates.
// `pick=*,-m03` selects all models that match, except m03. Without this script the checkboxes form a plain form.
"use strict";
(() => {
  const ALL = "*", MAX_MODELS = 500;
  const heading = () => document.querySelector("#rows thead input[name=pick]");
  const showPart = () => {
    const box = heading();
    if (box) box.indeterminate = box.hasAttribute("data-part");
  };
  const mark = (box, isChosen) => {
    box.checked = isChosen;
    box.closest("tr").classList.toggle("chosen", isChosen);
  };
  document.addEventListener("change", ({ target }) => {
    if (!target.matches("#rows input[name=pick]")) return;
    const url = new URL(location.href);
    const chosen = new Set(url.searchParams.getAll("pick").join(",").split(",").filter(Boolean));
    if (target.value === ALL) {
      chosen.clear();
      if (target.checked) chosen.add(ALL);
      for (const box of document.querySelectorAll("#rows tbody input[name=pick]")) mark(box, target.checked);
    } else {
      mark(target, target.checked);
      const [name, isListed] = chosen.has(ALL) ? [`-${target.value}`, !target.checked] : [target.value, target.checked];
      if (isListed) chosen.add(name);
      else chosen.delete(name);
    }
    const pick = [...chosen].filter((name) => name === ALL || chosen.has(ALL) === name.startsWith("-"));
    if (pick.length) url.searchParams.set("pick", (chosen.has(ALL) ? pick : pick.slice(-MAX_MODELS)).join(","));
    else url.searchParams.delete("pick");
    url.search = url.search.replaceAll("%2C", ",");
    document.dispatchEvent(new CustomEvent("live:go", { detail: { url: url.href, isNew: false } }));
  });
  document.addEventListener("live:updated", showPart);
  showPart();
})();
