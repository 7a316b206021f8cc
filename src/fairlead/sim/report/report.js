"use strict";
// Draws the charts of a report from the JSON in the page. No library; everything is redrawn when the width changes.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const hidden = new Set(); // policies switched off in the legends
  let current = data.cases.length - 1;
  let ganttPolicy = 0;
  // How saved figures look: `of` has the policy that a figure is of, `setting` the one among several that is shown.
  const saving = { of: new Map(), colour: (label) => colour(label), dash: (label) => dash(label), duration: (s) => duration(s),
    shape: (label) => (marked ? shape(label) : null), setting: (id) => (["sweep", "mean"].includes(id) ? "" : data.cases[current].name) };

  // -- small things ------------------------------------------------------------------------------------------------

  const svgNode = (name, attributes = {}, ...children) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const htmlNode = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const rank = (label) => data.policies.indexOf(label);
  const colour = (label) => `var(--c${rank(label) % 8})`;
  // Dash and marker tell twenty lines apart without their colours, as in a grey print, and so do colour and dash without
  // markers. Few lines need no markers.
  const DASHES = ["", "9 7", "1 6", "14 6 1 6"];
  const SHAPES = [
    (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
    (x, y, r) => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`,
    (x, y, r) => `M${x} ${y - 1.3 * r}L${x + 1.2 * r} ${y + 0.8 * r}H${x - 1.2 * r}Z`,
    (x, y, r) => `M${x} ${y - 1.4 * r}L${x + 1.4 * r} ${y}L${x} ${y + 1.4 * r}L${x - 1.4 * r} ${y}Z`,
    (x, y, r) => `M${x} ${y + 1.3 * r}L${x + 1.2 * r} ${y - 0.8 * r}H${x - 1.2 * r}Z`,
  ];
  const dash = (label) => DASHES[(rank(label) + Math.floor(rank(label) / 8)) % DASHES.length];
  const shape = (label) => SHAPES[Math.floor(rank(label) / DASHES.length) % SHAPES.length];
  const marked = data.policies.length > DASHES.length;
  const marker = (label, x, y, fill = colour(label)) => svgNode("path", { class: "marker", stroke: colour(label), fill, d: shape(label)(+x.toFixed(1), +y.toFixed(1), 4) });
  const sample = (label) => svgNode("svg", { width: 58, height: 12, "aria-hidden": "true" }, svgNode("line", {
    x1: 1, x2: 57, y1: 6, y2: 6, stroke: colour(label), "stroke-width": 2.5, "stroke-linecap": dash(label) ? "round" : "butt", "stroke-dasharray": dash(label) }), ...(marked ? [marker(label, 34, 6)] : []));
  // Places of a line's markers, as shares of its length: each line has its own, so that they do not hide one another.
  const places = (label) => (marked ? [0, 1, 2, 3].map((i) => (i + 0.15 + 0.7 * (rank(label) + 0.5) / data.policies.length) / 4) : []);
  const entries = () => data.cases[current].entries;
  const shown = () => entries().filter((entry) => !hidden.has(entry.label));

  const UNITS = [[86400, "days", "d"], [3600, "hours", "h"], [60, "minutes", "min"], [1, "seconds", "s"]];
  const unitFor = (span) => UNITS.find(([size]) => span >= 3 * size) || UNITS[3];
  const trim = (value) => String(+value.toPrecision(4));
  function duration(s) {
    if (s < 120) return `${s < 10 ? trim(Math.round(s * 10) / 10) : Math.round(s)} s`;
    const two = (n) => String(n).padStart(2, "0");
    const whole = Math.round(s);
    if (whole < 3600) return `${Math.floor(whole / 60)}m ${two(whole % 60)}s`;
    const m = Math.round(s / 60), h = Math.round(s / 3600);
    return s < 172800 ? `${Math.floor(m / 60)}h ${two(m % 60)}m` : `${Math.floor(h / 24)}d ${h % 24}h`;
  }
  const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %`;
  const cut = (text, letters) => (text.length > letters ? `${text.slice(0, Math.max(1, letters - 1))}…` : text);
  const count = (value) => value.toLocaleString("en");

  function niceStep(span, ticks) {
    const rough = span / ticks, power = 10 ** Math.floor(Math.log10(rough));
    return power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999);
  }
  function linearTicks(low, high, ticks) {
    const step = niceStep(high - low || 1, ticks), values = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) values.push(+(i * step).toPrecision(12));
    return values;
  }
  const TIMES = [[0.01, "10 ms"], [0.1, "0.1 s"], [1, "1 s"], [10, "10 s"], [60, "1 min"], [600, "10 min"], [3600, "1 h"],
    [36000, "10 h"], [86400, "1 d"], [864000, "10 d"], [8640000, "100 d"], [86400000, "1000 d"]];

  // -- axes: each has `of` (value to pixel), `ticks` ([value, text]) and a title ------------------------------------

  function timeAxis(span, width) {
    const [size, name] = unitFor(span);
    const ticks = linearTicks(0, span / size, Math.max(3, Math.min(10, Math.floor(width / 75))));
    return { of: (s) => (s / span) * width, back: (px) => (px / width) * span, low: 0, high: span, say: duration,
      ticks: ticks.map((t) => [t * size, trim(t)]), title: `${name} since the first submission` };
  }
  function logAxis(low, high, width, { ticks, title, say }) {
    const a = Math.log(low), b = Math.log(high);
    const of = (v) => ((Math.log(v) - a) / (b - a)) * width;
    const kept = []; // without labels that would touch; a tick at 1 comes first
    const inside = ticks.filter(([v]) => v >= low * 0.999 && v <= high * 1.001).sort(([u], [v]) => (v === 1) - (u === 1) || u - v);
    const apart = (u, v) => Math.abs(of(u[0]) - of(v[0])) > 3.6 * (u[1].length + v[1].length) + 10;
    for (const tick of inside) if (kept.every((other) => apart(tick, other))) kept.push(tick);
    return { of, back: (px) => Math.exp(a + (px / width) * (b - a)), low, high, ticks: kept, title, say };
  }
  function logTimeAxis(low, high, width) {
    const fine = high / low < 30;
    const ticks = fine ? linearTicks(low, high, 4).filter((t) => t > 0).map((t) => [t, duration(t)]) : TIMES;
    return logAxis(low, high, width, { ticks, title: "completion time (logarithmic)", say: duration });
  }
  function ratioAxis(low, high, width) {
    const ticks = high / low < 4 ? linearTicks(low, high, Math.max(3, Math.floor(width / 90)))
      : [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10000, 100000];
    return logAxis(low, high, width, { ticks: ticks.map((t) => [t, trim(t)]), title: "ρ (logarithmic)", say: (v) => `ρ ${trim(+v.toPrecision(3))}` });
  }
  function loadAxis(stops, width) {
    const low = stops[0], high = stops.at(-1);
    const ticks = stops.length <= width / 45 ? stops : linearTicks(low, high, Math.max(3, Math.floor(width / 110)));
    const pad = (high - low) * 0.04 || 0.5;
    const of = (v) => ((v - low + pad) / (high - low + 2 * pad)) * width;
    return { of, back: (px) => (px / width) * (high - low + 2 * pad) + low - pad, low, high, title: "load",
      stops, ticks: ticks.map((t) => [t, trim(t)]), say: (v) => `load ${trim(v)}` };
  }

  // -- the frame of a chart ----------------------------------------------------------------------------------------

  const LEFT = 52, BOTTOM = 46, TOP = 26, RIGHT = 10;

  function frame(box, height, label) {
    const width = Math.max(240, box.clientWidth);
    const svg = svgNode("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    box.replaceChildren(svg);
    return { svg, width: width - LEFT - RIGHT };
  }
  function drawAxes(svg, x, { width, top, height, yMax, yTicks, ySay, yTitle }) {
    const y = (v) => top + height - (v / yMax) * height;
    const g = svgNode("g", { class: "axis" });
    for (const t of yTicks) {
      g.append(svgNode("line", { x1: LEFT, x2: LEFT + width, y1: y(t), y2: y(t), class: t === 0 ? "base" : "" }),
        svgNode("text", { x: LEFT - 8, y: y(t) + 4, "text-anchor": "end" }, ySay(t)));
    }
    if (x) {
      for (const [value, text] of x.ticks) {
        const px = LEFT + x.of(value);
        g.append(svgNode("line", { x1: px, x2: px, y1: top + height, y2: top + height + 4, class: "base" }),
          svgNode("text", { x: px, y: top + height + 19, "text-anchor": "middle" }, text));
      }
      g.append(svgNode("text", { x: LEFT + width / 2, y: top + height + 39, "text-anchor": "middle" }, x.title));
    }
    if (yTitle) g.append(svgNode("text", { x: 0, y: top - 12, "text-anchor": "start", class: "y-title" }, yTitle));
    svg.append(g);
    return y;
  }
  const at = (xs, ys, x) => { // value of a step function that begins with 0
    let low = 0, high = xs.length;
    while (low < high) { const mid = (low + high) >> 1; if (xs[mid] <= x) low = mid + 1; else high = mid; }
    return low ? ys[Math.min(low, ys.length) - 1] : 0;
  };
  const point = (px, py) => `${px.toFixed(1)} ${py.toFixed(1)}`;
  function stepPath(xs, ys, x, y, end, begin) {
    let path = begin === undefined ? `M${point(x(xs[0]), y(ys[0]))}` : `M${point(x(begin), y(0))}H${x(xs[0]).toFixed(1)}V${y(ys[0]).toFixed(1)}`;
    for (let i = 1; i < ys.length; i++) path += `H${x(xs[i]).toFixed(1)}V${y(ys[i]).toFixed(1)}`;
    return `${path}H${x(end).toFixed(1)}`;
  }

  // -- tooltips ----------------------------------------------------------------------------------------------------

  function showTip(event, head, rows) {
    tip.replaceChildren(htmlNode("b", {}, head), ...rows.map(([label, value, shade]) => htmlNode("div", {},
      ...(shade ? [shade] : []), htmlNode("span", {}, label), htmlNode("span", {}, value))));
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 16 : event.clientX + 16;
    tip.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
    tip.style.top = `${Math.max(8, Math.min(event.clientY + 14, innerHeight - height - 8))}px`;
  }
  const hideTip = () => { tip.hidden = true; };
  function hover(svg, x, { top, height, width, rows }) {
    const guide = svgNode("line", { class: "guide", y1: top, y2: top + height, visibility: "hidden" });
    const area = svgNode("rect", { x: LEFT, y: top, width, height, fill: "transparent" });
    svg.append(guide, area);
    const snap = (v) => (x.stops ? x.stops.reduce((a, b) => (Math.abs(b - v) < Math.abs(a - v) ? b : a)) : v);
    area.addEventListener("pointermove", (event) => {
      const scale = svg.viewBox.baseVal.width / svg.getBoundingClientRect().width;
      const px = (event.clientX - area.getBoundingClientRect().left) * scale;
      const value = snap(x.back(px)), where = LEFT + x.of(value);
      guide.setAttribute("x1", where); guide.setAttribute("x2", where); guide.setAttribute("visibility", "visible");
      showTip(event, x.say(value), rows(value));
    });
    area.addEventListener("pointerleave", () => { guide.setAttribute("visibility", "hidden"); hideTip(); });
  }

  // -- the legend: one per chart, all switching the same policies ---------------------------------------------------

  function legend(box, labels) {
    if (labels.length < 2) return;
    const list = htmlNode("div", { class: "legend", role: "group", "aria-label": "Policies shown" });
    labels.forEach((label, i) => {
      const button = htmlNode("button", { type: "button", "aria-pressed": String(!hidden.has(label)) }, sample(label), label);
      button.addEventListener("click", () => {
        if (!hidden.delete(label)) hidden.add(label);
        draw();
        box.querySelectorAll(".legend button")[i].focus();
      });
      list.append(button);
    });
    box.append(list);
  }
  const nothing = (box) => box.replaceChildren(htmlNode("p", { class: "empty" }, "Nothing to show here."));

  // -- charts ------------------------------------------------------------------------------------------------------

  function distributionChart(id, field, axisOf, mark) {
    const box = document.querySelector(`#${id} .chart`);
    const all = entries().filter((entry) => entry[field]), lines = shown().filter((entry) => entry[field]);
    if (!all.length) return nothing(box);
    const values = all.flatMap((entry) => entry[field].x.filter((v) => v > 0));
    if (mark) values.push(mark);
    let low = Math.min(...values) / 1.08, high = Math.max(...values) * 1.08;
    if (!values.length) [low, high] = [0.5, 2];
    const height = 250;
    const { svg, width } = frame(box, TOP + height + BOTTOM, document.querySelector(`#${id} h2`).textContent + ": "
      + all.map((e) => `${e.label} up to ${axisOf(low, high, 100).say(e[field].x.at(-1))}`).join(", "));
    const x = axisOf(low, high, width);
    const y = drawAxes(svg, x, { width, top: TOP, height, yMax: 1, yTicks: [0, 0.25, 0.5, 0.75, 1], ySay: percent, yTitle: "share of jobs" });
    const px = (v) => LEFT + x.of(Math.max(v, low));
    if (mark) {
      svg.append(svgNode("g", { class: "mark" }, svgNode("line", { x1: px(mark), x2: px(mark), y1: TOP, y2: TOP + height })));
    }
    for (const entry of lines) {
      svg.append(svgNode("path", { class: "curve", stroke: colour(entry.label), "stroke-dasharray": dash(entry.label),
        d: stepPath(entry[field].x, entry[field].y, px, y, high, low) }));
      const { x: xs, y: ys } = entry[field];
      for (const share of places(entry.label)) { // on the way up
        const i = ys.findIndex((v) => v >= share);
        if (i >= 0) svg.append(marker(entry.label, px(xs[i]), y(share)));
      }
    }
    figureData.set(id, { labels: lines.map((e) => e.label), rows: () => [["policy", field === "jct" ? "completion_time_s" : "rho", "share_of_jobs"],
      ...lines.flatMap((e) => e[field].x.map((v, i) => [e.label, v, e[field].y[i]]))] });
    hover(svg, x, { top: TOP, height, width, rows: (v) => lines.map((e) => [e.label, percent(at(e[field].x, e[field].y, v)), sample(e.label)]) });
    legend(box, all.map((entry) => entry.label));
  }

  function queueChart() {
    const box = document.querySelector("#queue .chart");
    const all = entries().filter((entry) => entry.queue), lines = shown().filter((entry) => entry.queue);
    if (!all.length) return nothing(box);
    const most = Math.max(1, ...all.flatMap((entry) => entry.queue.v)), span = Math.max(...all.map((entry) => entry.queue.t.at(-1)));
    const height = 220;
    const { svg, width } = frame(box, TOP + height + BOTTOM, "Jobs waiting over time: "
      + all.map((e) => `${e.label} at most ${count(Math.max(...e.queue.v))}`).join(", "));
    const x = timeAxis(span, width);
    const ticks = linearTicks(0, most, 4).filter(Number.isInteger);
    const y = drawAxes(svg, x, { width, top: TOP, height, yMax: most * 1.04, yTicks: ticks, ySay: count, yTitle: "jobs waiting" });
    const px = (v) => LEFT + x.of(v);
    for (const entry of lines) {
      svg.append(svgNode("path", { class: "curve", "stroke-width": 1.6, stroke: colour(entry.label), "stroke-dasharray": dash(entry.label),
        style: "stroke-width:1.6", d: stepPath(entry.queue.t, entry.queue.v, px, y, entry.queue.t.at(-1)) }));
      for (const share of places(entry.label)) {
        const t = share * entry.queue.t.at(-1);
        svg.append(marker(entry.label, px(t), y(at(entry.queue.t, entry.queue.v, t))));
      }
    }
    figureData.set("queue", { labels: lines.map((e) => e.label), rows: () => [["policy", "time_s", "jobs_waiting"],
      ...lines.flatMap((e) => e.queue.v.map((v, i) => [e.label, e.queue.t[i], v]))] });
    hover(svg, x, { top: TOP, height, width, rows: (t) => lines.map((e) => [e.label, `${count(at(e.queue.t, e.queue.v, t))} waiting`, sample(e.label)]) });
    legend(box, all.map((entry) => entry.label));
  }

  function gpuPanels() {
    const box = document.querySelector("#gpus .chart");
    const lines = entries().filter((entry) => entry.gpus);
    if (!lines.length) return nothing(box);
    const most = Math.max(1, ...lines.flatMap((entry) => entry.size.v)), span = Math.max(...lines.map((entry) => entry.gpus.t.at(-1)));
    const height = lines.length > 1 ? 72 : 180, pitch = height + 34;
    const { svg, width } = frame(box, pitch * lines.length + BOTTOM, "GPUs in use over time, one panel per policy");
    const x = timeAxis(span, width), px = (v) => LEFT + x.of(v);
    figureData.set("gpus", { labels: [], rows: () => [["policy", "time_s", "gpus_in_use", "gpus"],
      ...lines.flatMap((e) => e.gpus.v.map((v, i) => [e.label, e.gpus.t[i], v, at(e.size.t, e.size.v, e.gpus.t[i])]))] });
    lines.forEach((entry, i) => {
      const top = i * pitch + 26, last = i === lines.length - 1;
      const y = drawAxes(svg, last ? x : null, { width, top, height, yMax: most * 1.06, yTicks: [0, most], ySay: count, yTitle: i ? "" : "GPUs" });
      const end = entry.gpus.t.at(-1), line = stepPath(entry.gpus.t, entry.gpus.v, px, y, end);
      svg.append(svgNode("text", { class: "panel-name", x: LEFT, y: top - 9 }, cut(entry.label, Math.floor(width / 8))),
        svgNode("path", { class: "area", fill: colour(entry.label), d: `${line}V${y(0)}H${px(entry.gpus.t[0])}Z` }),
        svgNode("path", { class: "curve", style: "stroke-width:1.2", stroke: colour(entry.label), d: line }),
        svgNode("path", { class: "size", d: stepPath(entry.size.t, entry.size.v, px, y, end) }));
      hover(svg, x, { top, height, width, rows: (t) => [[entry.label, `${count(t > end ? 0 : at(entry.gpus.t, entry.gpus.v, t))} of ${count(at(entry.size.t, entry.size.v, t))} GPUs`, sample(entry.label)]] });
    });
  }

  function sweepChart() {
    if (!data.sweep.length) return;
    const box = document.querySelector("#sweep .chart");
    const lines = data.sweep.filter((line) => !hidden.has(line.label));
    const stops = [...new Set(data.sweep.flatMap((line) => line.x))].sort((a, b) => a - b);
    const most = Math.max(...data.sweep.flatMap((line) => line.high)) || 1;
    const [size, name] = unitFor(most), height = 260, top = 26;
    const { svg, width } = frame(box, top + height + BOTTOM, "Mean completion time against load, one line per policy");
    const x = loadAxis(stops, width);
    const y = drawAxes(svg, x, { width, top, height, yMax: (most / size) * 1.06, yTicks: linearTicks(0, most / size, 5), ySay: trim, yTitle: `mean completion time, ${name}` });
    figureData.set("sweep", { labels: lines.map((line) => line.label), rows: () => [["policy", "load", "jct_mean_s", "ci95_low", "ci95_high", "unfinished"],
      ...lines.flatMap((line) => line.x.map((load, i) => [line.label, load, line.y[i], line.low[i], line.high[i], line.unfinished[i]]))] });
    const shift = (label) => (rank(label) - (data.policies.length - 1) / 2) * Math.min(3, 24 / data.policies.length); // so that intervals stand side by side
    for (const { label, x: xs, y: ys, low, high, unfinished } of lines) {
      const points = xs.map((v, i) => point(LEFT + x.of(v) + shift(label), y(ys[i] / size)));
      xs.forEach((v, i) => {
        if (high[i] <= low[i]) return;
        const px = LEFT + x.of(v) + shift(label), [top, bottom] = [y(high[i] / size), y(low[i] / size)];
        svg.append(svgNode("path", { class: "error", stroke: colour(label), fill: "none",
          d: `M${px - 4} ${top}h8M${px} ${top}V${bottom}M${px - 4} ${bottom}h8` }));
      });
      svg.append(svgNode("path", { class: "curve", stroke: colour(label), "stroke-dasharray": dash(label), d: `M${points.join("L")}` }),
        ...points.map((p, i) => marker(label, +p.split(" ")[0], +p.split(" ")[1], unfinished[i] ? "var(--card)" : colour(label))));
    }
    const value = (line, load) => { const i = line.x.indexOf(load); return i < 0 ? "n/a" : duration(line.y[i]) + (line.high[i] > line.y[i] ? ` ± ${duration(line.high[i] - line.y[i])}` : "") + (line.unfinished[i] ? ` (${count(line.unfinished[i])} unfinished)` : ""); };
    hover(svg, x, { top, height, width, rows: (load) => lines.map((line) => [line.label, value(line, load), sample(line.label)]) });
    legend(box, data.sweep.map((line) => line.label));
  }

  // -- the Gantt chart ---------------------------------------------------------------------------------------------

  function ganttChart() {
    const figure = document.getElementById("gantt"), box = figure.querySelector(".chart");
    const all = entries().filter((entry) => entry.gantt), tabs = figure.querySelector(".tabs");
    tabs.replaceChildren();
    figure.querySelector("figcaption").textContent = "";
    if (!all.length) return nothing(box);
    ganttPolicy = Math.min(ganttPolicy, all.length - 1);
    const pick = (i) => { ganttPolicy = (i + all.length) % all.length; ganttChart(); tabs.children[ganttPolicy].focus(); };
    if (all.length > 1) all.forEach((entry, i) => {
      const tab = htmlNode("button", { type: "button", role: "tab", "aria-selected": String(i === ganttPolicy), tabindex: i === ganttPolicy ? 0 : -1 }, entry.label);
      tab.addEventListener("click", () => pick(i));
      tab.addEventListener("keydown", (event) => { const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key]; if (move) pick(i + move); });
      tabs.append(tab);
    });
    saving.of.set("gantt", all[ganttPolicy].label);
    drawGantt(box, all[ganttPolicy]);
    const { label, gantt: g } = all[ganttPolicy], places = g.nodes.flatMap(([node, n]) => Array.from({ length: n }, (_, i) => [node, i]));
    figureData.set("gantt", { labels: [], rows: () => [["policy", "job", "node", "first_gpu", "gpus", "from_s", "to_s"],
      ...g.bars.map(([at, n, from, to, job]) => [label, g.jobs[job][0], ...places[at], n, from, to])] });
    figure.querySelector("figcaption").replaceChildren(ganttCaption(all[ganttPolicy].gantt), htmlNode("span", { class: "live" }, " Point at a bar to see the job everywhere it was."));
  }
  function ganttCaption(g) {
    const parts = ["One row per GPU, nodes set apart; every job keeps its colour. Of several seeds, the first is shown."];
    if (g.nodes.length < g.all_nodes) parts.push(`Shown are the first ${g.nodes.length} of ${count(g.all_nodes)} nodes.`);
    if (!g.whole) parts.push(`There are too many stays to draw: shown is the time from ${duration(g.from)} to ${duration(g.to)}, around ${g.around}.`);
    return parts.join(" ");
  }
  function drawGantt(box, { label, gantt: g }) {
    const gpus = g.nodes.reduce((sum, [, n]) => sum + n, 0);
    const row = gpus <= 16 ? 16 : gpus <= 32 ? 11 : gpus <= 64 ? 8 : 5, gap = g.nodes.length > 1 ? 4 : 0;
    const full = box.clientWidth, longest = Math.max(...g.nodes.map(([name]) => name.length));
    const left = Math.min(full < 500 ? 64 : 130, longest * 7 + 12), letters = Math.floor((left - 10) / 6.6);
    const height = gpus * row + g.nodes.length * gap;
    const svg = svgNode("svg", { viewBox: `0 0 ${full} ${height + BOTTOM}`, role: "img", "aria-label": `${label}: which job held which GPU, from ${duration(g.from)} to ${duration(g.to)}` });
    box.replaceChildren(svg);
    const width = full - left - RIGHT, axis = timeAxis(g.to - g.from, width);
    const [size, name] = unitFor(g.to - g.from);
    const step = niceStep((g.to - g.from) / size, Math.max(3, Math.min(10, Math.floor(width / 75))));
    const x = (t) => left + axis.of(t - g.from);
    const back = svgNode("g", { class: "axis" }), tops = [];
    let top = 0, labelled = -Infinity;
    for (const [text, n] of g.nodes) {
      back.append(svgNode("rect", { class: "node", x: left, y: top, width, height: n * row }));
      const middle = top + (n * row) / 2 + 4;
      if (middle - labelled >= 13) {
        labelled = middle;
        back.append(svgNode("text", { x: left - 8, y: middle, "text-anchor": "end" }, text.length > letters ? `…${text.slice(1 - letters)}` : text));
      }
      for (let i = 0; i < n; i++) tops.push({ y: top + i * row, node: text, gpu: i });
      top += n * row + gap;
    }
    for (let t = Math.ceil(g.from / size / step - 1e-9) * step; t * size <= g.to * 1.0001; t += step) {
      back.append(svgNode("line", { x1: x(t * size), x2: x(t * size), y1: height, y2: height + 4, class: "base" }),
        svgNode("text", { x: x(t * size), y: height + 19, "text-anchor": "middle" }, trim(t)));
    }
    back.append(svgNode("text", { x: left + width / 2, y: height + 39, "text-anchor": "middle" }, `${name} since the first submission`));
    const bars = svgNode("g", { class: "bars-g" });
    g.bars.forEach(([at, n, from, to, job], i) => bars.append(svgNode("rect", {
      x: x(from).toFixed(2), y: tops[at].y, width: Math.max(0.7, x(to) - x(from)).toFixed(2), height: n * row,
      fill: `var(--c${g.jobs[job][1] % 8})`, "fill-opacity": [0.95, 0.7, 0.5][Math.floor(g.jobs[job][1] / 8)], "data-bar": i })));
    svg.append(back, bars);
    pointAt(bars, g, tops);
  }
  function pointAt(bars, g, tops) {
    let picked = -1;
    bars.addEventListener("pointermove", (event) => {
      const bar = g.bars[event.target.dataset.bar];
      if (!bar) return;
      const [at, n, from, to, job] = bar, { node, gpu } = tops[at];
      if (job !== picked) {
        picked = job;
        bars.classList.add("picked");
        g.bars.forEach((other, i) => bars.children[i].classList.toggle("on", other[4] === job));
      }
      showTip(event, g.jobs[job][0], [[`${node}, GPU ${n > 1 ? `${gpu} to ${gpu + n - 1}` : gpu}`, ""], [`${duration(from)} to ${duration(to)}`, duration(to - from)]]);
    });
    bars.addEventListener("pointerleave", () => { picked = -1; bars.classList.remove("picked"); hideTip(); });
  }

  // -- what is saved -----------------------------------------------------------------------------------------------

  const jct = data.tables.figures.findIndex(([name]) => name === "jct_mean_s"), last = data.tables.cases.length - 1;
  const means = data.cases[last].entries.map(({ label }, i) => {
    const { mean, half, n, unfinished } = data.tables.cases[last].entries[i];
    return { label, mean: mean?.[jct] ?? null, half: half?.[jct] ?? null, n: n[jct], unfinished };
  });
  figureData.set("mean", { labels: [], draw: () => barsDrawing(means, saving), rows: () => [
    ["policy", ...data.tables.settings, "jct_mean_s", "ci95_low", "ci95_high", "n", "unfinished"],
    ...means.map((e) => [e.label, ...data.tables.cases[last].setting, e.mean, ...ends(e.mean, e.half), e.n, e.unfinished])] });

  // -- all of it ---------------------------------------------------------------------------------------------------

  function draw() {
    hideTip();
    document.querySelectorAll("[data-case]").forEach((table) => { table.hidden = +table.dataset.case !== current; });
    distributionChart("jct", "jct", logTimeAxis);
    distributionChart("rho", "rho", ratioAxis, 1);
    queueChart();
    gpuPanels();
    sweepChart();
    ganttChart();
  }
  document.querySelectorAll("figure:not(:empty)").forEach((figure) => addFigureButtons(figure, saving));
  document.querySelectorAll("section.card").forEach((section) => addTableButtons(section, data));
  const select = document.getElementById("case");
  if (select) {
    current = +select.value;
    document.querySelectorAll("caption").forEach((caption) => caption.classList.add("sr"));
    select.addEventListener("change", () => { current = +select.value; draw(); });
  }
  let lastWidth = 0, waiting = 0;
  new ResizeObserver(() => {
    const width = document.querySelector("main").clientWidth;
    if (width === lastWidth) return;
    lastWidth = width;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(draw);
  }).observe(document.querySelector("main"));
  addEventListener("scroll", hideTip, { passive: true });
  draw();
})();
