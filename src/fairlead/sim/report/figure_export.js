"use strict";
// Saves the figures and tables of a report: a figure as SVG that looks the same elsewhere, and its numbers as CSV.

const figureData = new Map(); // by the figure's id: labels of its legend, and rows() of its CSV, set when it is drawn

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

function svgText(figure, { colour, dash }) {
  const svg = figure.querySelector(".chart > svg"), { width, height } = svg.viewBox.baseVal;
  const labels = figureData.get(figure.id)?.labels ?? [];
  const style = getComputedStyle(document.documentElement), ink = style.getPropertyValue("--ink"), paper = style.getPropertyValue("--card");
  const make = (name, attributes, ...children) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const head = 34, rows = labels.length > 1 ? labels.length : 0, tall = head + height + 20 * rows + 10;
  const copy = inlined(svg);
  for (const [key, value] of Object.entries({ x: 0, y: head, width, height })) copy.setAttribute(key, value);
  const whole = make("svg", { xmlns: "http://www.w3.org/2000/svg", width, height: tall, viewBox: `0 0 ${width} ${tall}`, "font-family": "sans-serif" },
    make("rect", { width, height: tall, fill: paper }),
    make("text", { x: 8, y: 20, "font-size": 15, "font-weight": 600, fill: ink }, figure.querySelector("h2").textContent), copy);
  labels.slice(0, rows).forEach((label, i) => {
    const y = head + height + 14 + 20 * i, shade = style.getPropertyValue(colour(label).slice(4, -1));
    whole.append(make("line", { x1: 12, x2: 48, y1: y - 4, y2: y - 4, stroke: shade, "stroke-width": 3, "stroke-dasharray": dash(label) }),
      make("text", { x: 56, y, "font-size": 13, fill: ink }, label));
  });
  return new XMLSerializer().serializeToString(whole);
}

function buttons(card, entries) {
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
  card.append(box);
}

function addFigureButtons(figure, look) {
  buttons(figure, [
    ["SVG", () => figure.querySelector(".chart > svg") && saveText(`${figure.id}.svg`, "image/svg+xml", svgText(figure, look))],
    ["CSV", () => figureData.has(figure.id) && saveText(`${figure.id}.csv`, "text/csv", csvText(figureData.get(figure.id).rows()))],
  ]);
}

// The tables that are shown now, one after the other.
function addTableButton(section) {
  const cell = (node) => node.innerText.replace(/\s+/g, " ").trim();
  buttons(section, [["CSV", () => {
    const tables = [...section.querySelectorAll("table")].filter((table) => !table.closest("[hidden]"));
    const rows = tables.flatMap((table) => [...table.rows].map((row) => [...row.cells].map(cell)));
    saveText("metrics.csv", "text/csv", csvText(rows));
  }]]);
}
