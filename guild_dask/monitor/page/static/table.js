// The table of runs: its columns, order and filter. Only visible rows are in the document.
"use strict";

const MOST_FLAGS = 6; // columns for flags that differ; further ones share a column
const USUAL_SCALARS = 2; // columns for scalars, unless the user chooses others
const SOME = 60; // runs in one request for scalars
const WIDEST = 170, LONGEST = 600, NARROWEST = 44, GAP = 10; // pixels of a column, of one with sentences, and between two
const DROPPED = ["tags", "flags", "worker"]; // columns that are left out first if the window is too narrow for all

let shown = [], columns = [], current = null; // the rows after the filter, the visible columns, and the run at the cursor
let names = []; // the scalars that runs have, and whether high values are good
const scalars = new Map(); // values and curve, by run id
let isReading = false;

// Scalars are read for visible runs, and for all shown ones while they are sorted by one

const scalarOf = (row, name) => (scalars.get(row.run) ? scalars.get(row.run).values[name] : undefined);
const hasStarted = (row) => row.state === "running" || isOver(row);
const stamp = (row) => `${row.state} ${row.attempt} ${row.at || ""}`; // changes when the scalars may

function isUnread(row) {
  const known = scalars.get(row.run);
  return hasStarted(row) && (!known || known.isPartial || row.state === "running" || known.stamp !== stamp(row));
}

async function readScalars() {
  if (isReading || document.hidden) return;
  const wanted = visible().filter(isUnread);
  const sorted = (address.sort || "").replace(/^-/, "").startsWith("s:");
  if (sorted) for (const row of shown) if (wanted.length < SOME && !wanted.includes(row) && isUnread(row) && row.state !== "running") wanted.push(row);
  if (sorted) for (const row of shown) if (wanted.length < SOME && !wanted.includes(row) && row.state === "running") wanted.push(row);
  if (!wanted.length) return;
  isReading = true;
  let isMore = false;
  try {
    const runs = wanted.slice(0, SOME), curve = curveName();
    const data = await asked(`guild/scalars?runs=${runs.map((row) => encodeURIComponent(row.run)).join(",")}&curve=${encodeURIComponent(curve)}`);
    names = data.names;
    for (const row of runs) {
      const found = data.runs[row.run];
      if (found) scalars.set(row.run, { ...found, stamp: stamp(row), isPartial: data.partial.includes(row.run) });
    }
    isMore = sorted && shown.some((row) => row.state !== "running" && isUnread(row));
    choose();
  } catch (problem) {
    // The next poll reports it, at the top of the page.
  }
  isReading = false;
  if (isMore) setTimeout(readScalars, 50);
}

const shownScalars = () => names.filter((each, place) => isOn(`s:${each.name}`, place < USUAL_SCALARS));
const curveName = () => (shownScalars()[0] || names[0] || { name: "" }).name;

// Flags that differ between the shown runs of an operation, and those that are the same for all of them, by the rule of
// monitor/flag_columns.py. Flags that a single run has share a column

function flagColumns(chosen) {
  const operations = new Map(), all = new Map(); // the number of runs, and of runs with each value of each flag
  for (const row of chosen) {
    if (!row.flags) continue; // not read yet
    const name = row.operation || "";
    if (!operations.has(name)) operations.set(name, { count: 0, values: new Map() });
    const known = operations.get(name);
    known.count += 1;
    for (const [flag, value] of Object.entries(row.flags)) {
      for (const values of [known.values, all]) {
        if (!values.has(flag)) values.set(flag, new Map());
        values.get(flag).set(value, (values.get(flag).get(value) || 0) + 1);
      }
    }
  }
  const total = (counts) => [...counts.values()].reduce((sum, each) => sum + each, 0);
  const isWhole = (flag) => [...operations.values()].every(({ count, values }) => !values.has(flag) || total(values.get(flag)) === count);
  const everywhere = {};
  for (const [flag, counts] of all) if (counts.size === 1 && total(counts) > 1 && isWhole(flag)) everywhere[flag] = [...counts.keys()][0];
  const differing = new Map(), common = new Map(), runsWith = new Map(), having = new Map();
  for (const [name, { count, values }] of operations) {
    const same = {};
    for (const [flag, counts] of values) {
      if (flag in everywhere) continue;
      const [[value, times]] = counts;
      if (count > 1 && counts.size === 1 && times === count) { same[flag] = value; continue; }
      if (!differing.has(flag)) differing.set(flag, new Set());
      for (const each of counts.keys()) differing.get(flag).add(each);
      runsWith.set(flag, (runsWith.get(flag) || 0) + count);
      having.set(flag, (having.get(flag) || 0) + total(counts));
    }
    common.set(name, same);
  }
  const ordered = [...differing.keys()].sort((one, other) =>
    runsWith.get(other) - runsWith.get(one) || differing.get(one).size - differing.get(other).size || (one < other ? -1 : 1));
  const shared = ordered.filter((flag) => having.get(flag) > 1 || chosen.length === 1);
  const rare = shared.filter((flag) => having.get(flag) < chosen.length / 2);
  return { names: ordered, shared, rare, everywhere, common };
}

