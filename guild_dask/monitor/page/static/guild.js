// The page of runs. It polls for changed rows and draws them. Text of runs is always inserted as text, never as markup.
"use strict";

const PERIOD = 2000; // milliseconds between two polls
const HEIGHT = 26; // of a row in pixels, as in guild.css
const KEPT = 2000000; // the most characters of output that are kept
const COLOURS = { completed: "#4477aa", running: "#66ccee", failed: "#ee6677", terminated: "#bbbbbb" };
const IMPOSSIBLE = "impossible";
const TABS = ["all", "running", "waiting", IMPOSSIBLE, "held", "retrying", "completed", "failed", "terminated", "other"];

const rows = new Map();
let rest = ""; // the last, incomplete line of the followed output
let state = null, version = 0, skew = 0, tab = "all", shown = [], chosen = null, next = -1, asking = false;
let reasons = new Map();

const $ = (id) => document.getElementById(id);
const now = () => Date.now() / 1000 + skew;

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 120) return `${whole} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor(minutes / 60) % 24} h`;
}

function isImpossible(row) {
  return row.state === "waiting" && Boolean(state && state.kinds[row.kind] && state.kinds[row.kind].is_final);
}

function kindOf(row) {
  if (isImpossible(row)) return IMPOSSIBLE;
  return TABS.includes(row.state) ? row.state : row.state === "could not start" || row.state === "gone" ? "failed" : "other";
}

// Polling

async function poll() {
  try {
    const answer = await fetch(`guild/data?since=${version}`, { signal: AbortSignal.timeout(30000) });
    if (!answer.ok) throw new Error(`HTTP status ${answer.status}`);
    update(await answer.json());
    $("trouble").hidden = !(state && state.troubles.length);
    $("trouble").textContent = state ? state.troubles.join(" · ") : "";
  } catch (problem) {
    $("trouble").hidden = false;
    $("trouble").textContent = `No response from the scheduler: it has ended, or cannot be reached (${problem.message}).`;
  }
  setTimeout(poll, document.hidden ? 5 * PERIOD : PERIOD);
}

function update(data) {
  skew = data.now - Date.now() / 1000;
  if (data.whole) rows.clear();
  for (const row of data.rows) rows.set(row.run, row);
  for (const id of data.gone) rows.delete(id);
  version = data.version;
  state = data.state;
  reasons = new Map((state ? state.first : []).map((run) => [run.run, run]));
  show();
}

function show() {
  showSummary();
  showWorkers();
  showTabs();
  choose();
  showTimeline();
}

function showSummary() {
  if (state && /^https?:/.test(state.dashboard || "")) $("dask").href = state.dashboard;
  $("dask").hidden = Boolean(state) && !state.dashboard;
  if (!state) return ($("summary").textContent = "waiting for the scheduler");
  const ends = state.ends;
  const failed = (ends.failed || 0) + (ends["could not start"] || 0) + (ends.gone || 0);
  const running = [...rows.values()].filter((row) => row.state === "running").length;
  const parts = [`scheduler ${state.scheduler.slice(0, 8)} on ${state.host}`, `${running} running`,
    `${state.waiting - state.impossible} waiting`];
  const { impossible, held, retrying } = state;
  for (const [name, count] of Object.entries({ impossible, held, retrying })) if (count) parts.push(`${count} ${name}`);
  parts.push(`${ends.completed || 0} completed`, `${failed} failed`);
  if (ends.terminated) parts.push(`${ends.terminated} terminated`);
  if (state.phase !== "working") parts.push(state.phase);
  if (state.left !== null) parts.push(`about ${duration(state.left)} left`);
  $("summary").textContent = parts.join(" · ");
}

// Amounts are texts as the user typed them: 64GB.
function amount(text) {
  const parts = /^([0-9.eE+-]+?)\s*(?:([kmgtp])(i)?)?b?$/i.exec(text);
  if (!parts) return parseFloat(text) || 0;
  const power = parts[2] ? "kmgtp".indexOf(parts[2].toLowerCase()) + 1 : 0;
  return parseFloat(parts[1]) * Math.pow(parts[3] ? 1024 : 1000, power);
}

function gauge(name, used, total, text) {
  const line = element("div", undefined, "gauge");
  const meter = element("meter");
  meter.max = Math.max(total, 1e-9);
  meter.value = used;
  meter.title = `${name}: ${text}`;
  line.append(element("span", name), meter, element("span", text));
  return line;
}

function showWorkers() {
  const made = (state ? state.workers : []).map((worker) => {
    const card = element("div", undefined, "worker");
    card.append(element("b", worker.name), element("small", worker.host));
    card.append(gauge("slots", worker.used_slots, worker.slots, `${worker.used_slots} of ${worker.slots}`));
    for (const name of Object.keys(worker.total).sort()) {
      const total = amount(worker.total[name]), used = amount(worker.used[name] || "0");
      const share = total ? Math.round((100 * used) / total) : 0;
      const unit = /[a-z]+$/i.test(worker.total[name]);
      const text = unit ? `${share} % of ${worker.total[name]}` : `${+used.toPrecision(4)} of ${worker.total[name]}`;
      card.append(gauge(name, used, total, text));
    }
    return card;
  });
  $("workers").replaceChildren(...made);
}

