// The timeline: a bar for each attempt, in lanes without overlaps, and a clock below it.
"use strict";

const LANES = 140; // pixels of all lanes, unless they are many
let drawn = [];

// Seconds between two ticks: the least of these that leaves room for the labels.
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

// The ticks of a time range, at full units of the local clock, each with its label: the date where a day begins.
function ticksFor(from, to, most) {
  const step = STEPS.find((each) => (to - from) / each <= most) || STEPS[STEPS.length - 1];
  const offset = new Date(from * 1000).getTimezoneOffset() * 60, found = [];
  let day = null;
  for (let at = Math.ceil((from - offset) / step) * step + offset; at <= to; at += step) {
    const date = new Date(at * 1000), today = date.toDateString();
    const clock = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: step < 60 ? "2-digit" : undefined, hour12: false });
    const isNew = today !== day && (day !== null || today !== new Date(to * 1000).toDateString());
    const name = date.toLocaleDateString([], { month: "short", day: "numeric" });
    found.push({ at, text: step >= 86400 ? name : isNew ? `${name} ${clock}` : clock });
    day = today;
  }
  return found;
}

function ticks(draw, from, to, x, floor, width) {
  draw.setLineDash([]);
  draw.textAlign = "center";
  draw.strokeStyle = colour("--line");
  draw.fillStyle = colour("--soft");
  for (const { at, text } of ticksFor(from, to, Math.max(2, width / 95))) {
    draw.beginPath();
    draw.moveTo(Math.round(x(at)) + 0.5, 0);
    draw.lineTo(Math.round(x(at)) + 0.5, floor + 4);
    draw.stroke();
    const half = draw.measureText(text).width / 2;
    if (x(at) - half >= 0 && x(at) + half <= width) draw.fillText(text, x(at), floor + 15);
  }
}

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

function showTimeline() {
  const end = now(), span = Number($("span").value);
  const bars = attempts(end).filter((bar) => !span || bar.stop > end - span);
  const count = lanes(bars);
  const first = bars.reduce((least, bar) => Math.min(least, bar.start), end - 60);
  const from = Math.max(span ? end - span : -Infinity, first);
  const height = Math.max(3, Math.min(14, Math.floor(LANES / Math.max(1, count))));
  const floor = Math.max(count, 1) * height;
  const { draw, width } = pen($("timeline"), floor + 20);
  const x = (at) => ((at - from) / Math.max(1, end - from)) * width;
  ticks(draw, from, end, x, floor, width);
  drawn = bars.map((bar) => ({ ...bar, x: x(bar.start), w: Math.max(1.5, x(bar.stop) - x(bar.start)), y: bar.lane * height, h: height }));
  for (const bar of drawn) {
    draw.fillStyle = colourOf(bar.kind);
    draw.fillRect(bar.x, bar.y + 1, Math.max(1, bar.w - 0.5), bar.h - 1);
  }
}

function barAt(event) {
  const box = $("timeline").getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  return drawn.find((bar) => x >= bar.x - 1 && x <= bar.x + bar.w + 1 && y >= bar.y && y <= bar.y + bar.h);
}

function showLegend() {
  const list = $("legend").querySelector("dl");
  if (list.childElementCount) return;
  for (const each of states.values()) {
    list.append(coloured(element("dt", each.text, "dot"), each.name), element("dd", each.meaning));
  }
}

$("span").addEventListener("change", () => { set("span", $("span").value); showTimeline(); });
$("timeline").addEventListener("mousemove", (event) => {
  const bar = barAt(event);
  $("hint").textContent = bar ? `${bar.row.run.slice(0, 8)} ${bar.row.operation || ""} ${bar.hint}` : "";
});
$("timeline").addEventListener("click", (event) => { const bar = barAt(event); if (bar) open(bar.row.run); });
window.addEventListener("resize", () => { if (state) show(); });