function commonText({ everywhere, common }) {
  const text = (flags) => Object.entries(flags).sort().map(([name, value]) => `${name}=${value}`).join(" ");
  const parts = [...common].filter(([, flags]) => Object.keys(flags).length).map(([name, flags]) => `${text(flags)} for all of ${name}`);
  return [...(Object.keys(everywhere).length ? [`${text(everywhere)} for all`] : []), ...parts].join("; ");
}

const isCommon = ({ everywhere, common }, row, flag) => flag in everywhere || flag in (common.get(row.operation || "") || {});

const ownFlags = (row) => flagsShown.names.filter((name) => row.flags && name in row.flags && !isCommon(flagsShown, row, name))
  .map((name) => `${name}=${row.flags[name]}`).join(" ");

// Columns. Those without content are left out; the user may show and hide each

const isOn = (id, usual) => (address.show.includes(id) ? true : address.hide.includes(id) ? false : usual);

const asNumber = (text) => (text !== undefined && text !== "" && Number.isFinite(Number(text)) ? Number(text) : text);

// All columns that could be shown, in order: id, title, text and value of a row, and how wide they are.
function allColumns(flags) {
  const has = (what) => shown.some((row) => what(row));
  const several = (what) => new Set(shown.map(what)).size > 1;
  const flag = (name) => ({
    id: `f:${name}`, title: name, isOn: flags.shared.indexOf(name) >= 0 && flags.shared.indexOf(name) < MOST_FLAGS, isFlag: true,
    text: (row) => (row.flags && row.flags[name]) || "", value: (row) => asNumber(row.flags && row.flags[name]),
  });
  const known = new Set(flags.names);
  for (const same of [flags.everywhere, ...flags.common.values()]) for (const name of Object.keys(same)) known.add(name);
  const others = flags.names.filter((name) => !flags.shared.slice(0, MOST_FLAGS).includes(name));
  const rest = (row) => others.filter((name) => row.flags && name in row.flags && !isOn(`f:${name}`, false)).map((name) => `${name}=${row.flags[name]}`).join(" ");
  return [
    { id: "state", title: "state", isOn: true, text: textOf, value: (row) => [...states.keys()].indexOf(stateOf(row)) },
    { id: "run", title: "run", isOn: true, text: (row) => row.run.slice(0, 8), value: (row) => row.run },
    { id: "operation", title: "operation", isOn: true, text: (row) => row.operation || "" },
    { id: "label", title: "label", isOn: has((row) => row.label), text: (row) => row.label || "", isStretched: true },
    ...[...known].map(flag), // those that differ come first
    { id: "flags", title: "more flags", isOn: others.length > 0, text: rest, isStretched: true },
    ...names.map(({ name, high }, place) => ({
      id: `s:${name}`, title: name, isOn: place < USUAL_SCALARS && has((row) => scalarOf(row, name) !== undefined), isNumber: true, high, isScalar: true,
      text: (row) => numberText(scalarOf(row, name)), value: (row) => scalarOf(row, name) ?? undefined,
    })),
    { id: "curve", title: `${curveName()} curve`, isOn: has((row) => scalars.has(row.run) && scalars.get(row.run).curve.length > 1), isCurve: true, width: 90, text: () => "" },
    { id: "tags", title: "tags", isOn: has((row) => row.tags), text: (row) => row.tags || "", isStretched: true },
    { id: "worker", title: "worker", isOn: several((row) => row.worker || "") && state && state.workers.length > 1, text: (row) => row.worker || "" },
    { id: "time", title: "time", isOn: true, isNumber: true, text: time, value: seconds },
    { id: "why", title: "why it waits", isOn: has(whyItWaits), text: whyItWaits, value: (row) => row.position || whyItWaits(row), isStretched: true },
    { id: "how", title: "how it ended", isOn: has((row) => row.how), text: (row) => (isOver(row) || row.state === "retrying" ? row.how : "") || "", isStretched: true },
  ];
}

