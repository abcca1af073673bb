// Shows the failed rows of a partition below the table without reloading the page.
"use strict";
(() => {
  const line = (kind, values) => {
    const row = document.createElement("tr");
    for (const value of values) {
      const cell = document.createElement(kind);
      cell.textContent = value;
      cell.className = "wrap";
      row.append(cell);
    }
    return row;
  };
  document.addEventListener("click", async (event) => {
    const link = event.target.closest("a[data-failed]");
    if (!link || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const place = document.getElementById("failed-rows"); // absent before the first partition
    const title = document.createElement("h2");
    title.textContent = `Failed rows of ${link.closest("tr").querySelector("th").textContent}`;
    title.tabIndex = -1;
    try {
      const answer = await fetch(link.dataset.failed, { headers: { Accept: "application/json" } });
      const found = await answer.json();
      if (!answer.ok) throw new Error(found.message);
      const table = document.createElement("table");
      table.createTHead().append(line("th", ["Row", "Cause"]));
      table.createTBody().append(...found.rows.map((row) => line("td", [row.id, row.error])));
      const scroll = document.createElement("div");
      scroll.className = "scroll tall";
      scroll.tabIndex = 0;
      scroll.append(table);
      const more = document.createElement("p");
      more.className = "hint";
      const all = document.createElement("a");
      all.href = link.dataset.failed;
      all.download = "failed-rows.json";
      all.textContent = "Download";
      more.append(all);
      place.replaceChildren(title, scroll, more);
    } catch (error) {
      const banner = document.createElement("p");
      banner.className = "banner bad";
      banner.textContent = `The failed rows cannot be read: ${error.message}`;
      place.replaceChildren(title, banner);
    }
    title.focus();
  });
})();
