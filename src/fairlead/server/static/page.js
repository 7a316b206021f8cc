// The status page: reads the API, listens to its events, and draws. What comes from the server becomes text and never
// markup. No packages, no build; one page, one server.
"use strict";

const API = "/api/v1";
const ENDED = new Set(["SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT"]);
// In which order states are listed: those that hold GPUs first.
const ORDER = { RUNNING: 0, RESCALING: 0, STARTING: 0, PREEMPTING: 0, CANCELLING: 0, SUSPENDED: 1, RECOVERING: 1, PENDING: 2, HELD: 3 };
const MOST_ROWS = 500, MOST_LIVE = 2000, MOST_ENDED = 50, MOST_NODES = 256, MOST_POINTS = 60, MOST_STORY = 300;
const POLL_MS = 10000, PANEL_MS = 4000, LONGEST_PAUSE_MS = 10000;

const state = {
  me: null, cluster: null, nodes: new Map(), jobs: new Map(), whole: true,
  goodput: new Map(),  // id -> [[time, value], ...] since the page was opened
  offset: 0,           // seconds that this machine's clock is behind the server's
};
const byId = id => document.getElementById(id);
const now = () => Date.now() / 1000 + state.offset;

// -- asking the server ----------------------------------------------------------------------------------------------

class Unauthorized extends Error {}

async function ask(path, kind = "json") {
  const response = await fetch(path, { cache: "no-store" });
  if (response.status === 401) throw new Unauthorized("log in");
  if (!response.ok) {
    const told = await response.json().catch(() => ({}));
    throw Object.assign(new Error(told.detail || `the server answered with ${response.status}`), { status: response.status });
  }
  const date = Date.parse(response.headers.get("date") || "");
  if (!Number.isNaN(date)) {
    const offset = date / 1000 - Date.now() / 1000;
    state.offset = Math.abs(offset) > 5 ? offset : 0;
  }
  return kind === "json" ? response.json() : response.text();
}

async function load() {
  const [me, cluster, nodes] = await Promise.all([ask(`${API}/whoami`), ask(`${API}/cluster`), ask(`${API}/nodes`)]);
  const jobs = new Map();
  let cursor = "";
  do {
    const page = await ask(`${API}/jobs?limit=500${cursor && `&cursor=${encodeURIComponent(cursor)}`}`);
    for (const job of page.jobs) jobs.set(job.id, job);
    cursor = page.next || "";
  } while (cursor && jobs.size < MOST_LIVE);
  const history = await ask(`${API}/history?limit=${MOST_ENDED}`);
  for (const job of history.jobs) if (!jobs.has(job.id)) jobs.set(job.id, job);
  Object.assign(state, { me, cluster, jobs, whole: !cursor });
  state.nodes = new Map(nodes.nodes.map(node => [node.id, node]));
  for (const job of jobs.values()) remember(job);
  draw();
}

// -- staying connected ----------------------------------------------------------------------------------------------

let source = null, pause = 500, retry = 0, wasLost = false;

function listen() {
  source = new EventSource(`${API}/events`);
  source.addEventListener("ready", () => {
    pause = 500;
    say("live", wasLost ? `reconnected at ${new Date().toLocaleTimeString()}` : "live");
    wasLost = false;
  });
  source.addEventListener("job", event => take(JSON.parse(event.data)));
  source.addEventListener("node", event => {
    const node = JSON.parse(event.data);
    state.nodes.set(node.id, node);
    draw();
  });
  source.addEventListener("reset", () => load().catch(lost));
  source.onerror = () => lost(new Error("the server does not answer"));
}

function take(job) {
  state.jobs.set(job.id, job);
  remember(job);
  draw();
  if (job.id === opened()) refreshPanel();
}

function remember(job) {
  if (job.goodput === null || ENDED.has(job.state)) return;
  const points = state.goodput.get(job.id) || [];
  if (!points.length || now() - points.at(-1)[0] >= 1) points.push([now(), job.goodput]);
  else points.at(-1)[1] = job.goodput;
  state.goodput.set(job.id, points.slice(-MOST_POINTS));
}

