// Plots by keys: arrows walk from mark to mark and from trace to trace, + and - zoom, 0 shows all again.
(() => {
  const ALONG = { ArrowRight: 1, ArrowLeft: -1 };
  const ACROSS = { ArrowDown: 1, ArrowUp: -1 };
  const ZOOM = { "+": 0.5, "=": 0.5, "-": 2 };
  const HINT = "← → marks   ↑ ↓ traces   + − zoom   0 all";
  const HOVER_MS = 80; // Plotly shows at most one label in 50 ms
  const at = new WeakMap(); // plot → { trace, place }: where its reader is
  const whole = new WeakMap(); // plot → { axis: range } before the first zoom
  let said = null;

  const seen = (trace) => trace.visible === true && trace.hoverinfo !== "skip" && Array.isArray(trace.x);
  const marks = (trace) => [...trace.x.keys()].filter((mark) => trace.x[mark] != null && trace.y?.[mark] != null);
  const axisOf = (plot, trace) => plot._fullLayout[`xaxis${(trace.xaxis ?? "x").slice(1)}`];

  // The traces that can be walked, each with its place among all and its marks.
  function walks(plot) {
    return plot._fullData
      .map((trace, number) => ({ trace, number, marks: seen(trace) ? marks(trace) : [] }))
      .filter((walk) => walk.marks.length > 0);
  }

  function position(trace, mark, axis) {
    const lying = trace.type === "bar" && trace.orientation === "h";
    if (!lying) return axis.d2l(trace.x[mark]);
    const base = Array.isArray(trace.base) ? trace.base[mark] : (trace.base ?? 0);
    return axis.d2l(base + trace.x[mark] / 2);
  }

  async function show(plot, walk, mark) {
    const axis = axisOf(plot, walk.trace);
    const [low, high] = axis.range;
    const where = position(walk.trace, mark, axis);
    if (where < Math.min(low, high) || where > Math.max(low, high)) {
      const half = (high - low) / 2;
      await Plotly.relayout(plot, { [`${axis._name}.range`]: [where - half, where + half] });
    }
    const subplot = `${walk.trace.xaxis ?? "x"}${walk.trace.yaxis ?? "y"}`;
    Plotly.Fx.hover(plot, [{ curveNumber: walk.number, pointNumber: mark }], subplot);
    setTimeout(() => tell(plot), HOVER_MS);
  }

  // Says aloud what the label shows.
  function tell(plot) {
    const lines = [...plot.querySelectorAll(".hoverlayer text")].flatMap((text) => {
      const parts = [...text.querySelectorAll("tspan.line")];
      return (parts.length ? parts : [text]).map((part) => part.textContent.trim());
    });
    said.textContent = lines.filter(Boolean).join(", ");
  }

  function walk(plot, along, across) {
    const all = walks(plot);
    if (!all.length) return;
    const before = at.get(plot);
    const now = before ?? { trace: 0, place: 0 };
    if (before) {
      now.trace = (now.trace + across + all.length) % all.length;
      now.place += along;
    }
    const chosen = all[Math.min(now.trace, all.length - 1)];
    const count = chosen.marks.length;
    now.place = across ? Math.min(now.place, count - 1) : (now.place + count) % count;
    at.set(plot, now);
    show(plot, chosen, chosen.marks[now.place]);
  }

  function zoom(plot, factor) {
    const all = walks(plot);
    if (!all.length) return;
    const now = at.get(plot) ?? { trace: 0, place: 0 };
    const chosen = all[Math.min(now.trace, all.length - 1)];
    const axis = axisOf(plot, chosen.trace);
    const [low, high] = axis.range;
    const kept = whole.get(plot) ?? {};
    kept[axis._name] ??= [low, high];
    whole.set(plot, kept);
    const mark = chosen.marks[Math.min(now.place, chosen.marks.length - 1)];
    const middle = at.has(plot) ? position(chosen.trace, mark, axis) : (low + high) / 2;
    const half = ((high - low) / 2) * factor;
    Plotly.relayout(plot, { [`${axis._name}.range`]: [middle - half, middle + half] });
  }

  function showAll(plot) {
    const kept = whole.get(plot) ?? {};
    whole.delete(plot);
    const ranges = Object.entries(kept).map(([axis, range]) => [`${axis}.range`, range]);
    if (ranges.length) Plotly.relayout(plot, Object.fromEntries(ranges));
  }

  function pressed(event) {
    const plot = event.currentTarget;
    if (event.ctrlKey || event.altKey || event.metaKey || !plot._fullData) return;
    const { key } = event;
    if (key in ALONG) walk(plot, ALONG[key], 0);
    else if (key in ACROSS) walk(plot, 0, ACROSS[key]);
    else if (key in ZOOM) zoom(plot, ZOOM[key]);
    else if (key === "0") showAll(plot);
    else return;
    event.preventDefault();
  }

  document.addEventListener("DOMContentLoaded", () => {
    said = document.createElement("p");
    said.id = "said";
    said.setAttribute("aria-live", "polite");
    document.body.append(said);
    for (const plot of document.querySelectorAll(".plot")) {
      plot.tabIndex = 0;
      plot.setAttribute("role", "application");
      plot.setAttribute("aria-roledescription", "plot; arrows walk through its marks");
      plot.dataset.keys = HINT;
      plot.addEventListener("keydown", pressed);
      plot.addEventListener("blur", () => plot._fullLayout && Plotly.Fx.unhover(plot));
    }
  });
})();
