// Curves of reports and of Studio: [data-chart] has the series of one, [data-clocks] the seconds and tokens of each run.
"use strict";

(() => {
  const settings = { x: "steps", smoothing: "", log: false };
  const zooms = new Map(); // of the horizontal axis, by title
  const plots = new Map(); // by element
  const AXES = { steps: "step", seconds: "time", tokens: "tokens" };
  const HEIGHT = 220;

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (value) => value == null ? "" : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4));
  const short = (value) => value >= 1e9 ? `${+(value / 1e9).toPrecision(3)}G` : value >= 1e6 ? `${+(value / 1e6).toPrecision(3)}M` : value >= 1e3 ? `${+(value / 1e3).toPrecision(4)}k` : String(+value.toPrecision(4));
  // The ticks of an axis, with the digits that tell neighbors apart.
  function labels(ticks) {
    const shown = ticks.filter((tick) => tick != null), largest = Math.max(...shown.map(Math.abs), 0);
    if (largest >= 1e4) return ticks.map((tick) => tick == null ? "" : short(tick));
    const step = Math.min(...shown.slice(1).map((tick, place) => tick - shown[place]).filter((each) => each > 0));
    if (!Number.isFinite(step)) return ticks.map((tick) => tick == null ? "" : short(tick));
    if (largest < 1e-3) return ticks.map((tick) => tick == null ? "" : tick === 0 ? "0" : tick.toExponential(Math.max(0, Math.floor(Math.log10(Math.abs(tick))) - Math.floor(Math.log10(step) + 1e-9))));
    const digits = Math.min(8, Math.max(0, -Math.floor(Math.log10(step) + 1e-9) + (Math.round(step / 10 ** Math.floor(Math.log10(step) + 1e-9) * 10) % 10 ? 1 : 0)));
    return ticks.map((tick) => tick == null ? "" : tick.toFixed(digits));
  }

  // A constant series has a range of its own size around it.
  function rangeOf(plot, low, high) {
    if (low == null) return [0, 1];
    if (low === high) return low === 0 ? [-0.1, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
    const margin = (high - low) * 0.08;
    return [low >= 0 && low - margin < 0 ? 0 : low - margin, high + margin];
  }

  const duration = (value) => value >= 7200 ? `${+(value / 3600).toPrecision(3)} h` : value >= 120 ? `${+(value / 60).toPrecision(3)} min` : `${+value.toPrecision(3)} s`;
  const shownX = (value) => settings.x === "seconds" ? duration(value) : settings.x === "tokens" ? short(value) : value.toLocaleString("en");

  // The seconds or tokens after a step, between the steps that the clock has.
  function at(clock, step, axis) {
    let low = 0, high = clock.steps.length - 1;
    if (high < 0 || step <= clock.steps[0]) return step < (clock.steps[0] ?? 0) ? 0 : clock[axis][0] ?? 0;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (clock.steps[middle] < step) low = middle; else high = middle;
    }
    const part = (step - clock.steps[low]) / ((clock.steps[high] - clock.steps[low]) || 1);
    return clock[axis][low] + Math.min(part, 1) * (clock[axis][high] - clock[axis][low]);
  }

  // Exponential moving average, corrected for its start.
  function smoothed(values, factor) {
    let mean = 0, weight = 0;
    return values.map((value) => {
      mean = factor * mean + (1 - factor) * value;
      weight = factor * weight + (1 - factor);
      return mean / weight;
    });
  }

  function lines(chart, clocks) {
    const found = [];
    chart.series.forEach((one, number) => {
      const x = settings.x === "steps" ? one.steps : one.steps.map((step) => at(clocks[one.run], step, settings.x));
      const chosen = settings.smoothing === "" ? (chart.smoothed && number === 0 && x.length >= 20 ? 0.8 : 0) : Number(settings.smoothing);
      const factor = chart.stacked || x.length < 3 ? 0 : chosen;
      if (factor) found.push({ ...one, x, y: one.values, faint: true });
      found.push({ ...one, x, y: factor ? smoothed(one.values, factor) : one.values, faint: false });
    });
    return found;
  }

  function draw(element) {
    const chart = JSON.parse(element.dataset.chart);
    const clocks = JSON.parse(element.closest("[data-clocks]").dataset.clocks);
    const drawn = lines(chart, clocks);
    const log = settings.log && !chart.stacked;
    let data = uPlot.join(drawn.map((line) => [line.x, log ? line.y.map((value) => value > 0 ? value : null) : line.y]));
    const values = data;
    if (chart.stacked) { // the last part is the highest, and is drawn first
      const sums = data[0].map(() => 0);
      data = [data[0], ...data.slice(1).map((part) => part.map((value, place) => (sums[place] += value ?? 0)))];
    }
    const series = drawn.map((line, place) => ({
      label: line.label, stroke: line.faint ? `${line.color}59` : line.color, width: line.faint ? 1 : 2, spanGaps: true,
      class: line.faint ? "values" : "line", fill: chart.stacked ? line.color : undefined,
      paths: chart.stacked ? uPlot.paths.bars({ size: [0.9, 60] }) : undefined,
      points: { show: !chart.stacked && !line.faint && line.x.length <= 40, size: 5, fill: line.color },
      value: (p, value, which, place) => number(place == null ? line.y.at(-1) : values[which]?.[place]),
    }));
    if (chart.stacked) { data = [data[0], ...data.slice(1).reverse()]; series.reverse(); values.push(...values.splice(1).reverse()); }
    const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 }, font: "11px system-ui, sans-serif" };
    const plot = new uPlot({
      width: element.clientWidth || 480, height: HEIGHT, legend: { live: true },
      cursor: { sync: { key: settings.x }, drag: { x: true, y: false } },
      scales: { x: { time: false }, y: { distr: log ? 3 : 1, range: chart.stacked ? (p, low, high) => [0, high * 1.05 || 1] : log ? undefined : rangeOf } },
      axes: [
        { ...axis, label: AXES[settings.x], labelSize: 16, labelFont: axis.font, size: 32, values: (p, ticks) => ticks.map((tick) => Number.isInteger(tick) || settings.x !== "steps" ? shownX(tick) : "") },
        { ...axis, size: 60, values: (p, ticks) => log ? ticks.map((tick) => tick == null ? "" : short(tick)) : labels(ticks) },
      ],
      series: [{ label: AXES[settings.x], value: (p, value) => value == null ? "" : shownX(value) }, ...series],
      hooks: { setScale: [(p, key) => { if (key === "x") remember(p, chart.title); }] },
    }, data, element);
    const zoom = zooms.get(zoomKey(chart.title));
    if (zoom) plot.setScale("x", zoom);
    const last = chart.series.map((one) => `${one.label} ${number(one.values.at(-1))}`).join(", ");
    plot.over.setAttribute("role", "img");
    plot.over.setAttribute("aria-label", `${chart.title} by ${AXES[settings.x]}; last values: ${last}`);
    plots.set(element, plot);
    offerFiles(element, chart, clocks);
  }

  const zoomKey = (title) => `${settings.x} ${title}`;

  function remember(plot, title) {
    const x = plot.data[0], { min, max } = plot.scales.x;
    if (min == null || (min <= x[0] && max >= x.at(-1))) zooms.delete(zoomKey(title));
    else zooms.set(zoomKey(title), { min, max });
  }

  function offerFiles(element, chart, clocks) {
    const header = element.parentElement.querySelector("header");
    if (!header || header.querySelector(".save")) return;
    const place = document.createElement("span");
    place.className = "save";
    const name = chart.title.toLowerCase().replace(/[^\w]+/g, "-");
    for (const [kind, save] of [["PNG", () => savePng(plots.get(element), chart, name)], ["CSV", () => saveCsv(chart, clocks, name)]]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = kind;
      button.setAttribute("aria-label", `Save ${chart.title} as ${kind}`);
      button.addEventListener("click", save);
      place.append(button);
    }
    header.append(place);
  }

  function saveCsv(chart, clocks, name) {
    const quoted = (text) => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    const rows = [`series,step,value${clocks.length ? ",seconds,tokens" : ""}`];
    for (const one of chart.series) one.steps.forEach((step, place) => {
      const times = ["seconds", "tokens"].map((axis) => at(clocks[one.run], step, axis));
      rows.push([quoted(one.label), step, one.values[place], ...times].join(","));
    });
    download(new Blob([rows.join("\n") + "\n"], { type: "text/csv" }), `${name}.csv`);
  }

  function savePng(plot, chart, name) {
    const from = plot.ctx.canvas, scale = devicePixelRatio, canvas = document.createElement("canvas");
    canvas.width = from.width;
    canvas.height = from.height + 44 * scale;
    const paint = canvas.getContext("2d");
    paint.fillStyle = color("--card") || "#fff";
    paint.fillRect(0, 0, canvas.width, canvas.height);
    paint.drawImage(from, 0, 44 * scale);
    paint.scale(scale, scale);
    paint.fillStyle = color("--ink") || "#000";
    paint.font = "600 14px system-ui, sans-serif";
    paint.fillText(`${chart.title}${chart.unit ? ` (${chart.unit})` : ""}`, 8, 18);
    paint.font = "12px system-ui, sans-serif";
    let left = 8;
    for (const one of chart.series) {
      paint.fillStyle = one.color;
      paint.fillText(one.label, left, 36);
      left += paint.measureText(one.label).width + 14;
    }
    canvas.toBlob((blob) => download(blob, `${name}.png`));
  }

  function download(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function offerTools(section) {
    const host = section.closest("[data-refresh]") ?? section; // stays where the curves are replaced
    if (host.previousElementSibling?.matches(".chart-tools")) return;
    const tools = document.createElement("div");
    tools.className = "chart-tools";
    tools.innerHTML = `<label>x <select aria-label="Horizontal axis"><option value="steps">step</option><option value="seconds">time</option><option value="tokens">tokens</option></select></label>
      <label>smoothing <input type="range" min="0" max="0.98" step="0.02" value="0" aria-label="Smoothing"></label>
      <label><input type="checkbox"> log scale</label><span>Drag to zoom, double-click to reset.</span>`;
    const [x, smoothing, log] = tools.querySelectorAll("select, input");
    x.addEventListener("change", () => { settings.x = x.value; redraw(); });
    smoothing.addEventListener("input", () => { settings.smoothing = smoothing.value; redraw(); });
    log.addEventListener("change", () => { settings.log = log.checked; redraw(); });
    host.before(tools);
  }

  function redraw() {
    for (const [element, plot] of plots) { plot.destroy(); draw(element); }
  }

  function drawNew() {
    for (const [element, plot] of plots) if (!element.isConnected) { plot.destroy(); plots.delete(element); }
    for (const element of document.querySelectorAll("[data-chart]")) {
      if (plots.has(element)) continue;
      offerTools(element.closest("[data-clocks]"));
      draw(element);
    }
  }

  new MutationObserver(drawNew).observe(document.body, { childList: true, subtree: true });
  addEventListener("resize", () => { for (const [element, plot] of plots) plot.setSize({ width: element.clientWidth, height: HEIGHT }); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  drawNew();
})();