function lost(error) {
  if (source) source.close();
  source = null;
  wasLost = true;
  clearTimeout(retry);
  if (error instanceof Unauthorized) {
    say("lost", "not logged in");
    byId("login").hidden = false;
    return;
  }
  say("lost", "the server does not answer; trying again");
  retry = setTimeout(begin, pause);
  pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
}

async function begin() {
  clearTimeout(retry);
  try {
    await load();
  } catch (error) {
    lost(error);
    return;
  }
  byId("login").hidden = true;
  if (source) source.close();
  listen();
}

function say(kind, text) {
  byId("link").dataset.state = kind;
  byId("link").textContent = text;
}

async function logIn(event) {
  event.preventDefault();
  const input = event.target.elements.token;
  const body = JSON.stringify({ token: input.value.trim() });
  try {
    const response = await fetch("/session", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    byId("login-error").textContent = response.ok ? "" : "this token is not known";
    if (!response.ok) return;
  } catch {
    byId("login-error").textContent = "the server does not answer";
    return;
  }
  input.value = "";
  begin();
}

async function poll() {
  if (source === null || document.hidden) return;
  try {
    state.cluster = await ask(`${API}/cluster`);
    draw();
  } catch { /* the stream notices what is wrong */ }
}

// -- words ----------------------------------------------------------------------------------------------------------

function span(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${s < 600 ? String(s % 60).padStart(2, "0") + "s" : ""}`;
  if (s < 86400) return `${Math.floor(s / 3600)}h${String(Math.floor(s % 3600 / 60)).padStart(2, "0")}m`;
  return `${Math.floor(s / 86400)}d${Math.floor(s % 86400 / 3600)}h`;
}

function moment(at) {
  const then = new Date(at * 1000);
  return then.toDateString() === new Date().toDateString() ? then.toLocaleTimeString() : then.toLocaleString();
}

const amount = value => value >= 100 ? Math.round(value).toLocaleString() : String(Number(value.toPrecision(3)));
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

function gpusOf(job) {
  const { current, min, max } = job.gpus;
  return `${current}/${min}${max === min ? "" : `-${max}`}`;
}

function etaOf(job) {
  if (ENDED.has(job.state)) return job.ended_at === null ? "" : `${span(now() - job.ended_at)} ago`;
  if (job.ends_at !== null) return span(job.ends_at - now());
  return job.starts_at === null ? "" : `starts in ${span(job.starts_at - now())}`;
}

const percent = share => share >= 1 ? "100%" : `${Math.min(99, Math.floor(share * 100))}%`;

// A hue for each job. Neighbours in number are far apart on the wheel.
function hue(id) {
  let number = 0;
  for (const character of id) number = (number * 31 + character.charCodeAt(0)) % 100003;
  return (number * 137.508) % 360;
}

// -- drawing --------------------------------------------------------------------------------------------------------

function make(tag, text = "", className = "") {
  const element = document.createElement(tag);
  if (text !== "") element.textContent = text;
  if (className) element.className = className;
  return element;
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

let drawn = 0;
function draw() {
  if (!drawn) drawn = requestAnimationFrame(() => { drawn = 0; drawCluster(); drawJobs(); });
}

function drawCluster() {
  const { cluster, me } = state;
  if (!cluster) return;
  put(byId("about"), `version ${cluster.version}, policy ${cluster.policy}, decides on ${cluster.cadence}, as ${me.name} (${me.role})`);
  const kinds = [...state.nodes.values()].reduce((all, node) => all.set(node.gpu_type, (all.get(node.gpu_type) || 0) + node.gpus), new Map());
  const total = [...kinds.values()].reduce((sum, count) => sum + count, 0);
  const held = holders();
  put(byId("gpus"), `${held.size} of ${total} GPUs in use`);
  const counts = state.whole ? countsHere() : cluster.jobs;
  const told = Object.entries(counts).filter(([, count]) => count).map(([name, count]) => {
    const element = make("span", `${count} ${name.toLowerCase()}`);
    element.dataset.state = name;
    return element;
  });
  byId("counts").replaceChildren(...told);
  drawNodes(held);
}

function countsHere() {
  const counts = {};
  for (const job of state.jobs.values()) if (!ENDED.has(job.state)) counts[job.state] = (counts[job.state] || 0) + 1;
  return counts;
}

// "node:gpu" -> the job that holds it
function holders() {
  const held = new Map();
  for (const job of state.jobs.values()) {
    if (ENDED.has(job.state)) continue;
    for (const [node, gpus] of Object.entries(job.gpus.allocation)) for (const gpu of gpus) held.set(`${node}:${gpu}`, job);
  }
  return held;
}

function drawNodes(held) {
  const nodes = [...state.nodes.values()].slice(0, MOST_NODES).map(node => {
    const item = make("li", "", node.healthy && !node.draining ? "" : "shut");
    const used = Array.from({ length: node.gpus }, (_, gpu) => held.get(`${node.id}:${gpu}`)).filter(Boolean).length;
    const fate = node.healthy ? (node.draining ? ", is being emptied" : "") : ", lost";
    const cpu = (node.labels || {})["cpu-share"], share = cpu ? `@${cpu}` : "";
    item.append(make("p", `${node.id}: ${used}/${node.gpus} ${node.gpu_type}${share}${fate}`, "name"));
    const blocks = make("div", "", "blocks");
    for (let gpu = 0; gpu < node.gpus; gpu += 1) {
      const job = held.get(`${node.id}:${gpu}`);
      const block = make(job ? "a" : "i");
      const outside = (node.outside || []).includes(gpu);
      const user = job ? `job ${job.id} ${job.name} (${job.user})${outside ? " and somebody outside" : ""}` : "";
      block.title = `GPU ${gpu}: ${user || (outside ? "somebody outside" : "free")}`;
      if (outside) block.className = "outside";
      if (job) {
        block.href = `#job-${job.id}`;
        block.setAttribute("aria-label", block.title);
        block.style.setProperty("--hue", hue(job.id));
      }
      blocks.append(block);
    }
    item.append(blocks);
    return item;
  });
  byId("nodes").replaceChildren(...nodes);
}

