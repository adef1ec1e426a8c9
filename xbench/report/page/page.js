"use strict";
// Draws the figures, in the colours of the page; the theme, copying, and what paper needs.
(() => {
  const root = document.documentElement;
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 640px)");
  const paper = matchMedia("print");
  const PAPER_WIDTH = 680;
  const KEPT = "xbench-theme";
  const drawn = new Set();
  let figures = new Map();
  let chosen = kept();

  function kept() {
    try {
      return localStorage.getItem(KEPT);
    } catch {
      return null; // some browsers keep nothing for files
    }
  }

  function keep(theme) {
    try {
      localStorage.setItem(KEPT, theme);
    } catch {
      // the choice then lasts as long as the page
    }
  }

  const small = () => narrow.matches && !paper.matches;
  const theme = () => (paper.matches ? "light" : chosen || (systemDark.matches ? "dark" : "light"));

  function show() {
    root.dataset.theme = theme();
    root.dataset.state = [theme(), small() ? "narrow" : "wide", paper.matches ? "paper" : "screen"].join(" ");
    const button = document.getElementById("theme");
    if (!button) return;
    const other = theme() === "dark" ? "light" : "dark";
    button.textContent = other === "dark" ? "Dark" : "Light";
    button.setAttribute("aria-label", `Change to ${other} colours`);
  }

  // Names of colours, '--c1', become the colours that the page has now.
  function coloured(value, styles, key = "") {
    if (Array.isArray(value)) return value.map((one) => coloured(one, styles, key));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, coloured(one, styles, name)]));
    }
    const isColour = typeof value === "string" && value.startsWith("--") && key.toLowerCase().endsWith("color");
    return isColour ? styles.getPropertyValue(value).trim() : value;
  }

  function template(styles) {
    const colour = (name) => styles.getPropertyValue(name).trim();
    const axis = {
      gridcolor: colour("--grid"),
      zerolinecolor: colour("--grid-strong"),
      linecolor: colour("--grid-strong"),
      automargin: true,
      ticklabelstandoff: 4,
      title: { standoff: 10 },
    };
    return {
      layout: {
        font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--ink") },
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        margin: { l: 8, r: 16, t: 16, b: 8 },
        xaxis: axis,
        yaxis: axis,
        legend: { bgcolor: "rgba(0,0,0,0)" },
        hoverlabel: {
          bgcolor: colour("--paper"),
          bordercolor: colour("--grid-strong"),
          font: { color: colour("--ink") },
          align: "left",
        },
      },
    };
  }

  // Sets 'margin.r' and the like.
  function changed(layout, changes) {
    const copy = structuredClone(layout);
    for (const [path, value] of Object.entries(changes)) {
      const names = path.split(".");
      const last = names.pop();
      let place = copy;
      for (const name of names) place = place[name] ??= {};
      place[last] = value;
    }
    return copy;
  }

  // On a narrow screen the names of a legend stand under each other, where a wide one has a line of them.
  function heightOfLegend(figure) {
    const named = (one) => one.showlegend ?? false;
    const shapes = (figure.layout.shapes ?? []).filter(named).length;
    const traces = figure.traces.filter((trace) => trace.showlegend !== false).length;
    return 17 * Math.max(0, traces + shapes - 1);
  }

  async function draw(plot) {
    const figure = figures.get(plot.dataset.figure);
    const styles = getComputedStyle(root);
    const state = root.dataset.state;
    const layout = coloured(changed(figure.layout, small() ? figure.narrow : {}), styles);
    layout.template = template(styles);
    plot.style.height = `${figure.height + (small() ? heightOfLegend(figure) : 0)}px`;
    if (small() && layout.legend) Object.assign(layout.legend, { xref: "container", x: 0, font: { size: 11 } });
    layout.dragmode = small() ? false : "zoom"; // a finger scrolls the page
    if (paper.matches) layout.width = PAPER_WIDTH;
    else layout.autosize = true;
    const config = {
      displaylogo: false,
      responsive: true,
      displayModeBar: small() ? false : "hover",
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "sendChartToCloud"],
      plotlyServerURL: "", // a page sends nothing
    };
    drawn.add(plot);
    await Plotly.react(plot, coloured(structuredClone(figure.traces), styles), layout, config);
    plot.dataset.drawn = state;
  }

  const visible = (plot) => !plot.closest("details:not([open])");

  function drawAll() {
    show();
    for (const plot of document.querySelectorAll(".plot")) {
      if (visible(plot) || drawn.has(plot)) draw(plot);
    }
  }

  function unfold() {
    for (const details of document.querySelectorAll("details:not([open]):not(.bulk)")) {
      details.open = true;
      details.dataset.unfolded = "";
    }
  }

  function fold() {
    for (const details of document.querySelectorAll("details[data-unfolded]")) {
      details.open = false;
      delete details.dataset.unfolded;
    }
  }

  async function copy(button) {
    const text = button.parentElement.querySelector("code").textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(button.parentElement.querySelector("code"));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "Selected: press Ctrl+C";
    }
    setTimeout(() => (button.textContent = "Copy"), 2500);
  }

  show();
  document.addEventListener("DOMContentLoaded", () => {
    figures = new Map(
      JSON.parse(document.getElementById("figures").textContent).map((figure) => [figure.key, figure]),
    );
    const button = document.getElementById("theme");
    button.hidden = false;
    button.addEventListener("click", () => {
      chosen = theme() === "dark" ? "light" : "dark";
      keep(chosen);
      drawAll();
    });
    for (const one of document.querySelectorAll(".copy")) {
      one.hidden = false;
      one.addEventListener("click", () => copy(one));
    }
    for (const details of document.querySelectorAll("details")) {
      details.addEventListener("toggle", () => {
        if (!details.open) return;
        for (const plot of details.querySelectorAll(".plot")) {
          if (visible(plot) && !drawn.has(plot)) draw(plot);
        }
      });
    }
    systemDark.addEventListener("change", drawAll);
    narrow.addEventListener("change", drawAll);
    paper.addEventListener("change", () => {
      if (paper.matches) unfold();
      else fold();
      drawAll();
    });
    drawAll();
  });
})();
