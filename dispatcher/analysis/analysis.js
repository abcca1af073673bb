// Brushes on parallel coordinates: dragging along an axis selects a range of values. The selection is stored in the
// address (`brush`, an expression of the filter language) and filters the table below; other lines are dimmed.
"use strict";
(() => {
  const ID = "parallel";
  const REACH_PX = 26; // maximum distance between axis and pointer
  const brushes = new Map(); // axis index -> [low, high], positions from 0 to 1
  let axes = [];
  let dragged = null;

  const columnOf = (axis) => (axis.is_metric ? "best" : `hp.${axis.name}`);
  const quoted = (text) => `"${String(text).replace(/["\\]/g, "\\$&")}"`;
  const QUOTED = /"(?:[^"\\]|\\.)*"/g;
  const nameOf = (axis) => (/^[\w.-]+$/.test(columnOf(axis)) ? columnOf(axis) : quoted(columnOf(axis)));
  const valueAt = (axis, place) => {
    const share = axis.is_reversed ? 1 - place : place;
    if (axis.kind === "log") return Math.exp(Math.log(axis.low) + share * (Math.log(axis.high) - Math.log(axis.low)));
    return axis.low + share * (axis.high - axis.low);
  };
  const placeOf = (axis, value) => {
    const [low, high, at] = axis.kind === "log" ? [axis.low, axis.high, value].map(Math.log) : [axis.low, axis.high, value];
    const share = high > low ? (at - low) / (high - low) : 0.5;
    return axis.is_reversed ? 1 - share : share;
  };
  const spread = (position, count) => (count > 1 ? position / (count - 1) : 0.5);
  // Models without the hyperparameter form a separate category; the filter language selects it by `is empty`.
  const categoriesOf = (axis) => axis.categories.map((label, at) => ({
    label, place: spread(at, axis.categories.length), isAbsent: at === axis.absent,
  }));

  // Widen the range slightly, so that rounding does not exclude values at its ends.
  const expression = () => [...brushes].map(([index, [low, high]]) => {
    const axis = axes[index];
    const name = nameOf(axis);
    if (axis.kind === "category") {
      const inside = categoriesOf(axis).filter(({ place }) => place >= low && place <= high);
      const named = inside.filter(({ isAbsent }) => !isAbsent).map(({ label }) => quoted(label));
      const parts = named.length ? [`${name} in (${named.join(", ")})`] : [];
      if (named.length < inside.length) parts.push(`${name} is empty`);
      return parts.length > 1 ? `(${parts.join(" or ")})` : parts.join("");
    }
    const ends = [low, high].map((place) => valueAt(axis, place)).sort((a, b) => a - b);
    const [from, to] = [ends[0] * (ends[0] > 0 ? 0.9999999 : 1.0000001), ends[1] * (ends[1] > 0 ? 1.0000001 : 0.9999999)];
    return `${name} in ${Number(from.toPrecision(8))}..${Number(to.toPrecision(8))}`;
  }).filter(Boolean).join(" and ");

  const read = () => {
    brushes.clear();
    const text = new URL(location.href).searchParams.get("brush") || "";
    axes.forEach((axis, index) => {
      const start = `(?:^| and |\\(| or )${nameOf(axis).replace(/[.*+?^${}()|[\]\\]/g, "\\$&")} `;
      const range = text.match(new RegExp(`${start}in (-?[\\d.e+-]+?)\\.\\.(-?[\\d.e+-]+)`));
      const list = text.match(new RegExp(`${start}in \\(((?:${QUOTED.source}(?:, )?)*)\\)`));
      const isEmpty = new RegExp(`${start}is empty(?:$| and |\\))`).test(text);
      if (range) {
        const places = [placeOf(axis, Number(range[1])), placeOf(axis, Number(range[2]))].sort((a, b) => a - b);
        brushes.set(index, [Math.max(0, places[0]), Math.min(1, places[1])]);
      } else if (list || isEmpty) {
        const named = new Set(list?.[1].match(QUOTED));
        const inside = categoriesOf(axis).filter(({ label, isAbsent }) => (isAbsent ? isEmpty : named.has(quoted(label))));
        if (inside.length) brushes.set(index, [inside[0].place - 0.02, inside.at(-1).place + 0.02]);
      }
    });
  };

  const isInside = (places) => [...brushes].every(([index, [low, high]]) => places[index] >= low - 1e-6 && places[index] <= high + 1e-6);

  // A trace contains many lines, separated by null.
  const selected = (trace) => {
    const found = { ...trace, x: [], y: [], customdata: [], hovertext: [] };
    let start = 0;
    trace.x.forEach((x, at) => {
      if (x !== null) return;
      if (isInside(trace.y.slice(start, at))) {
        for (const name of ["x", "y", "customdata", "hovertext"]) found[name].push(...trace[name].slice(start, at + 1));
      }
      start = at + 1;
    });
    return found;
  };

  const hook = (spec) => {
    axes = spec.layout.meta.axes || [];
    if (!dragged) read();
    if (!brushes.size) return spec;
    const isLine = (trace) => ["scored", "failed"].includes(trace.meta?.role);
    const dimmed = spec.data.map((trace) => (isLine(trace) ? { ...trace, opacity: 0.1, hoverinfo: "skip" } : trace));
    const boxes = [...brushes].map(([index, [low, high]]) => ({
      type: "rect", x0: index - 0.045, x1: index + 0.045, y0: low, y1: high,
      fillcolor: "rgba(80,140,230,.35)", line: { color: "rgb(80,140,230)", width: 1 },
    }));
    const layout = { ...spec.layout, shapes: [...(spec.layout.shapes || []), ...boxes] };
    return { data: [...dimmed, ...spec.data.filter(isLine).map(selected)], layout };
  };

  const at = (event, plot) => {
    const { xaxis, yaxis, margin } = { ...plot._fullLayout, margin: plot._fullLayout._size };
    const box = plot.getBoundingClientRect();
    const x = xaxis.p2c(event.clientX - box.left - margin.l);
    const index = Math.round(x);
    const distance = Math.abs(xaxis.c2p(index) - xaxis.c2p(x));
    const place = yaxis.p2c(event.clientY - box.top - margin.t);
    return { index, isNear: index >= 0 && index < axes.length && distance < REACH_PX, place: Math.min(1, Math.max(0, place)) };
  };

  const store = () => {
    const url = new URL(location.href);
    const brush = expression();
    if (brush) url.searchParams.set("brush", brush);
    else url.searchParams.delete("brush");
    url.searchParams.delete("page");
    document.dispatchEvent(new CustomEvent("live:go", { detail: { url: url.href, isNew: false } }));
  };

  const figure = () => document.getElementById(ID);
  document.addEventListener("pointerdown", (event) => {
    const plot = event.target.closest?.(`#${ID} .plot`);
    if (!plot?._fullLayout || event.button !== 0 || event.target.closest(".modebar")) return;
    const found = at(event, plot);
    if (!found.isNear) return;
    event.preventDefault();
    dragged = { plot, index: found.index, from: found.place, isMoved: false };
    plot.setPointerCapture(event.pointerId);
  }, true);
  document.addEventListener("pointermove", (event) => {
    if (!dragged) return;
    const { place } = at(event, dragged.plot);
    if (Math.abs(place - dragged.from) < 0.015 && !dragged.isMoved) return;
    dragged.isMoved = true;
    brushes.set(dragged.index, [Math.min(dragged.from, place), Math.max(dragged.from, place)]);
    if (!dragged.frame) {
      dragged.frame = requestAnimationFrame(() => {
        if (dragged) dragged.frame = 0;
        window.figures.redraw(ID);
      });
    }
  });
  document.addEventListener("pointerup", () => {
    if (!dragged) return;
    if (!dragged.isMoved) brushes.delete(dragged.index);
    dragged = null;
    store();
    window.figures.redraw(ID);
  });
  document.addEventListener("live:updated", () => {
    if (figure() && !dragged && axes.length) window.figures.redraw(ID);
  });
  window.figures.hooks[ID] = hook;
})();
