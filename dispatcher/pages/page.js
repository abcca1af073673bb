// On all pages: running times in local time or UTC, copy buttons, menus, keyboard shortcuts, and commands that do not
// leave the page. Without this script times do not run and are in UTC, and commands reload the page.
"use strict";
(() => {
  const zone = document.getElementById("zone");
  const keys = document.getElementById("keys");
  const shortcuts = document.getElementById("shortcuts");
  const STEPS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  let isUtc = false;
  try {
    isUtc = localStorage.getItem("zone") === "utc";
  } catch {} // storage may be disabled: then the setting lasts until the page closes

  // Same formats as dispatcher/pages/formats.py.
  const duration = (seconds) => {
    let left = Math.max(0, Math.round(seconds));
    const parts = [];
    for (const [length, name] of STEPS) {
      if (left >= length) {
        parts.push(`${Math.floor(left / length)} ${name}`);
        left %= length;
      } else if (parts.length) break;
    }
    return parts.slice(0, 2).join(" ") || "0 s";
  };
  const ago = (seconds) => (seconds < 1 ? "now" : `${duration(seconds).split(" ").slice(0, 2).join(" ")} ago`);
  const zoneName = () => (isUtc ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone.split("/").pop().replace("_", " "));
  const clockText = (date) => date.toLocaleTimeString("en-GB", isUtc ? { timeZone: "UTC" } : {});
  const exact = (date) => {
    if (isUtc) return date.toISOString().replace(/\.\d+/, "");
    const minutes = -date.getTimezoneOffset();
    const offset = `${minutes < 0 ? "-" : "+"}${new Date(Math.abs(minutes) * 60000).toISOString().slice(11, 16)}`;
    return new Date(date.getTime() + minutes * 60000).toISOString().slice(0, 19) + offset;
  };
  window.clockText = (date) => `${clockText(date)}${isUtc ? " UTC" : ""}`;

  const set = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };
  const tick = () => {
    const now = Date.now() + skew;
    for (const element of document.querySelectorAll("time[data-show]")) {
      const date = new Date(element.dateTime);
      const past = (now - date) / 1000;
      const kind = element.dataset.show;
      set(element, kind === "ago" ? ago(past) : kind === "since" ? duration(past) : kind === "left" ? duration(-past)
        : kind === "date" ? exact(date).replace("T", " ").slice(0, 19) : `${clockText(date)} ${zoneName()}`);
      const title = exact(date);
      if (element.title !== title) element.title = title;
    }
  };
  // Ages use the server's clock, because the client's clock may be minutes off.
  const served = Number(document.documentElement.dataset.now || 0) * 1000;
  const skew = served && Math.abs(served - Date.now()) > 5000 ? served - Date.now() : 0;
  const showZone = () => {
    zone.hidden = false;
    zone.textContent = zoneName();
    tick();
  };
  const switchZone = () => {
    isUtc = !isUtc;
    try {
      localStorage.setItem("zone", isUtc ? "utc" : "local");
    } catch {}
    showZone();
    document.dispatchEvent(new CustomEvent("zone:changed"));
  };
  zone.addEventListener("click", switchZone);
  showZone();
  setInterval(tick, 1000);

  // Show buttons that need scripts; hide buttons for browsers without scripts.
  const reveal = () => {
    document.querySelectorAll("button[data-copy][hidden]").forEach((each) => (each.hidden = false));
    document.querySelectorAll("button[data-auto], button[data-plain]").forEach((each) => (each.hidden = true));
  };
  reveal();
  document.addEventListener("live:updated", () => {
    reveal();
    tick();
  });

  document.addEventListener("click", async (event) => {
    const copy = event.target.closest("button[data-copy]");
    if (copy) {
      try {
        await navigator.clipboard.writeText(copy.dataset.copy);
        copy.textContent = "Copied";
      } catch {
        const range = document.createRange(); // the clipboard needs TLS: select the text instead
        range.selectNodeContents(copy.parentElement.querySelector("code") || copy);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
      }
      setTimeout(() => (copy.textContent = "Copy"), 1500);
    }
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      if (!menu.contains(event.target)) menu.open = false;
    }
    event.target.closest("[data-toast-close]")?.parentElement.remove();
  });
  document.addEventListener("change", (event) => {
    const { target } = event;
    if (target.matches("select, [type=range], [type=checkbox]") && target.form?.querySelector("[data-auto]")) target.form.requestSubmit();
  });

  const toast = (text) => {
    document.querySelectorAll(".toast").forEach((each) => each.remove());
    const box = document.createElement("div");
    box.className = "toast";
    box.setAttribute("role", "alert");
    const close = document.createElement("button");
    close.className = "plain small";
    close.textContent = "Close";
    close.dataset.toastClose = "";
    box.append(text, close);
    document.body.append(box);
  };

  // A command: the button shows the pending state at once; the page shows the actual state later.
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.matches("form[data-action]") || event.defaultPrevented) return;
    event.preventDefault();
    const button = event.submitter;
    const body = new URLSearchParams(new FormData(form, button));
    button.disabled = true;
    const label = button.textContent;
    if (button.dataset.word) button.textContent = `${button.dataset.word}\u2026`;
    try {
      const answer = await fetch(form.getAttribute("action"), {
        method: "POST", body, redirect: "manual", headers: { Accept: "application/json" },
      });
      const isDone = answer.type === "opaqueredirect" || answer.ok;
      if (isDone) document.dispatchEvent(new CustomEvent("command:sent"));
      else toast((await answer.json().catch(() => ({}))).message || `The request was refused: ${answer.status}.`);
    } catch {
      toast("The server did not answer. Check if the state has changed, then try again.");
    }
    button.disabled = false;
    if (button.dataset.word) button.textContent = label;
    form.closest("details.menu")?.removeAttribute("open");
    button.closest("[popover]")?.hidePopover();
    if (document.getElementById("live")) document.dispatchEvent(new CustomEvent("live:refresh"));
    else location.reload();
  });

  // Other forms leave the page: a second click while the answer is on its way must not send them again.
  // After Esc, which cancels the request, or Back they can be sent again.
  let sent = new WeakSet();
  const release = () => (sent = new WeakSet());
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (event.defaultPrevented || form.method !== "post") return;
    if (sent.has(form)) event.preventDefault();
    sent.add(form);
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && release());
  window.addEventListener("pageshow", release);

  // Boxes that scroll sideways show a shadow at each edge with hidden content.
  const shade = (box) => {
    box.classList.toggle("more-left", box.scrollLeft > 1);
    box.classList.toggle("more-right", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  };
  const sizes = new ResizeObserver((seen) => seen.forEach(({ target }) => shade(target)));
  const shadeAll = () => {
    for (const box of document.querySelectorAll(".scroll")) {
      sizes.observe(box);
      shade(box);
    }
  };
  document.addEventListener("scroll", (event) => event.target.matches?.(".scroll") && shade(event.target), true);
  document.addEventListener("live:updated", shadeAll);
  shadeAll();

  // Scroll to the current tab. scrollIntoView would also move the start of keyboard navigation there.
  const current = document.querySelector(".tabs [aria-current]"), tabs = current?.closest(".tabs");
  if (tabs) {
    const [inner, outer] = [current.getBoundingClientRect(), tabs.getBoundingClientRect()];
    tabs.scrollLeft += inner.left + inner.width / 2 - outer.left - outer.width / 2;
  }
  keys.hidden = false;
  keys.addEventListener("click", () => shortcuts.showModal());
  const follow = (selector) => document.querySelector(selector)?.click();
  const pressed = {
    "/": () => document.querySelector("[type=search]")?.focus(),
    "?": () => shortcuts.showModal(),
    z: switchZone,
    u: () => follow("a[rel=up]:last-of-type"),
    ArrowLeft: () => follow("a[data-step=previous]"),
    ArrowRight: () => follow("a[data-step=next]"),
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") document.querySelectorAll("details.menu[open]").forEach((menu) => (menu.open = false));
    const isTyping = event.target.matches("input:not([type=checkbox]), textarea, select, [contenteditable]");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || shortcuts.open) return;
    const isInside = event.target.closest(".scroll, .plot"); // arrow keys scroll there
    const action = isInside && event.key.startsWith("Arrow") ? null : pressed[event.key];
    const tab = /^[0-9]$/.test(event.key) && document.querySelectorAll(".tabs a")[(Number(event.key) + 9) % 10];
    if (!action && !tab) return;
    event.preventDefault();
    if (action) action();
    else tab.click();
  });
})();
