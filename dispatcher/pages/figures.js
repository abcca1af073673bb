// Draws figures from JSON of the read API, and updates them with the page (304 if a figure is unchanged). The zoom
// survives updates (Plotly's uirevision). Figures and table rows highlight each other by data-model.
// Loads plotly's script in parallel with the data.
"use strict";
(() => {
  const CONFIG = {
    responsive: true, displaylogo: false, showSendToCloud: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"], toImageButtonOptions: { format: "png", scale: 2 },
    displayModeBar: matchMedia("(pointer: coarse)").matches ? false : "hover", // on touch screens it would always cover the title
  };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 720px)"); // too narrow for labels between panels
  const known = new WeakMap(); // figure -> drawn content: {source, etag, spec}
  const ranges = new WeakMap(); // figure -> zoomed range of its horizontal axis
  const hooks = {}; // id -> function that changes a figure before it is drawn
  const PICTURE_MS = 1500; // maximum wait for the static images
  const RETRY_MS = 3000; // a page that does not change asks for no figure, so a failed one asks by itself

  // At the first visit the browser compiles plotly's script for two seconds without painting, so show static images first.
  const after = (ms) => new Promise((done) => setTimeout(done, ms));
  const painted = () => Promise.race([new Promise((done) => requestAnimationFrame(() => setTimeout(done))), after(100)]);
  const decoded = (picture) => picture.decode().catch(() => {}); // a failed image counts as decoded
  const fetched = (url) =>
    new Promise((done, failed) => {
      const script = document.createElement("script");
      script.onload = () => done(window.Plotly);
      script.onerror = () => failed(Object.assign(new Error("the plot script could not be loaded; reload the page"), { isFinal: true }));
      script.src = url;
      document.head.append(script);
    });
  const parsed = new Promise((done) => document.addEventListener("DOMContentLoaded", done)); // hooks are set by then
  const ready = (async () => {
    const pictures = [...document.querySelectorAll(".static-svg img")];
    if (pictures.length) await Promise.race([Promise.all(pictures.map(decoded)).then(painted), after(PICTURE_MS)]);
    await parsed;
    return fetched(document.getElementById("plotly").href);
  })();
  ready.catch(() => {}); // each figure reports the error

  // The Content-Security-Policy blocks style attributes, which plotly sets, but not the style object.
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
      else if (!answer.ok) {
        const message = (await answer.json().catch(() => ({}))).message || answer.statusText;
        throw Object.assign(new Error(message), { isFinal: answer.status < 500 && answer.status !== 429 });
      } else {
        const spec = await answer.json();
        if (sourceOf(figure) !== source) return; // the user has changed the selection since this request
        Object.assign(mine, { source, spec });
        await draw(figure);
        mine.etag = answer.headers.get("ETag"); // after drawing, to retry a figure that failed to draw
        say(figure, "");
      }
    } catch (error) {
      say(figure, `Outdated: ${error.message || "the server does not answer"}. The figure updates when the server answers.`);
      clearTimeout(figure.retryTimer);
      if (!error.isFinal) figure.retryTimer = setTimeout(() => figure.isConnected && load(figure), RETRY_MS);
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

  // --- highlight a model, open it -----------------------------------------------------------------

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
      if (!model) return; // the click hit no model
      const { click } = figure.dataset;
      const here = new URL(location.href);
      if (click === "light") {
        here.searchParams.set("model", model);
        document.dispatchEvent(new CustomEvent("live:go", { detail: { url: here.href } }));
      } else if (click) location.assign(click.replace("MODEL", encodeURIComponent(model)));
    });
  };
  // When zoomed in, load the points that the lower resolution omitted.
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

  // --- as a table ----------------------------------------------------------------------------------

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