// The table: only visible rows are in the document

function showTabs() {
  const counts = Object.fromEntries(TABS.map((name) => [name, 0]));
  for (const row of rows.values()) { counts.all += 1; counts[kindOf(row)] += 1; }
  const made = TABS.filter((name) => counts[name] || name === "all" || name === tab).map((name) => {
    const button = element("button", `${name} ${counts[name]}`);
    button.setAttribute("role", "tab");
    button.setAttribute("aria-selected", String(name === tab));
    button.addEventListener("click", () => { tab = name; show(); });
    return button;
  });
  $("tabs").replaceChildren(...made);
}

const RANK = { running: 0, waiting: 1, held: 2, retrying: 2 };

function order(one, other) {
  const rank = (RANK[one.state] ?? 3) - (RANK[other.state] ?? 3);
  if (rank) return rank;
  if (one.state === "waiting") return one.key - other.key || (one.run < other.run ? -1 : 1);
  if (one.state === "running") return one.since - other.since;
  return (other.at || 0) - (one.at || 0);
}

function choose() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  shown = [...rows.values()].sort(order);
  let place = 0;
  for (const row of shown) row.place = row.state === "waiting" && !isImpossible(row) ? (place += 1) : 0;
  shown = shown.filter((row) => {
    if (tab !== "all" && kindOf(row) !== tab) return false;
    if (!words.length) return true;
    const text = `${row.run} ${row.operation || ""} ${row.flags || ""} ${row.tags || ""} ${row.worker || ""} ${row.state}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  $("space").style.height = `${shown.length * HEIGHT}px`;
  drawRows();
}

function time(row) {
  if (row.state === "running") return duration(now() - row.since);
  if (row.state === "waiting") return duration(now() - row.since);
  return row.ran === undefined ? "" : duration(row.ran);
}

function why(row) {
  if (row.state === "held" || row.state === "retrying") return row.why;
  if (row.state !== "waiting" || !state) return row.why || (row.exit_code ? `exit code ${row.exit_code}` : "");
  const own = reasons.get(row.run);
  const kind = state.kinds[row.kind];
  if (kind && kind.is_final) return kind.why;
  const text = state.blocked_by.length ? "waits for other runs to end" : (own && own.why) || (kind && kind.why) || "";
  const starts = own && own.starts !== null && own.starts !== undefined ? `; starts in ~${duration(own.starts)}` : "";
  return `${row.place}. ${text}${starts}`;
}

function drawRows() {
  const table = $("table");
  const first = Math.max(0, Math.floor(table.scrollTop / HEIGHT) - 5);
  const count = Math.ceil(table.clientHeight / HEIGHT) + 10;
  const made = shown.slice(first, first + count).map((row) => {
    const line = element("div", undefined, `row${row.run === chosen ? " chosen" : ""}`);
    line.setAttribute("role", "row");
    line.dataset.run = row.run;
    const cells = [row.run.slice(0, 8), row.operation || "", row.flags || "", row.tags || "", row.worker || "", time(row), why(row)];
    line.append(element("span", isImpossible(row) ? IMPOSSIBLE : row.state, `state is-${kindOf(row)}`));
    for (const text of cells) {
      const cell = element("span", text);
      cell.title = text;
      line.append(cell);
    }
    line.addEventListener("click", () => open(row.run));
    return line;
  });
  $("rows").style.top = `${first * HEIGHT}px`;
  $("rows").replaceChildren(...made);
}

// The timeline: a bar for each attempt, in lanes without overlaps

function lanes(bars) {
  const ends = new Map();
  bars.sort((one, other) => one.start - other.start);
  for (const bar of bars) {
    const taken = ends.get(bar.worker) || [];
    let lane = taken.findIndex((end) => end <= bar.start);
    if (lane < 0) lane = taken.length;
    taken[lane] = bar.stop;
    ends.set(bar.worker, taken);
    bar.lane = lane;
  }
  const offsets = new Map();
  let total = 0;
  for (const worker of [...ends.keys()].sort()) { offsets.set(worker, total); total += ends.get(worker).length; }
  for (const bar of bars) bar.lane += offsets.get(bar.worker);
  return total;
}

let drawn = [];

function showTimeline() {
  const canvas = $("timeline"), end = now(), span = Number($("span").value);
  const bars = [];
  const add = (bar) => { if (!span || bar.stop > end - span) bars.push(bar); };
  for (const row of rows.values()) {
    for (const one of row.past || []) {
      const hint = `attempt ${one.attempt}: ${time(one)} (${one.why})`;
      add({ row, worker: one.worker, start: one.at - one.ran, stop: one.at, kind: "past", hint });
    }
    const isRunning = row.state === "running";
    if ((!isRunning && row.ran === undefined) || row.state === "retrying") continue;
    const hint = `${row.state} ${time(row)}`, kind = kindOf(row);
    if (isRunning) add({ row, worker: row.worker, start: row.since, stop: end, kind, hint });
    else add({ row, worker: row.worker, start: row.at - row.ran, stop: row.at, kind, hint });
  }
  const count = lanes(bars);
  const from = bars.length ? Math.max(span ? end - span : -Infinity, Math.min(...bars.map((bar) => bar.start))) : end - 60;
  const height = Math.max(3, Math.min(14, Math.floor(140 / Math.max(1, count))));
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.height = (count * height + 22) * scale;
  canvas.width = width * scale;
  canvas.style.height = `${count * height + 22}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const x = (at) => ((at - from) / Math.max(1, end - from)) * width;
  drawn = bars.map((bar) => ({ ...bar, x: x(bar.start), w: Math.max(1.5, x(bar.stop) - x(bar.start)), y: bar.lane * height, h: height }));
  for (const bar of drawn) {
    pen.fillStyle = COLOURS[bar.kind] || "#ccbb44";
    pen.fillRect(bar.x, bar.y + 1, Math.max(1, bar.w - 0.5), bar.h - 1);
  }
  pen.fillStyle = getComputedStyle(document.body).getPropertyValue("--soft");
  pen.font = "11px system-ui, sans-serif";
  const first = new Date(from * 1000).toLocaleTimeString(), last = new Date(end * 1000).toLocaleTimeString();
  pen.fillText(first, 4, count * height + 15);
  pen.fillText(last, width - pen.measureText(last).width - 4, count * height + 15);
}

function barAt(event) {
  const box = $("timeline").getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  return drawn.find((bar) => x >= bar.x - 1 && x <= bar.x + bar.w + 1 && y >= bar.y && y <= bar.y + bar.h);
}

// The output of one run

function open(id) {
  chosen = id;
  next = -1;
  empty();
  $("output").hidden = false;
  history.replaceState(null, "", `#${encodeURIComponent(id)}`);
  drawRows();
  follow();
}

function empty() {
  rest = "";
  $("text").replaceChildren(document.createTextNode(""), document.createTextNode(""));
}

// Output as a terminal shows it: without colours, and text after \r replaces the line before it.
function asShown(text) {
  const plain = text.replace(/\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][0-9A-B]|\x1b[=>78]/g, "");
  return plain.split("\n").map((line) => line.replace(/\r+$/, "").replace(/^[^]*\r/, "")).join("\n");
}

