// Follows logs: requests the lines after a cursor and appends them. Scrolling up pauses; scrolling to the bottom
// resumes. The button shows the state. Sleeps in hidden tabs. Without this script the page shows no new lines.
"use strict";
(() => {
  const place = document.getElementById("logs");
  const log = document.getElementById("log");
  const button = document.getElementById("follow");
  if (!place || !log) return;
  const MAX_LINES = 6000;
  const EVERY_MS = 1500;
  const SLOW_MS = 6000; // interval after a while without new lines
  let cursor = place.dataset.cursor || "";
  let timer = 0;
  let quiet = 0;
  let waiting = 0; // lines that arrived while paused
  let isFollowing = true;

  const isAtEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 24;
  const toEnd = () => (log.scrollTop = log.scrollHeight);
  const say = () => {
    button.hidden = !cursor;
    button.setAttribute("aria-pressed", String(isFollowing));
    button.textContent = isFollowing ? "Following" : waiting ? `${waiting} new below` : "Paused: go to the end";
  };

  // Keep the visible lines in place when lines above them are removed.
  const firstSeen = () => {
    const line = [...log.getElementsByTagName("li")].find((each) => each.offsetTop - log.offsetTop >= log.scrollTop);
    return line && { line, top: line.offsetTop };
  };

  const trim = () => {
    const lines = log.getElementsByTagName("li");
    for (let excess = lines.length - MAX_LINES; excess > 0; excess -= 1) lines[0].remove();
    log.querySelectorAll(".log-range").forEach((each) => {
      if (each !== log.lastElementChild && !each.querySelector("li")) each.remove();
    });
  };

  const put = (html) => {
    const part = document.createElement("template");
    part.innerHTML = html;
    for (const range of [...part.content.querySelectorAll(".log-range")]) {
      const key = range.dataset.log;
      const lines = [...range.querySelectorAll("li")];
      log.querySelectorAll(`[data-log="${CSS.escape(key)}"] li[data-open]`).forEach((each) => each.remove());
      const last = log.lastElementChild;
      if (last?.dataset.log === key) last.querySelector("ol").append(...lines);
      else log.append(range);
      waiting += isFollowing ? 0 : lines.length;
    }
    const held = isFollowing ? null : firstSeen();
    trim();
    if (isFollowing) toEnd();
    else if (held?.line.isConnected) log.scrollTop += held.line.offsetTop - held.top;
  };

  const plan = (ms) => {
    clearTimeout(timer);
    if (cursor && !document.hidden) timer = setTimeout(ask, ms);
  };

  const ask = async () => {
    try {
      const joint = place.dataset.follow.includes("?") ? "&" : "?";
      const answer = await fetch(`${place.dataset.follow}${joint}after=${encodeURIComponent(cursor)}`, { redirect: "error" });
      if (answer.status === 401) return location.reload();
      if (answer.status === 200) {
        put(await answer.text());
        cursor = answer.headers.get("X-Cursor");
        quiet = 0;
      } else quiet += 1;
    } catch {
      quiet += 1; // live.js shows the message if the page is unreachable
    }
    say();
    plan(quiet > 40 ? SLOW_MS : EVERY_MS);
  };

  log.addEventListener("scroll", () => {
    isFollowing = isAtEnd();
    if (isFollowing) waiting = 0;
    say();
  });
  button.addEventListener("click", () => {
    isFollowing = !isFollowing;
    waiting = 0;
    if (isFollowing) toEnd();
    say();
  });
  document.addEventListener("visibilitychange", () => plan(1));

  const wanted = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (wanted) {
    isFollowing = false;
    wanted.classList.add("wanted");
    log.scrollTop = wanted.offsetTop - log.offsetTop - log.clientHeight / 3;
  } else toEnd();
  say();
  plan(EVERY_MS);
})();
