// Shows the difference while the user types: loads the same page and inserts its difference and errors, without
// touching fields. The form cannot be sent before its difference is shown. Without this script a button shows it.
"use strict";
(() => {
  const form = document.getElementById("terms");
  const AFTER_MS = 350;
  let waiting = 0, newest = 0, isSent = false;
  const difference = document.getElementById("difference");
  const body = () => document.getElementById("difference-body");

  const insert = (page) => {
    for (const field of form.querySelectorAll("[data-field]")) {
      const updated = page.querySelector(`[data-field="${CSS.escape(field.dataset.field)}"]`);
      if (!updated) continue;
      field.querySelector(".said").innerHTML = updated.querySelector(".said").innerHTML;
      const inputs = [field, updated].map((each) => (each.matches("fieldset") ? each : each.querySelector("input, textarea")));
      for (const name of ["aria-invalid", "aria-describedby"]) {
        const value = inputs[1].getAttribute(name);
        if (value === null) inputs[0].removeAttribute(name);
        else inputs[0].setAttribute(name, value);
      }
    }
    // Change the text of the status element instead of replacing it, so that screen readers announce it.
    const [status, newStatus] = [document, page].map((each) => each.querySelector("#difference [role=status]"));
    if (status.textContent !== newStatus.textContent) status.textContent = newStatus.textContent;
    status.className = newStatus.className;
    body().innerHTML = page.getElementById("difference-body").innerHTML;
    body().querySelectorAll("button[data-plain]").forEach((each) => (each.hidden = true));
  };

  const show = async () => {
    const number = ++newest;
    const fields = new URLSearchParams(new FormData(form));
    fields.set("step", "review");
    try {
      const answer = await fetch(form.getAttribute("action"), { method: "POST", body: fields, headers: { Accept: "text/html" } });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (number !== newest) return; // the user has typed since this request
      if (!page.getElementById("difference-body")) throw new Error(page.querySelector("main p")?.textContent || `The server answered ${answer.status}.`);
      insert(page);
    } catch (error) {
      if (number !== newest) return;
      const status = difference.querySelector("[role=status]");
      status.className = "mistake";
      status.textContent = `The difference cannot be loaded. ${error.message}`;
      difference.querySelector("button[data-plain]").hidden = false; // the user can retry
    }
    difference.classList.remove("waits");
  };

  const later = (after) => {
    clearTimeout(waiting);
    newest += 1;
    difference.classList.add("waits");
    difference.querySelectorAll("button[value=send]").forEach((each) => (each.disabled = true));
    waiting = setTimeout(show, after);
  };
  window.addEventListener("pageshow", ({ persisted }) => {
    if (!persisted) return;
    isSent = false; // the Back button has restored the page
    later(0);
  });
  form.addEventListener("input", ({ target }) => later(target.type === "radio" ? 0 : AFTER_MS));
  form.addEventListener("submit", (event) => {
    if (event.submitter?.value === "send") {
      if (isSent) event.preventDefault(); // a double click
      isSent = true;
      const button = event.submitter;
      setTimeout(() => (button.disabled = true)); // later, because the browser does not send a disabled button's value
      return;
    }
    event.preventDefault(); // Enter in a field: show the difference before sending
    const send = difference.querySelector("button[value=send]:enabled");
    if (send) send.focus();
    else later(0);
  });
})();
