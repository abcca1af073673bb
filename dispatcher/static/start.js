// Says that an archive is too large before it is sent, and that it is being sent. The server checks again.
"use strict";
(() => {
  const file = document.getElementById("archive");
  const said = document.getElementById("upload");
  const mib = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;

  file.addEventListener("change", () => {
    const chosen = file.files[0];
    const isTooLarge = chosen && chosen.size > Number(file.dataset.limit);
    const text = `This file is ${mib(chosen?.size)}, the limit is ${mib(Number(file.dataset.limit))}.`;
    file.setCustomValidity(isTooLarge ? text : "");
    said.textContent = isTooLarge ? text : "";
  });

  file.form.addEventListener("submit", (event) => {
    if (!file.checkValidity()) {
      event.preventDefault();
      file.focus();
      return;
    }
    const chosen = file.files[0];
    said.textContent = chosen ? `Sending ${mib(chosen.size)}; leaving the page cancels it.` : "";
  });
})();
