// Draws figures: JSON of the read API, asked for again when the page has news (304 if the figure has none). A reader's
// zoom outlives an update (Plotly's uirevision). Figures and rows of tables light each other up by data-model.
// Fetches plotly's script itself; the requests are on their way meanwhile.
"use strict";
(() => {
  const CONFIG = {
    responsive: true, displaylogo: false, showSendToCloud: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"], toImageButtonOptions: { format: "png", scale: 2 },
    displayModeBar: matchMedia("(pointer: coarse)").matches ? false : "hover", // there it would always lie over the title
  };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 720px)"); // one panel beside another has no room for its labels there
  const known = new WeakMap(); // figure -> what is drawn: {source, etag, spec}
  const ranges = new WeakMap(); // figure -> part of its horizontal axis that the reader zoomed to
  const hooks = {}; // id -> function that changes a figure before it is drawn
  const PICTURE_MS = 1500; // longest wait for a picture: the figure may be there before

  // A browser that was never here compiles plotly's script for two seconds, in which it paints nothing: what there is
  // to be seen at once comes first.
  const after = (ms) => new Promise((done) => setTimeout(done, ms));
  const painted = () => Promise.race([new Promise((done) => requestAnimationFrame(() => setTimeout(done))), after(100)]);
  const decoded = (picture) => picture.decode().catch(() => {}); // one that does not come is not waited for
  const fetched = (url) =>
    new Promise((done, failed) => {
      const script = document.createElement("script");
      script.onload = () => done(window.Plotly);
      script.onerror = () => failed(new Error("the script that draws figures could not be loaded; load the page anew"));
      script.src = url;
      document.head.append(script);
    });
  const parsed = new Promise((done) => document.addEventListener("DOMContentLoaded", done)); // and hooks are set
  const ready = (async () => {
    const pictures = [...document.querySelectorAll(".static-svg img")];
    if (pictures.length) await Promise.race([Promise.all(pictures.map(decoded)).then(painted), after(PICTURE_MS)]);
    await parsed;
    return fetched(document.getElementById("plotly").href);
  })();
  ready.catch(() => {}); // each figure says so

  // The policy of this page blocks style attributes, which plotly sets here and there, but not the style object.
  const setAttribute = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function set(name, value) {
    if (name === "style") this.style.cssText = value;
    else setAttribute.call(this, name, value);
  };

  const all = () => document.querySelectorAll("[data-figure]");
  const plotOf = (figure) => figure.querySelector(".plot");
  const sourceOf = (figure) => {
    const url = new URL(figure.dataset.figure, location.href);
    url.searchParams.set("theme", dark.matches ? "dark" : "light");
    if (figure.id === "scatter" && narrow.matches) url.searchParams.set("columns", "1");
    const range = ranges.get(figure);
    if (range) {
      url.searchParams.set("start", range[0]);
      url.searchParams.set("stop", range[1]);
    }
    return url.pathname + url.search;
  };
  const say = (figure, text) => {
    figure.querySelector(".figure-said").textContent = text;
    figure.classList.toggle("stale", text !== "");
  };

  const load = async (figure) => {
    const source = sourceOf(figure);
    const before = known.get(figure);
    if (before?.loading === source) return;
    const mine = { ...before, loading: source };
    known.set(figure, mine);
    try {
      const headers = { Accept: "application/json", ...(before?.source === source && before.etag ? { "If-None-Match": before.etag } : {}) };
      const answer = await fetch(source, { headers, cache: "no-store", redirect: "error" });
      if (answer.status === 304) say(figure, "");
      else if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).message || answer.statusText);
      else {
        const spec = await answer.json();
        if (sourceOf(figure) !== source) return; // the reader has chosen something else meanwhile
        Object.assign(mine, { source, spec });
        await draw(figure);
        mine.etag = answer.headers.get("ETag"); // not before: what could not be drawn is asked for again
        say(figure, "");
      }
    } catch (error) {
      say(figure, `Not up to date: ${error.message || "the page's server does not answer"}`);
    } finally {
      mine.loading = "";
      if (figure.isConnected && sourceOf(figure) !== source) load(figure);
    }
  };

  const draw = async (figure) => {
    const Plotly = await ready;
    const { spec } = known.get(figure);
    if (!Plotly || !figure.isConnected) return;
    const plot = plotOf(figure);
    const shown = hooks[figure.id] ? hooks[figure.id](spec, figure) : spec;
    const height = shown.layout.height || 0;
    const wanted = height > Number(figure.dataset.height) ? `${height}px` : "";
    if (plot.style.height !== wanted) plot.style.height = wanted;
    const layout = { ...shown.layout, autosize: true };
    delete layout.height;
    plot.querySelector(".static-svg, noscript")?.remove();
    await Plotly.react(plot, shown.data, layout, CONFIG);
    if (!plot.dataset.listens) listen(figure, plot);
    describe(figure, spec.layout.meta || {});
  };

  // --- light a model up, open it -----------------------------------------------------------------

  const modelOf = (point) => point?.data?.meta?.model || (Array.isArray(point?.customdata) ? point.customdata[0] : point?.customdata) || "";
  const rows = (model) => document.querySelectorAll(`[data-model="${CSS.escape(model)}"]`);
  const light = (model) => {
    document.querySelectorAll(".lit").forEach((row) => row.dataset.model !== model && row.classList.remove("lit"));
    if (model) rows(model).forEach((row) => row.classList.add("lit"));
  };
  const listen = (figure, plot) => {
    plot.dataset.listens = "1";
    plot.on("plotly_hover", (event) => light(modelOf(event.points[0])));
    plot.on("plotly_relayout", (changes) => zoom(figure, changes));
    plot.on("plotly_unhover", () => light(""));
    plot.on("plotly_click", (event) => {
      const model = modelOf(event.points[0]);
      if (!model) return; // beside the marks nothing happens
      const { click } = figure.dataset;
      const here = new URL(location.href);
      if (click === "light") {
        here.searchParams.set("model", model);
        document.dispatchEvent(new CustomEvent("live:go", { detail: { url: here.href } }));
      } else if (click) location.assign(click.replace("MODEL", encodeURIComponent(model)));
    });
  };
  // Zoomed in, a line has room for points that were left out: they are read again.
  const zoom = (figure, changes) => {
    if (!("zoom" in figure.dataset)) return;
    if (changes["xaxis.autorange"]) ranges.delete(figure);
    else if (changes["xaxis.range[0]"] !== undefined) {
      const [low, high] = [changes["xaxis.range[0]"], changes["xaxis.range[1]"]];
      const margin = (high - low) / 2;
      ranges.set(figure, [(low - margin).toPrecision(6), (high + margin).toPrecision(6)]);
    } else return;
    clearTimeout(figure.zoomTimer);
    figure.zoomTimer = setTimeout(() => load(figure), 250);
  };
  let lit = "";
  const emphasize = (model) => {
    if (model === lit || !window.Plotly) return;
    lit = model;
    for (const figure of all()) {
      const plot = plotOf(figure);
      const traces = (plot.data || []).map((trace, index) => [trace, index]).filter(([trace]) => trace.meta?.model);
      if (!traces.length) continue;
      const opacity = traces.map(([trace]) => (!model || trace.meta.model === model ? 1 : 0.18));
      Plotly.restyle(plot, { opacity }, traces.map(([, index]) => index));
    }
  };
  document.addEventListener("pointerover", (event) => emphasize(event.target.closest?.("tr[data-model]")?.dataset.model || ""));
  document.addEventListener("focusin", (event) => emphasize(event.target.closest?.("tr[data-model]")?.dataset.model || ""));

  // --- in words ----------------------------------------------------------------------------------

  const describe = (figure, meta) => {
    if (meta.description) plotOf(figure).setAttribute("aria-label", meta.description);
    const details = figure.querySelector("details.data");
    details.hidden = !meta.table?.rows?.length;
    if (details.open) fill(details, meta.table);
    details.ontoggle = () => details.open && fill(details, meta.table);
  };
  const fill = (details, table) => {
    if (!table) return;
    const cell = (kind, value) => {
      const element = document.createElement(kind);
      element.textContent = value ?? "\u2013";
      if (typeof value === "number") element.className = "num";
      if (kind === "th") element.scope = "col";
      return element;
    };
    const line = (kind, values) => {
      const row = document.createElement("tr");
      row.append(...values.map((value) => cell(kind, value)));
      return row;
    };
    const drawn = document.createElement("table");
    drawn.createTHead().append(line("th", table.columns));
    drawn.createTBody().append(...table.rows.map((values) => line("td", values)));
    if (table.note) drawn.createCaption().textContent = table.note;
    details.querySelector(".scroll").replaceChildren(drawn);
  };

  const loadAll = () => all().forEach(load);
  loadAll();
  dark.addEventListener("change", loadAll);
  narrow.addEventListener("change", loadAll);
  document.addEventListener("live:updated", loadAll);
  window.figures = { hooks, redraw: (id) => draw(document.getElementById(id)), plotOf };
})();