function numberText(value) {
  if (value === undefined) return "";
  if (value === null) return "nan";
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-4 || size >= 1e6) ? value.toExponential(3) : String(+value.toPrecision(5));
}

let flagsShown = { names: [], shared: [], rare: [], everywhere: {}, common: new Map() }, everyColumn = [];
let widths = new Map(), widthsOf = "";

const ruler = document.createElement("canvas").getContext("2d");

function measure(column, sample) {
  if (column.width) return column.width;
  ruler.font = `600 14px ${getComputedStyle(document.body).fontFamily}`;
  const title = ruler.measureText(`${column.title} ▼`).width;
  ruler.font = `14px ${getComputedStyle(document.body).fontFamily}`;
  const dot = column.id === "state" ? 17 : 0;
  return Math.ceil(sample.reduce((most, row) => Math.max(most, ruler.measureText(column.text(row)).width + dot), title)) + 2;
}

// The least width of a column that stretches is that of a few words; before that, columns that say less are left out.
const leastWidth = (column, words = 100) => Math.min(column.isStretched ? words : WIDEST, Math.max(NARROWEST, widths.get(column.id)));
const READABLE = 200;

function showColumns() {
  everyColumn = allColumns(flagsShown);
  columns = everyColumn.filter((column) => isOn(column.id, column.isOn));
  const ids = columns.map((column) => column.id).join(" ");
  if (ids !== widthsOf) { widths = new Map(); widthsOf = ids; }
  const sample = shown.length > 200 ? [...shown.slice(0, 100), ...visible(), ...shown.slice(-50)] : shown;
  // Widths only grow, so that the table does not move while it is read.
  for (const column of columns) widths.set(column.id, Math.max(measure(column, sample), widths.get(column.id) || 0));
  const total = (words) => columns.reduce((sum, column) => sum + leastWidth(column, words) + GAP, 2 * GAP + 2); // with the padding and an empty column at the end
  for (const id of [...DROPPED, ...flagsShown.rare.map((name) => `f:${name}`).reverse(), "curve"]) {
    const words = id === "curve" ? undefined : READABLE;
    if (!address.show.includes(id) && total(words) > $("table").clientWidth) columns = columns.filter((column) => column.id !== id);
  }
  // What is left of the width goes to texts that are cut, in proportion to what they lack.
  const lacks = (column) => (column.isStretched ? Math.min(LONGEST, widths.get(column.id)) - leastWidth(column) : 0);
  const lacking = columns.reduce((sum, column) => sum + Math.max(0, lacks(column)), 0);
  const share = lacking ? Math.max(0, Math.min(1, ($("table").clientWidth - total()) / lacking)) : 0;
  const wide = (column) => `${Math.floor(leastWidth(column) + share * Math.max(0, lacks(column)))}px`;
  $("table").style.setProperty("--columns", `${columns.map(wide).join(" ")} 1fr`);
  $("table").style.setProperty("--least", `${total()}px`);
  showHead();
  showChoice();
}

// The head: a click sorts, the best values first; a second one reverses the order, a third one restores it

const sortedBy = () => ({ id: address.sort.replace(/^-/, ""), isReversed: address.sort.startsWith("-") });

function nextSort(column) {
  const { id, isReversed } = sortedBy();
  if (id !== column.id) return column.id;
  return isReversed ? "" : `-${column.id}`;
}

