// Keeps #live up to date: asks the server for the same fragment it rendered first and puts it in place.
// Pauses while the tab is hidden, while text is selected, while a bar of a chart is pointed
// at, and while a link or control inside has the focus.
// Without this script the page is complete, only not live.
"use strict";
(() => {
  const live = document.getElementById("live");
  let timer = 0;
  let failedSince = null;

  const every = () => Number(live.firstElementChild?.dataset.every || 0) * 1000;
  const say = (text) => {
    const place = document.getElementById("freshness");
    if (place) place.textContent = text;
  };
  const isBusy = () => {
    const selection = document.getSelection();
    const isSelecting = selection && !selection.isCollapsed && live.contains(selection.anchorNode);
    const isPointing = live.querySelector(".gantt path:hover") !== null; // a tooltip goes with its bar
    return isSelecting || isPointing || (live.contains(document.activeElement) && document.activeElement.matches("a, summary"));
  };

  // What the reader opened or scrolled stays as it was.
  const put = (html) => {
    const open = [...live.querySelectorAll("details[open]")].map((each) => each.id);
    const scrolled = [...live.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
    const focused = [...live.querySelectorAll(".scroll")].indexOf(document.activeElement);
    live.innerHTML = html;
    open.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
    live.querySelectorAll(".scroll").forEach((each, index) => {
      [each.scrollLeft, each.scrollTop] = scrolled[index] || [0, 0];
      if (index === focused) each.focus({ preventScroll: true });
    });
    document.title = live.firstElementChild?.dataset.title || document.title;
  };

  const plan = (wait) => {
    clearTimeout(timer);
    if (wait && !document.hidden) timer = setTimeout(refresh, wait);
  };

  const refresh = async () => {
    if (isBusy()) {
      say("paused while you read");
      return plan(1000);
    }
    const asked = Date.now();
    try {
      const answer = await fetch(live.dataset.source, { credentials: "same-origin", redirect: "error" });
      if (answer.status === 401) return location.reload(); // the session ended: the page leads to the sign-in
      if (!answer.ok) throw new Error(answer.statusText);
      put(await answer.text());
      failedSince = null;
      live.classList.remove("stale");
      say(every() ? `live, ${new Date(asked).toLocaleTimeString()}` : "");
      plan(every());
    } catch {
      failedSince = failedSince || asked;
      live.classList.add("stale"); // the last good data stays
      say(`no answer since ${new Date(failedSince).toLocaleTimeString()}, trying again`);
      plan(3000);
    }
  };

  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : plan(every() && 1)));
  plan(every());
})();
