// Selects several experiments. The selection survives sorting, paging and updates. A button appears if at least one
// selected experiment allows its command. The server checks each command. Without this script the form still works.
"use strict";
(() => {
  const chosen = new Map(); // name -> allowed commands
  const boxes = () => document.querySelectorAll("#rows input[name=name]:not([type=hidden])");

  const show = () => {
    const bar = document.getElementById("batch");
    if (!bar) return;
    const onPage = new Set();
    for (const box of boxes()) {
      onPage.add(box.value);
      const may = box.closest("tr").dataset.may.split(" ");
      if (chosen.has(box.value)) chosen.set(box.value, may);
      box.checked = chosen.has(box.value);
      box.closest("tr").classList.toggle("chosen", box.checked);
    }
    const every = document.querySelector("#rows [data-all]");
    every.hidden = false;
    every.checked = onPage.size > 0 && [...onPage].every((name) => chosen.has(name));
    every.indeterminate = !every.checked && [...onPage].some((name) => chosen.has(name));
    bar.hidden = chosen.size === 0;
    bar.querySelector("[data-count]").textContent = `${chosen.size} selected`;
    for (const button of bar.querySelectorAll("button[value]")) {
      button.hidden = ![...chosen.values()].some((may) => may.includes(button.value));
    }
    bar.querySelectorAll("input[type=hidden]").forEach((each) => each.remove());
    for (const name of chosen.keys()) {
      if (onPage.has(name)) continue; // its checkbox sends the name
      const field = document.createElement("input");
      Object.assign(field, { type: "hidden", name: "name", value: name });
      bar.append(field);
    }
  };

  const choose = (box, isChosen) => {
    if (isChosen) chosen.set(box.value, box.closest("tr").dataset.may.split(" "));
    else chosen.delete(box.value);
  };
  document.addEventListener("change", (event) => {
    if (event.target.matches("#rows [data-all]")) for (const box of boxes()) choose(box, event.target.checked);
    else if (event.target.matches("#rows input[name=name]")) choose(event.target, event.target.checked);
    else return;
    show();
  });
  document.addEventListener("command:sent", () => {
    chosen.clear();
    show();
  });
  document.addEventListener("click", (event) => {
    if (!event.target.closest("#batch [data-none]")) return;
    chosen.clear();
    show();
  });
  document.addEventListener("live:updated", show);
  show();
})();