// Complete lines are in one text node, and the last line, which may be redrawn, in another.
function add(text) {
  const [done, last] = $("text").childNodes;
  const raw = rest + text, end = raw.lastIndexOf("\n") + 1;
  rest = raw.slice(Math.max(end, raw.length - KEPT));
  done.data = (done.data + asShown(raw.slice(0, end))).slice(-KEPT);
  last.data = asShown(rest);
}

async function follow() {
  if (chosen === null || asking) return;
  asking = true;
  const id = chosen;
  try {
    const answer = await fetch(`guild/output?run=${encodeURIComponent(id)}&from=${next}`, { signal: AbortSignal.timeout(30000) });
    const piece = answer.ok ? await answer.json() : { text: "", next: -1, size: 0, from: 0 };
    if (id === chosen) {
      const box = $("text");
      if (next >= 0 && piece.from !== next) empty();
      if (piece.text) add(piece.text);
      if ($("follow").checked && piece.text) box.scrollTop = box.scrollHeight;
      next = piece.next;
      showFacts(piece);
    }
  } catch (problem) {
    // The next poll reports it, at the top of the page.
  }
  asking = false;
}

function showFacts(piece) {
  const row = rows.get(chosen);
  $("title").textContent = row ? `${row.operation || ""} ${chosen.slice(0, 8)}` : chosen;
  const parts = row ? [isImpossible(row) ? IMPOSSIBLE : row.state, row.flags, row.tags, row.worker ? `on ${row.worker}` : "", time(row), row.asks ? `requests ${row.asks}` : "", why(row)] : [];
  if (!piece.size) parts.push("no output yet");
  $("facts").textContent = parts.filter(Boolean).join(" · ");
}

$("search").addEventListener("input", choose);
$("span").addEventListener("change", showTimeline);
$("table").addEventListener("scroll", drawRows);
$("close").addEventListener("click", () => {
  chosen = null;
  $("output").hidden = true;
  history.replaceState(null, "", location.pathname);
  drawRows();
});
$("timeline").addEventListener("mousemove", (event) => {
  const bar = barAt(event);
  $("hint").textContent = bar ? `${bar.row.run.slice(0, 8)} ${bar.row.operation || ""} ${bar.hint}` : "";
});
$("timeline").addEventListener("click", (event) => { const bar = barAt(event); if (bar) open(bar.row.run); });
window.addEventListener("resize", () => { drawRows(); showTimeline(); });
setInterval(follow, 1000);
if (location.hash.length > 1) open(decodeURIComponent(location.hash.slice(1)));
poll();