function chosen() {
  const words = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  const jobs = [...state.jobs.values()].filter(job => {
    if (byId("mine").checked && state.me && job.user !== state.me.name) return false;
    if (!byId("ended").checked && ENDED.has(job.state)) return false;
    const text = `${job.id} ${job.name} ${job.user} ${job.queue} ${job.state}`.toLowerCase();
    return words.every(word => text.includes(word));
  });
  const rank = job => ORDER[job.state] ?? 9;
  return jobs.sort((a, b) => rank(a) - rank(b) || (b.ended_at || 0) - (a.ended_at || 0) || a.submitted_at - b.submitted_at
    || a.id.localeCompare(b.id, undefined, { numeric: true }));
}

const rows = new Map();  // id -> its row and the parts of it that change

function drawJobs() {
  const jobs = chosen(), shown = jobs.slice(0, MOST_ROWS), body = byId("jobs").tBodies[0];
  const wanted = new Set(shown.map(job => job.id));
  for (const [id, row] of rows) if (!wanted.has(id)) { row.element.remove(); rows.delete(id); }
  shown.forEach((job, place) => {
    const row = rows.get(job.id) || newRow(job);
    fill(row, job);
    if (body.children[place] !== row.element) body.insertBefore(row.element, body.children[place] || null);
  });
  const hidden = jobs.length - shown.length;
  const none = state.jobs.size ? "no job fits" : "there are no jobs; hand one in with: fairlead submit --gpus 1 -- python train.py";
  put(byId("rest"), hidden ? `and ${plural(hidden, "job")} more` : jobs.length ? "" : none);
  if (!state.whole) put(byId("rest"), `only the newest ${MOST_LIVE} jobs are shown; fairlead queue lists all`);
}

