"use strict";
// Saves the figures and tables of a report: a figure as SVG that looks the same elsewhere, and its numbers as CSV.

// By the figure's id: labels of its legend, rows() of its CSV, and draw() where the page shows no SVG. Set when it is drawn.
const figureData = new Map();

function saveText(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function csvText(rows) {
  const field = (value) => (/[",\r\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));
  return rows.map((row) => row.map(field).join(",")).join("\n") + "\n";
}

// What the style sheet of the page says, written into each element.
const DRAWN = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "stroke-linejoin",
  "stroke-linecap", "opacity", "font-size", "font-weight", "text-anchor"];

function inlined(node) {
  const copy = node.cloneNode(false);
  copy.removeAttribute("class");
  copy.removeAttribute("style");
  if (node.nodeType === Node.ELEMENT_NODE) {
    const style = getComputedStyle(node);
    for (const name of DRAWN) copy.setAttribute(name, style.getPropertyValue(name));
    for (const child of node.childNodes) {
      if (child.nodeType === Node.TEXT_NODE) copy.append(child.textContent);
      else if (!child.matches(".guide, [fill=transparent]")) copy.append(inlined(child));
    }
  }
  return copy;
}

const drawn = (name, attributes, ...children) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
};
const shade = (value) => getComputedStyle(document.documentElement).getPropertyValue(value.replace(/^var\((.*)\)$/, "$1")).trim();

// Lines of a text that fit a width.
function wrapped(text, width, font) {
  const pen = document.createElement("canvas").getContext("2d"), lines = [""];
  pen.font = font;
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const longer = `${lines.at(-1)} ${word}`.trim();
    if (lines.at(-1) && pen.measureText(longer).width > width) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines.filter(Boolean);
}

// Without what only the page can do.
function captionOf(figure) {
  const caption = figure.querySelector("figcaption")?.cloneNode(true);
  caption?.querySelectorAll(".live").forEach((node) => node.remove());
  return caption?.textContent ?? "";
}

// A figure as it is saved: what it shows, of which policy and setting; the drawing; its legend; its caption.
function svgText(figure, { colour, dash, shape, of, setting }) {
  const { labels = [], draw } = figureData.get(figure.id) ?? {}, svg = draw ? draw() : figure.querySelector(".chart > svg");
  const { width: inner, height } = svg.viewBox.baseVal, width = inner + 16, ink = shade("--ink"), soft = shade("--soft");
  const title = figure.querySelector("h2").textContent + (of.has(figure.id) ? `: ${of.get(figure.id)}` : "") + (setting(figure.id) ? `, ${setting(figure.id)}` : "");
  const heads = wrapped(title, width - 16, "600 15px sans-serif"), captions = wrapped(captionOf(figure), width - 16, "12px sans-serif");
  const head = 14 + 20 * heads.length, rows = labels.length > 1 ? labels.length : 0;
  const under = head + height + 20 * rows + 10, tall = under + 16 * captions.length + 10;
  const copy = draw ? svg : inlined(svg);
  for (const [key, value] of Object.entries({ x: 8, y: head, width: inner, height })) copy.setAttribute(key, value);
  const whole = drawn("svg", { xmlns: "http://www.w3.org/2000/svg", width, height: tall, viewBox: `0 0 ${width} ${tall}`, "font-family": "sans-serif" },
    drawn("rect", { width, height: tall, fill: shade("--card") }),
    ...heads.map((line, i) => drawn("text", { x: 8, y: 20 + 20 * i, "font-size": 15, "font-weight": 600, fill: ink }, line)), copy);
  labels.slice(0, rows).forEach((label, i) => {
    const y = head + height + 14 + 20 * i, stroke = shade(colour(label)), line = { x1: 12, x2: 70, y1: y - 4, y2: y - 4, stroke, "stroke-width": 2.5 };
    whole.append(drawn("line", dash(label) ? { ...line, "stroke-dasharray": dash(label), "stroke-linecap": "round" } : line));
    if (shape(label)) whole.append(drawn("path", { d: shape(label)(45, y - 4, 4), fill: stroke }));
    whole.append(drawn("text", { x: 80, y, "font-size": 13, fill: ink }, label));
  });
  captions.forEach((line, i) => whole.append(drawn("text", { x: 8, y: under + 12 + 16 * i, "font-size": 12, fill: soft }, line)));
  return new XMLSerializer().serializeToString(whole);
}

// The bars of mean completion times, which the page shows without a script, as a drawing.
function barsDrawing(means, { colour, duration }) {
  const longest = Math.max(...means.map(({ mean, half }) => (mean ?? 0) + (half ?? 0))) || 1;
  const width = 760, left = 210, right = 150, of = (value) => left + (Math.max(0, value) / longest) * (width - left - right), pitch = 26;
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${means.length * pitch + 8}` });
  const ink = shade("--ink"), text = (attributes, words) => drawn("text", { "font-size": 13, fill: ink, ...attributes }, words);
  means.forEach(({ label, mean, half, unfinished }, i) => {
    const y = i * pitch + 6, middle = y + 8;
    const name = label + (unfinished ? ` (${unfinished} unfinished)` : "");
    svg.append(text({ x: 0, y: middle + 4 }, name.length > 30 ? `${name.slice(0, 29)}…` : name));
    if (mean === null) return svg.append(text({ x: left, y: middle + 4 }, "n/a"));
    svg.append(drawn("rect", { x: left, y, width: Math.max(1, of(mean) - left), height: 16, fill: shade(colour(label)), stroke: ink, "stroke-width": 0.5 }));
    const [low, high] = ends(mean, half);
    if (half) svg.append(drawn("path", { d: `M${of(low)} ${middle - 5}v10M${of(low)} ${middle}H${of(high)}M${of(high)} ${middle - 5}v10`, stroke: ink, "stroke-width": 1.5, fill: "none" }));
    svg.append(text({ x: width, y: middle + 4, "text-anchor": "end" }, duration(mean) + (half ? ` ± ${duration(half)}` : "")));
  });
  return svg;
}

// Both ends of a confidence interval; nothing of one seed.
const ends = (mean, half) => (mean === null || half === null || half === undefined ? ["", ""] : [mean - half, mean + half].map((edge) => +edge.toPrecision(9)));

// Every figure of every policy in every setting: one line each, numbers in the unit that stands beside them.
function metricRows({ tables, cases }) {
  const head = ["policy", ...tables.settings, "figure", "unit", "mean", "ci95_low", "ci95_high", "n"];
  return [head, ...tables.cases.flatMap(({ setting, entries }, c) => entries.flatMap(({ mean, half, n }, e) => tables.figures.map(([name, unit], i) => [
    cases[c].entries[e].label, ...setting, name, unit, mean?.[i] ?? "", ...ends(mean?.[i] ?? null, half?.[i]), n[i]])))];
}

// The same of the differences from the baseline: in the figure's unit, and as a share of the baseline.
function differenceRows({ tables, cases }) {
  const head = ["policy", "baseline", ...tables.settings, "figure", "unit", "difference", "ci95_low", "ci95_high",
    "relative", "relative_ci95_low", "relative_ci95_high", "n"];
  return [head, ...tables.cases.flatMap(({ setting, entries }, c) => entries.flatMap((entry, e) => (entry.pairs ? tables.figures.map(([name, unit], i) => {
    const [apart, share] = [entry.difference?.[i] ?? null, entry.relative?.[i] ?? null];
    return [cases[c].entries[e].label, tables.baseline, ...setting, name, unit, apart ?? "", ...ends(apart, entry.difference_half?.[i]),
      share ?? "", ...ends(share, entry.relative_half?.[i]), entry.pairs[i]];
  }) : [])))];
}

function buttons(entries) {
  const box = document.createElement("div");
  box.className = "save";
  for (const [kind, save] of entries) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = kind;
    button.setAttribute("aria-label", `Save as ${kind}`);
    button.addEventListener("click", save);
    box.append(button);
  }
  return box;
}

function addFigureButtons(figure, look) {
  const there = () => figureData.get(figure.id)?.draw || figure.querySelector(".chart > svg");
  figure.append(buttons([
    ["SVG", () => there() && saveText(`${figure.id}.svg`, "image/svg+xml", svgText(figure, look))],
    ["CSV", () => figureData.has(figure.id) && saveText(`${figure.id}.csv`, "text/csv", csvText(figureData.get(figure.id).rows()))],
  ]));
}

function addTableButtons(section, data) {
  const differences = data.tables.cases.some(({ entries }) => entries.some((entry) => entry.pairs));
  section.prepend(buttons([
    ["CSV", () => saveText("metrics.csv", "text/csv", csvText(metricRows(data)))],
    ...(differences ? [["CSV of differences", () => saveText("differences.csv", "text/csv", csvText(differenceRows(data)))]] : []),
  ]));
}
