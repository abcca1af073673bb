// The command palette (Ctrl-K or Cmd-K): experiments, models of this experiment, tabs, pages and actions of this page.
// A combobox with a listbox (WAI-ARIA): the focus stays in the field, and arrow keys select an option. Pages and actions
// are the links and buttons of this page; experiments and models come from the read API.
"use strict";
(() => {
  const dialog = document.getElementById("palette");
  const input = document.getElementById("palette-input");
  const list = document.getElementById("palette-list");
  const count = document.getElementById("palette-count");
  const MOST = 8; // of each kind
  const WAIT_MS = 120;
  const experiment = location.pathname.match(/^\/experiments\/([^/]+)/)?.[1];
  let options = [];
  let selected = 0;
  let timer = 0;
  let request = 0;

  const textOf = (element) => (element.getAttribute("aria-label") || element.textContent).replace(/\s+/g, " ").trim();
  // Forms in a closed menu are not listed: Enter would send them unseen. The palette opens their menu instead.
  const isAction = (element) => !element.disabled && textOf(element) && !element.closest("details.menu");
  const openMenu = (summary) => {
    summary.parentElement.open = true;
    (summary.parentElement.querySelector("input:not([type=hidden]), textarea, select, button, a") || summary).focus();
  };
  const local = () => {
    const link = (kind) => (element) => ({ kind, label: textOf(element), run: () => element.click() });
    const all = (selector) => [...document.querySelectorAll(selector)];
    return [
      ...all(".tabs a").map(link("tab")),
      ...all("header nav a").map(link("page")),
      ...all("main .heading .buttons :is(button, a.button)").filter((each) => isAction(each)).map(link("action")),
      ...all("main .heading .buttons details.menu > summary").map((summary) => ({ kind: "menu", label: textOf(summary), run: () => openMenu(summary) })),
    ];
  };
  const fetchRows = async (path) => {
    const answer = await fetch(path, { headers: { Accept: "application/json" }, redirect: "error" }).catch(() => null);
    return answer?.ok ? (await answer.json().catch(() => ({}))).rows || [] : [];
  };
  const remote = async (text) => {
    const fit = new URL(location.href).searchParams.get("fit");
    const filter = `id ~ "${text.replace(/["\\]/g, "\\$&")}"`;
    const [models, experiments] = await Promise.all([
      text && experiment ? fetchRows(`/api/views/experiments/${experiment}/models?${new URLSearchParams({ filter, size: MOST, ...(fit ? { fit } : {}) })}`) : [],
      fetchRows(`/api/views/experiments?${new URLSearchParams({ q: text.slice(0, 100), size: MOST })}`),
    ]);
    const query = fit ? `?fit=${encodeURIComponent(fit)}` : "";
    const to = (kind, label, url) => ({ kind, label, run: () => location.assign(url) });
    return [
      ...models.map(({ id }) => to("model", id, `/experiments/${experiment}/models/${encodeURIComponent(id)}${query}`)),
      ...experiments.map(({ name }) => to("experiment", name, `/experiments/${name}`)),
    ];
  };

  const choose = (index) => {
    selected = options.length ? (index + options.length) % options.length : 0;
    [...list.children].forEach((item, at) => item.setAttribute("aria-selected", String(at === selected)));
    const item = list.children[selected];
    if (item) input.setAttribute("aria-activedescendant", item.id);
    else input.removeAttribute("aria-activedescendant");
    item?.scrollIntoView({ block: "nearest" });
  };
  const show = (found) => {
    const before = options[selected];
    options = found;
    list.replaceChildren(...options.map(({ kind, label }, index) => {
      const item = document.createElement("li");
      item.id = `palette-${index}`;
      item.setAttribute("role", "option");
      const hint = document.createElement("span");
      hint.className = "quiet";
      hint.textContent = kind;
      item.append(label, " ", hint);
      return item;
    }));
    count.textContent = options.length === 1 ? "1 result" : `${options.length || "No"} results`;
    choose(Math.max(0, options.findIndex((each) => each.kind === before?.kind && each.label === before?.label)));
  };
  const search = () => {
    const text = input.value.trim();
    const id = ++request;
    const localOptions = local().filter(({ kind, label }) => `${label} ${kind}`.toLowerCase().includes(text.toLowerCase()));
    show(localOptions);
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const remoteOptions = await remote(text);
      if (id === request && dialog.open) show([...localOptions, ...remoteOptions]);
    }, WAIT_MS);
  };
  const run = (option) => {
    if (!option) return;
    dialog.close();
    option.run();
  };

  const open = () => {
    if (document.querySelector("dialog[open]")) return;
    input.value = "";
    options = [];
    dialog.showModal();
    search();
  };
  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
    event.preventDefault();
    if (dialog.open) dialog.close();
    else open();
  });
  input.addEventListener("input", search);
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) choose(selected + step);
    else if (event.key === "Enter" && !event.isComposing) run(options[selected]);
    else return;
    event.preventDefault();
  });
  list.addEventListener("click", (event) => {
    const item = event.target.closest("li");
    if (item) run(options[[...list.children].indexOf(item)]);
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // beside the box
})();