function sortBy(sort) {
  set("sort", sort);
  $("table").scrollTop = 0;
  choose();
  readScalars();
}

let headShown = "";

function showHead() {
  const key = columns.map((column) => `${column.id} ${column.title}`).join("|") + address.sort;
  if (key === headShown) return; // keeps the focus of the keyboard
  headShown = key;
  const { id, isReversed } = sortedBy();
  const made = columns.map((column) => {
    const cell = element("span", undefined, column.isNumber ? "number" : "");
    cell.setAttribute("role", "columnheader");
    if (column.isCurve) { cell.textContent = column.title; return cell; }
    const isUp = Boolean(column.high) === isReversed;
    const button = element("button", column.title + (column.id === id ? (isUp ? " ▲" : " ▼") : ""));
    button.title = column.isScalar ? `${column.title}: sort, best first (${column.high ? "highest" : "lowest"})` : `sort by ${column.title}`;
    button.dataset.column = column.id;
    if (column.id === id) cell.setAttribute("aria-sort", isUp ? "ascending" : "descending");
    cell.append(button);
    return cell;
  });
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.column : undefined;
  $("head").replaceChildren(...made);
  if (focused) for (const button of $("head").querySelectorAll("button")) if (button.dataset.column === focused) button.focus();
  const options = [["", "queue"], ...columns.filter((column) => !column.isCurve).flatMap((column) => [[column.id, column.title], [`-${column.id}`, `${column.title}, reversed`]])];
  $("sort").replaceChildren(...options.map(([value, text]) => { const made = element("option", text); made.value = value; return made; }));
  $("sort").value = address.sort;
}

let choiceShown = "";

function showChoice() {
  const key = everyColumn.map((column) => `${column.id} ${isOn(column.id, column.isOn)}`).join("|");
  if (key === choiceShown) return;
  choiceShown = key;
  const focused = document.activeElement && document.activeElement.name;
  const made = everyColumn.map((column) => {
    const label = element("label"), box = element("input");
    box.type = "checkbox";
    box.name = column.id;
    box.checked = isOn(column.id, column.isOn);
    const kind = column.isScalar ? " (scalar)" : column.isFlag ? " (flag)" : column.isCurve ? " (curve)" : "";
    label.append(box, ` ${column.title || "curve"}${kind}`);
    return label;
  });
  $("columns").querySelector("div").replaceChildren(...made);
  for (const box of $("columns").querySelectorAll("input")) if (box.name === focused) box.focus();
}

$("columns").addEventListener("change", (event) => {
  const { name, checked } = event.target;
  const without = (list) => list.filter((each) => each !== name);
  const column = everyColumn.find((each) => each.id === name);
  address.show = without(address.show);
  address.hide = without(address.hide);
  if (checked !== Boolean(column && column.isOn)) (checked ? address.show : address.hide).push(name);
  writeAddress();
  choose();
  readScalars();
});

// Filter and order

function showTabs() {
  const counts = new Map([["all", rows.size]]);
  for (const row of rows.values()) counts.set(stateOf(row), (counts.get(stateOf(row)) || 0) + 1);
  const there = ["all", ...states.keys()].filter((name) => counts.get(name) || name === "all" || name === address.tab);
  const focused = document.activeElement && document.activeElement.name;
  const made = there.map((name) => {
    const known = states.get(name), button = element("button", `${known ? known.text : name} ${counts.get(name) || 0}`, known ? "dot" : "");
    button.name = `tab-${name}`;
    if (known) { coloured(button, name); button.title = known.meaning; }
    button.setAttribute("aria-pressed", String(name === address.tab));
    button.addEventListener("click", () => { set("tab", name); $("table").scrollTop = 0; show(); });
    return button;
  });
  $("tabs").replaceChildren(...made);
  for (const button of made) if (button.name === focused) button.focus();
}

const RANK = { running: 0, waiting: 1, held: 2, retrying: 2 };

function queueOrder(one, other) {
  const rank = (RANK[one.state] ?? 3) - (RANK[other.state] ?? 3);
  if (rank) return rank;
  if (one.state === "waiting") return one.key - other.key || (one.run < other.run ? -1 : 1);
  if (one.state === "running") return one.since - other.since;
  return (other.at || 0) - (one.at || 0);
}

