// The page of runs: what is known of runs, the address, and polling. Text of runs is always inserted as text, never as markup.
"use strict";

const PERIOD = 2000; // milliseconds between two polls
const IMPOSSIBLE = "impossible";

const rows = new Map(); // by run id
let states = new Map(); // name, text, colour and meaning of each state, by name
let state = null, version = 0, skew = 0;
let reasons = new Map(); // why each of the first waiting runs waits

const $ = (id) => document.getElementById(id);
const now = () => Date.now() / 1000 + skew;
const isNarrow = () => window.matchMedia("(max-width: 700px)").matches;

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// Texts

function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 120) return `${whole} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor(minutes / 60) % 24} h`;
}

// An estimate, which is a lower bound while a run takes far longer than expected.
const about = (seconds) => (state && state.is_least ? `at least ${duration(seconds)}` : `~${duration(seconds)}`);

function isImpossible(row) {
  return row.state === "waiting" && Boolean(state && state.kinds[row.kind] && state.kinds[row.kind].is_final);
}

const stateOf = (row) => (isImpossible(row) ? IMPOSSIBLE : row.state);
const textOf = (row) => (states.get(stateOf(row)) || { text: row.state }).text;
const colourOf = (name) => (states.get(name) || { colour: "#6f7a2f" }).colour;

function coloured(made, name) {
  made.style.setProperty("--dot", colourOf(name));
  return made;
}

const isOver = (row) => row.ran !== undefined && row.state !== "retrying";

function seconds(row) {
  if (row.state === "running" || row.state === "waiting") return now() - row.since;
  return row.ran;
}

const time = (row) => (seconds(row) === undefined ? "" : duration(seconds(row)));

function whyItWaits(row) {
  if (row.state === "held" || row.state === "retrying") return row.why || "";
  if (row.state !== "waiting" || !state) return "";
  const own = reasons.get(row.run), kind = state.kinds[row.kind];
  if (kind && kind.is_final) return kind.why;
  const text = state.blocked_by.length ? "waits for other runs to end" : (own && own.why) || (kind && kind.why) || "";
  const starts = own && own.starts !== null && own.starts !== undefined ? `; starts in ${about(own.starts)}` : "";
  return `${row.position}. ${text}${starts}`;
}

const flagsOf = (row) => Object.entries(row.flags || {}).map(([name, value]) => `${name}=${value}`).join(" ");

// The address keeps what the user has chosen: the run, the filter, the order and the columns

const address = { run: "", tab: "all", q: "", sort: "", span: "3600", search: "", show: [], hide: [] };

function readAddress() {
  const text = location.hash.slice(1);
  if (text && !text.includes("=")) return (address.run = decodeURIComponent(text)); // an id alone
  const given = new URLSearchParams(text);
  for (const name of ["run", "tab", "q", "sort", "span", "search"]) if (given.has(name)) address[name] = given.get(name);
  for (const name of ["show", "hide"]) address[name] = given.getAll(name);
}

function writeAddress() {
  const kept = new URLSearchParams();
  const usual = { tab: "all", span: "3600" };
  for (const name of ["run", "tab", "q", "sort", "span", "search"]) {
    if (address[name] && address[name] !== usual[name]) kept.set(name, address[name]);
  }
  for (const name of ["show", "hide"]) for (const each of address[name]) kept.append(name, each);
  const text = kept.toString();
  history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
}

function set(name, value) {
  address[name] = value;
  writeAddress();
}

// Polling

async function asked(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(30000) });
  if (!answer.ok) throw new Error(`HTTP status ${answer.status}`);
  return answer.json();
}

async function poll() {
  try {
    update(await asked(`guild/data?since=${version}`));
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
  states = new Map(data.states.map((each) => [each.name, each]));
  reasons = new Map((state ? state.first : []).map((run) => [run.run, run]));
  show();
}

function show() {
  showSummary();
  showOverview();
  showLegend();
  showTabs();
  choose();
  showTimeline();
  readScalars();
}

function showSummary() {
  if (state && /^https?:/.test(state.dashboard || "")) $("dask").href = state.dashboard;
  $("dask").hidden = Boolean(state) && !state.dashboard;
  if (!state) return ($("summary").textContent = "waiting for the scheduler");
  const counts = { running: 0, waiting: state.waiting - state.impossible, retrying: state.retrying, held: state.held,
    impossible: state.impossible, ...state.ends };
  counts.running = [...rows.values()].filter((row) => row.state === "running").length;
  const always = ["running", "waiting", "completed", "failed"];
  const parts = [`scheduler ${state.scheduler.slice(0, 8)} on ${state.host}`];
  for (const each of states.values()) {
    if (counts[each.name] || always.includes(each.name)) parts.push(`${counts[each.name] || 0} ${each.text}`);
  }
  if (state.phase !== "working") parts.push(state.phase);
  if (state.left !== null) parts.push(`${about(state.left)} left`);
  $("summary").textContent = parts.join(" · ");
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const menu = document.querySelector(".menu[open]");
  if (menu) { menu.open = false; menu.querySelector("summary").focus(); }
  else if (!(event.target === $("search") && $("search").value)) closeOutput();
});
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll(".menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});
window.addEventListener("DOMContentLoaded", () => {
  readAddress();
  $("search").value = address.q;
  $("span").value = address.span;
  setInterval(follow, 1000);
  if (address.run) open(address.run);
  poll();
});
window.addEventListener("hashchange", () => {
  readAddress();
  $("search").value = address.q;
  if (address.run !== chosen && address.run) open(address.run);
  if (state) show();
});