function newRow(job) {
  const element = make("tr"), row = { element };
  const cell = (name, label, className = "") => {
    const td = make("td", "", className);
    if (label) td.dataset.label = label;
    element.append(td);
    row[name] = td;
    return td;
  };
  const first = cell("job", "", "job");
  row.dot = make("span", "", "dot");
  row.dot.style.setProperty("--hue", hue(job.id));
  row.id = make("a", job.id);
  row.id.href = `#job-${job.id}`;
  row.name = make("span");
  first.append(row.dot, row.id, " ", row.name);
  cell("user", "User", "name");
  cell("queue", "Queue", "name");
  cell("state", "", "state");
  cell("gpus", "GPUs", "num");
  cell("batch", "Batch", "num");
  const goodput = cell("goodput", "Goodput", "num");
  row.rate = make("span");
  row.spark = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  row.spark.setAttribute("class", "spark");
  row.spark.setAttribute("viewBox", "0 0 60 16");
  row.spark.setAttribute("preserveAspectRatio", "none");
  row.spark.setAttribute("aria-hidden", "true");
  row.line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  row.spark.append(row.line);
  goodput.append(row.rate, row.spark);
  const progress = cell("progress", "", "num");
  row.bar = make("span", "", "bar");
  row.bar.append(make("i"));
  row.share = make("span");
  progress.append(row.bar, row.share);
  cell("eta", "ETA", "num");
  cell("why", "", "why");
  element.addEventListener("click", event => { if (!event.target.closest("a")) location.hash = `job-${job.id}`; });
  rows.set(job.id, row);
  return row;
}

function fill(row, job) {
  row.element.className = `${ENDED.has(job.state) ? "over" : ""}${opened() === job.id ? " open" : ""}`;
  row.dot.hidden = job.gpus.current === 0 || ENDED.has(job.state);
  put(row.name, job.name);
  put(row.user, job.user);
  put(row.queue, job.queue);
  put(row.state, job.state);
  row.state.className = `state ${job.state}`;
  put(row.gpus, gpusOf(job));
  put(row.batch, job.batch === null ? "" : String(job.batch));
  const rated = job.goodput !== null && !ENDED.has(job.state);
  row.goodput.classList.toggle("none", !rated);
  put(row.rate, rated ? `${amount(job.goodput)}/s` : "");
  const points = state.goodput.get(job.id) || [];
  row.line.setAttribute("points", rated && points.length > 1 ? spark(points) : "");
  const measured = job.progress !== null;
  row.progress.classList.toggle("none", !measured);
  row.bar.hidden = !measured;
  row.bar.firstChild.style.width = measured ? percent(job.progress) : "0";
  put(row.share, measured ? percent(job.progress) : "");
  put(row.eta, etaOf(job));
  row.eta.dataset.label = ENDED.has(job.state) ? "Ended" : "ETA";
  put(row.why, job.reason ? job.reason.text : job.detail);
}

function spark(points) {
  const [first, last] = [points[0][0], points.at(-1)[0]];
  const most = Math.max(...points.map(([, value]) => value)) || 1;
  return points.map(([at, value]) => `${(60 * (at - first) / (last - first || 1)).toFixed(1)},${(15 - 14 * value / most).toFixed(1)}`).join(" ");
}

// -- the panel ------------------------------------------------------------------------------------------------------

