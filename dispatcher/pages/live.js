// Keeps #live up to date: polls this address's fragment and replaces the content. The server answers 304 if nothing has
// changed. Sleeps in hidden tabs; waits while the user selects text, points at an element that would move, or has a
// menu open. Follows links and forms marked data-soft without reloading, and keeps the address equal to the content.
// Without this script the page is complete, but does not update.
"use strict";
(() => {
  const live = document.getElementById("live");
  const said = () => document.getElementById("freshness");
  const csrf = document.querySelector("meta[name=csrf]")?.content || "";
  const icon = document.getElementById("icon");
  const plainIcon = icon.getAttribute("href");
  const POINTING_MS = 2500;
  let timer = 0;
  let pendingRequest = null;
  let etag = "";
  let failedSince = 0;
  let pointedAt = -POINTING_MS;
  let isPaused = false;

  const root = () => live.firstElementChild;
  const everyMs = () => Number(root().dataset.every || 0) * 1000;
  const address = () => `/fragments${location.pathname}${location.search}`;
  const clock = (time) => window.clockText(new Date(time));

  const say = (kind, text) => {
    const place = said();
    if (!place) return;
    place.hidden = false;
    if (place.dataset.kind !== kind) place.dataset.kind = kind;
    if (place.lastChild?.nodeValue !== text) place.textContent = text;
    place.setAttribute("aria-pressed", String(isPaused));
  };

  const isBusy = () => {
    const selection = document.getSelection();
    const isSelecting = selection && !selection.isCollapsed && live.contains(selection.anchorNode);
    return isSelecting || performance.now() - pointedAt < POINTING_MS || live.querySelector("details.menu[open], :popover-open") !== null;
  };

  const put = (html) => {
    const part = document.createElement("template");
    part.innerHTML = html;
    part.content.querySelectorAll("input[name=csrf]").forEach((each) => each.setAttribute("value", csrf));
    morph(live, part.content);
    const { title, icon: word } = root().dataset;
    if (title) document.title = title;
    const wanted = word ? plainIcon.replace(/icon[^/]*\.svg/, `icon-${word}.svg`) : plainIcon;
    if (icon.getAttribute("href") !== wanted) icon.setAttribute("href", wanted);
  };

  const plan = (waitMs) => {
    clearTimeout(timer);
    if (waitMs && !document.hidden && !isPaused) timer = setTimeout(refresh, waitMs);
  };

  const refresh = async ({ isWanted = false } = {}) => {
    clearTimeout(timer);
    if (!isWanted && isBusy()) {
      say("waits", "waits while you read");
      return plan(700);
    }
    pendingRequest?.abort();
    const mine = (pendingRequest = new AbortController());
    const asked = Date.now();
    const from = address();
    try {
      const headers = etag ? { "If-None-Match": etag } : {};
      const answer = await fetch(from, { headers, cache: "no-store", redirect: "error", signal: mine.signal });
      if (answer.status === 401) return location.reload(); // the session has ended: the reload shows the sign-in
      if (answer.status === 404) return location.reload(); // deleted: the reload shows a message
      if (!answer.ok && answer.status !== 304) throw new Error(answer.statusText);
      if (answer.status !== 304) {
        const html = await answer.text();
        if (!isWanted && isBusy()) return plan(700);
        etag = answer.headers.get("ETag") || "";
        put(html);
        document.dispatchEvent(new CustomEvent("live:updated"));
      }
      failedSince = 0;
      live.removeAttribute("aria-busy");
      live.classList.remove("stale");
      if (!isPaused) say(everyMs() < 5000 ? "live" : "rests", `${everyMs() < 5000 ? "live" : "up to date"}, ${clock(asked)}`);
      plan(everyMs());
    } catch (error) {
      if (error.name === "AbortError") return;
      failedSince = failedSince || asked;
      live.removeAttribute("aria-busy");
      live.classList.add("stale"); // keep showing the last data
      say("failed", `no answer since ${clock(failedSince)}, retrying`);
      plan(3000);
    } finally {
      if (pendingRequest === mine) pendingRequest = null;
    }
  };

  const go = (url, { isNew = true } = {}) => {
    history[isNew ? "pushState" : "replaceState"](null, "", url);
    show();
  };
  const show = () => {
    etag = "";
    live.setAttribute("aria-busy", "true");
    refresh({ isWanted: true });
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-soft]");
    if (link && event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey) {
      event.preventDefault();
      go(link.href);
    }
    if (event.target.closest("#freshness")) {
      isPaused = !isPaused;
      if (isPaused) say("paused", "paused: press to resume");
      refreshOrRest();
    }
  });
  const refreshOrRest = () => (isPaused ? clearTimeout(timer) : refresh({ isWanted: true }));

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("form[data-soft]")) return;
    event.preventDefault();
    const fields = new FormData(form, event.submitter);
    const query = new URLSearchParams();
    for (const name of new Set(fields.keys())) {
      const value = fields.getAll(name).filter(Boolean).join(",");
      if (value) query.set(name, value);
    }
    const url = new URL(form.getAttribute("action") || location.href, location.href);
    url.search = query.toString().replaceAll("%2C", ",");
    url.hash = "";
    go(url);
  });
  document.addEventListener("live:go", (event) => go(event.detail.url, event.detail));
  document.addEventListener("live:refresh", () => refresh({ isWanted: true }));
  window.addEventListener("popstate", show);
  live.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse" && event.target.closest("tbody, .plot")) pointedAt = performance.now();
  });
  live.addEventListener("pointerleave", () => (pointedAt = -POINTING_MS));
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : plan(1)));
  plan(Math.min(everyMs(), 1500));
})();