// Numbers before texts; runs without a value are the last in both directions.
function valueOrder(column, isReversed) {
  const sign = isReversed !== Boolean(column.high) ? -1 : 1;
  const isNone = (each) => each === undefined || each === "" || each === null;
  return (one, other) => {
    if (isNone(one.value) || isNone(other.value)) return isNone(one.value) - isNone(other.value);
    if (typeof one.value !== typeof other.value) return typeof one.value === "number" ? -1 : 1;
    return one.value === other.value ? 0 : sign * (one.value < other.value ? -1 : 1);
  };
}

function inOrder(chosen) {
  const { id, isReversed } = sortedBy();
  const column = id && everyColumn.find((each) => each.id === id);
  if (!column || column.isCurve) return chosen;
  const value = column.value || column.text;
  return chosen.map((row) => ({ row, value: value(row) })).sort(valueOrder(column, isReversed)).map((each) => each.row);
}

function choose() {
  const words = address.q.toLowerCase().split(/\s+/).filter(Boolean);
  const ordered = [...rows.values()].sort(queueOrder);
  let position = 0;
  for (const row of ordered) row.position = row.state === "waiting" && !isImpossible(row) ? (position += 1) : 0;
  shown = ordered.filter((row) => {
    if (address.tab !== "all" && stateOf(row) !== address.tab) return false;
    if (!words.length) return true;
    const text = `${row.run} ${row.operation || ""} ${row.label || ""} ${flagsOf(row)} ${row.tags || ""} ${row.worker || ""} ${textOf(row)}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  flagsShown = flagColumns(shown);
  showColumns();
  shown = inOrder(shown);
  $("common").textContent = commonText(flagsShown);
  $("space").style.height = `${shown.length * rowHeight()}px`;
  $("table").setAttribute("aria-rowcount", String(shown.length));
  showEmpty();
  drawRows();
}

function showEmpty() {
  const state = states.get(address.tab), kind = state ? `${state.text} run` : "run";
  $("empty").hidden = shown.length > 0;
  if (shown.length) return;
  const text = address.q ? `No ${kind} matches “${address.q}”.` : rows.size ? `No ${kind}.` : "No runs yet: this scheduler has neither started nor found any.";
  const isFiltered = Boolean(address.q) || address.tab !== "all";
  if ($("empty").dataset.text === `${text} ${isFiltered}`) return; // a button that is replaced loses clicks and the focus
  $("empty").dataset.text = `${text} ${isFiltered}`;
  const made = [document.createTextNode(`${text} `)];
  if (isFiltered) {
    const button = element("button", "show all runs");
    button.addEventListener("click", () => { $("search").value = ""; set("q", ""); set("tab", "all"); show(); });
    made.push(button);
  }
  $("empty").replaceChildren(...made);
}

// Drawing: on a narrow screen, a run takes two lines

const rowHeight = () => (isNarrow() ? 50 : 26); // as in guild.css

function inView() {
  const table = $("table"), height = rowHeight();
  return [Math.max(0, Math.floor(table.scrollTop / height) - 5), Math.ceil(table.clientHeight / height) + 10];
}

function visible() {
  const [first, count] = inView();
  return shown.slice(first, first + count);
}

const SVG = "http://www.w3.org/2000/svg";

function curve(row) {
  const cell = element("span"), known = scalars.get(row.run);
  const points = known ? known.curve.map((value, place) => [place, value]).filter(([, value]) => value !== null) : [];
  if (points.length < 2) return cell;
  const values = points.map(([, value]) => value), low = Math.min(...values), high = Math.max(...values);
  const drawing = document.createElementNS(SVG, "svg"), line = document.createElementNS(SVG, "polyline");
  drawing.setAttribute("viewBox", "0 0 100 20");
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("class", "curve");
  drawing.setAttribute("role", "img");
  const last = known.curve.length - 1;
  line.setAttribute("points", points.map(([place, value]) => `${(100 * place) / last},${high > low ? 18.5 - (17 * (value - low)) / (high - low) : 10}`).join(" "));
  drawing.append(line);
  cell.append(coloured(drawing, stateOf(row)));
  cell.title = `${known.curve_of}: ${numberText(values[0])} to ${numberText(values[values.length - 1])}, lowest ${numberText(low)}, highest ${numberText(high)}`;
  drawing.setAttribute("aria-label", cell.title);
  return cell;
}

function cellOf(column, row) {
  if (column.isCurve) return curve(row);
  const text = column.text(row), cell = element("span", text, column.isNumber ? "number" : "");
  if (column.id === "state") { cell.className = "state"; coloured(cell, stateOf(row)); }
  cell.title = text;
  return cell;
}

function narrowCells(row) {
  const by = (id) => columns.find((column) => column.id === id);
  const first = columns.find((column) => column.isScalar);
  const result = first && first.text(row) ? `${first.title} ${first.text(row)}` : row.operation || "";
  const parts = [row.label, ownFlags(row), whyItWaits(row), isOver(row) ? row.how : ""];
  const second = element("span", parts.filter(Boolean).join(" · ") || row.operation || "", "second");
  const cells = [by("state"), by("run")].filter(Boolean).map((column) => cellOf(column, row));
  return [...cells, element("span", result), element("span", time(row), "number"), second];
}

const lines = new Map(); // the elements of visible rows, by run id: they are kept, so that no click is lost

function lineFor(row) {
  const line = element("div");
  line.setAttribute("role", "row");
  line.dataset.run = row.run;
  line.addEventListener("click", () => { current = row.run; open(row.run); });
  return line;
}

function fill(line, row, narrow) {
  const cells = narrow ? narrowCells(row) : columns.map((column) => cellOf(column, row));
  line.className = `row${row.run === chosen ? " chosen" : ""}${row.run === current ? " current" : ""}`;
  cells.forEach((cell, place) => {
    const before = line.children[place];
    cell.setAttribute("role", "cell");
    if (!before) line.append(cell);
    else if (before.outerHTML !== cell.outerHTML) before.replaceWith(cell);
  });
  while (line.children.length > cells.length) line.lastChild.remove();
}

function drawRows() {
  const narrow = isNarrow(), [first] = inView(), found = visible();
  const made = found.map((row) => {
    const line = lines.get(row.run) || lineFor(row);
    fill(line, row, narrow);
    return line;
  });
  lines.clear();
  found.forEach((row, place) => lines.set(row.run, made[place]));
  $("rows").style.top = `${first * rowHeight()}px`;
  const before = $("rows").children;
  if (made.length !== before.length || made.some((line, place) => line !== before[place])) $("rows").replaceChildren(...made);
}

function move(by) {
  if (!shown.length) return;
  const at = shown.findIndex((row) => row.run === current);
  const to = Math.max(0, Math.min(shown.length - 1, at < 0 ? 0 : at + by));
  current = shown[to].run;
  const table = $("table"), height = rowHeight(), head = isNarrow() ? 0 : height;
  const top = to * height;
  if (top < table.scrollTop) table.scrollTop = top;
  else if (top + height + head > table.scrollTop + table.clientHeight) table.scrollTop = top + height + head - table.clientHeight;
  drawRows();
}

$("table").addEventListener("keydown", (event) => {
  if (event.target !== $("table")) return;
  const page = Math.max(1, Math.floor($("table").clientHeight / rowHeight()) - 2);
  const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -shown.length, End: shown.length };
  if (event.key in moves) move(moves[event.key]);
  else if ((event.key === "Enter" || event.key === " ") && current) open(current);
  else return;
  event.preventDefault();
});
$("head").addEventListener("click", (event) => {
  const column = columns.find((each) => each.id === event.target.dataset.column);
  if (column) sortBy(nextSort(column));
});
$("sort").addEventListener("change", () => sortBy($("sort").value));
$("search").addEventListener("input", () => { set("q", $("search").value.trim()); $("table").scrollTop = 0; choose(); });
let lastScroll = 0;
$("table").addEventListener("scroll", () => {
  drawRows();
  clearTimeout(lastScroll);
  lastScroll = setTimeout(readScalars, 150);
});