const opened = () => (location.hash.match(/^#job-([0-9.]+)$/) || [])[1] || null;
let panelTimer = 0, panelAsked = 0;

function showPanel() {
  const id = opened();
  byId("panel").hidden = id === null;
  draw();
  if (id === null) return;
  byId("panel-title").textContent = `Job ${id}`;
  for (const part of ["why", "facts", "story", "log"]) byId(`panel-${part}`).replaceChildren();
  byId("panel").focus({ preventScroll: true });
  drawPanel();
}

// At most once a second, however often the job changes.
function refreshPanel() {
  clearTimeout(panelTimer);
  panelTimer = setTimeout(drawPanel, Math.max(0, panelAsked + 1000 - Date.now()));
}

async function drawPanel() {
  const id = opened();
  clearTimeout(panelTimer);
  if (id === null) return;
  panelAsked = Date.now();
  const job = state.jobs.get(id) || await ask(`${API}/jobs/${id}`).catch(() => null);
  if (opened() !== id) return;
  if (job) drawFacts(job);
  else byId("panel-why").textContent = "you have no such job";
  const [story, log] = await Promise.all([storyOf(id), logOf(id)]);
  if (opened() !== id) return;
  drawStory(story);
  drawLog(log);
  if (!job || !ENDED.has(job.state)) panelTimer = setTimeout(drawPanel, PANEL_MS);
}

function drawFacts(job) {
  put(byId("panel-title"), `Job ${job.id}${job.name ? `: ${job.name}` : ""}`);
  put(byId("panel-why"), `${job.state}${job.reason ? `: ${job.reason.text}` : job.detail ? `: ${job.detail}` : ""}`);
  const where = Object.entries(job.gpus.allocation).map(([node, gpus]) => `${node}[${gpus.join(",")}]`).join(" ");
  const facts = [
    ["User", `${job.user}, queue ${job.queue}, priority ${job.priority}`],
    ["GPUs", `${gpusOf(job)} ${where}`],
    ["Batch", job.batch === null ? "" : String(job.batch)],
    ["Goodput", job.goodput === null ? "" : `${amount(job.goodput)} useful samples per second`],
    ["Progress", job.progress === null ? "" : percent(job.progress) + (job.ends_at === null || ENDED.has(job.state) ? "" : `, ${etaOf(job)} left`)],
    ["Attempt", `${job.attempt}; ${plural(job.failures, "failure")}, ${plural(job.preemptions, "preemption")}`],
    ["Exit code", job.exit_code === null ? "" : String(job.exit_code)],
    ["Submitted", moment(job.submitted_at)],
    ["Started", job.started_at === null ? "" : moment(job.started_at)],
    ["Ended", job.ended_at === null ? "" : moment(job.ended_at)],
    ["GPU time", span(job.gpu_seconds)],
    ["Command", job.command.join(" ")],
  ].filter(([, text]) => text !== "");
  byId("panel-facts").replaceChildren(...facts.flatMap(([name, text]) => [make("dt", name), make("dd", text)]));
}

async function storyOf(id) {
  const told = [];
  let after = "0";
  try {
    for (let page = 0; after !== null && page < 20; page += 1) {
      const answer = await ask(`${API}/jobs/${id}/events?limit=500&after=${encodeURIComponent(after)}`);
      told.push(...answer.events);
      after = answer.next;
    }
  } catch (error) {
    return error.status === 404 ? null : told;
  }
  return told.slice(-MOST_STORY);
}

function drawStory(story) {
  const items = (story || []).map(event => {
    const item = make("li");
    item.append(make("time", moment(event.at)), make("span", event.text));
    return item;
  });
  byId("panel-story").replaceChildren(...(story === null ? [make("li", "only its owner and admins see this")] : items));
}

async function logOf(id) {
  try {
    return await ask(`${API}/jobs/${id}/logs?tail=200`, "text") || "nothing was printed yet";
  } catch (error) {
    return error.status === 404 ? "only its owner and admins see this" : `cannot be read: ${error.message}`;
  }
}

function drawLog(text) {
  const log = byId("panel-log");
  const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
  put(log, text);
  if (atEnd) log.scrollTop = log.scrollHeight;
}

// -- begin ----------------------------------------------------------------------------------------------------------

byId("login").addEventListener("submit", logIn);
for (const id of ["find", "mine", "ended"]) byId(id).addEventListener("input", draw);
addEventListener("hashchange", showPanel);
addEventListener("online", () => { if (source === null && byId("login").hidden) begin(); });
addEventListener("keydown", event => { if (event.key === "Escape" && opened()) location.hash = ""; });
setInterval(poll, POLL_MS);
setInterval(draw, 1000);  // what tells the time
begin().then(showPanel);
