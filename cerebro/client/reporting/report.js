// Draws the figures of a report. Screens use the system's light or dark theme; paper is always light.

// On touch screens the buttons would always cover the title.
const bar = matchMedia("(pointer: coarse)").matches ? false : "hover";
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const tinted = (value, colours, isColour = false) => {
  if (Array.isArray(value)) return value.map((each) => tinted(each, colours, isColour));
  if (value === null || typeof value !== "object") return (isColour && colours.get(value)) || value;
  return Object.fromEntries(
    Object.entries(value).map(([name, each]) => [name, tinted(each, colours, /color(scale)?$/.test(name))]),
  );
};
const draw = (isDark) => {
  for (const { id, data, layout } of figures.drawn) {
    const colours = new Map(Object.entries(isDark ? figures.dark : {}));
    Plotly.react(id, tinted(data, colours), tinted(layout, colours), { ...figures.config, displayModeBar: bar });
    Plotly.Plots.resize(id);
  }
};
for (const { id } of figures.drawn) document.getElementById(id).replaceChildren();
draw(dark.matches);
dark.addEventListener("change", () => draw(dark.matches));
addEventListener("beforeprint", () => draw(false)); // paper is light
addEventListener("afterprint", () => draw(dark.matches));
