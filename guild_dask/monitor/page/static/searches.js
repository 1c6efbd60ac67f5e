// The searches: what one has found so far, and charts of its trials. All text is drawn or inserted as text.
"use strict";

const SEARCH_PERIOD = 4000; // milliseconds between two polls
const NEAR = 8; // pixels from a line at which the pointer means it
const CHART = 170; // pixels of a chart's height

let search = null; // the shown one, with its charts
let searchList = [];
const drawnTrials = new Map(); // what each chart has drawn: points by trial, for the pointer

const PALE = new Set(["pruned", "failed", "stopped", "cut short"]);
const isPale = (trial) => PALE.has(trial.state);
const number = (value) => (value === null || value === undefined ? "-" : String(+value.toPrecision(5)));

async function pollSearches() {
  if (!document.hidden) {
    try {
      const known = search ? search.stamp : "";
      showSearches(await asked(`guild/search?batch=${encodeURIComponent(address.search)}&known=${known}`));
    } catch (problem) {
      // The poll of the runs reports it, at the top of the page.
    }
  }
  setTimeout(pollSearches, search && search.partial ? 200 : SEARCH_PERIOD);
}

function showSearches(data) {
  searchList = data.searches;
  if (data.search && !data.search.same) search = data.search;
  if (!data.search) search = null;
  $("searches").hidden = !searchList.length;
  document.body.classList.toggle("searching", Boolean(searchList.length) && $("searches").open);
  if (!searchList.length) return;
  const shown = search ? search.batch : "";
  const options = searchList.map((each) => {
    const made = element("option", `${each.batch.slice(0, 8)} ${each.operation}`);
    made.value = each.batch;
    return made;
  });
  if (document.activeElement !== $("batch")) $("batch").replaceChildren(...options);
  $("batch").hidden = searchList.length < 2;
  $("batch").value = shown;
  const words = searchList.find((each) => each.batch === shown) || searchList[0];
  $("found").textContent = searchText(words);
  $("best").textContent = bestText(words);
  drawSearch();
}

function searchText(each) {
  const counts = Object.entries(each.counts).filter(([name, count]) => count || name === "completed");
  const done = counts.map(([name, count]) => `${count} ${name}`).join(", ");
  let end = each.ended ? `; over: ${each.ended}` : each.is_cut_short ? "; it was cut short" : "";
  if (each.is_at_work && each.seconds_left !== null) end = `; done in ~${duration(each.seconds_left)}`;
  return `${each.optimizer}, ${each.objectives}: ${done} of ${each.max_trials} trials${end}`;
}

function bestText(each) {
  if (!each.best.length) return "";
  const [first] = each.best;
  const values = each.names.map((name, place) => `${name} ${number(first.values[place])}`).join(", ");
  const more = each.best_count > 1 ? ` and ${each.best_count - 1} more in the Pareto set` : "";
  return `Best: ${first.run.slice(0, 8)}, ${values} (${first.flags})${more}`;
}

function drawSearch() {
  if (!search || !$("searches").open) return;
  const { drawing } = search;
  if (drawing.objectives.length > 1) drawPareto(drawing);
  else drawBest(drawing);
  drawParallel(drawing);
  drawCurves(drawing);
  drawImportances(search.importances);
}

function chart(id, title, note) {
  const card = $(id), canvas = card.querySelector("canvas");
  card.querySelector("h2").firstChild.data = `${title} `;
  card.querySelector("small").textContent = note || "";
  drawnTrials.set(id, []);
  return pen(canvas, CHART);
}

// Round numbers between two values, for the marks of an axis.
function marksFor(low, high, most) {
  const span = high - low || Math.abs(high) || 1, rough = span / most, power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(+at.toPrecision(10));
  return found;
}

function frame(draw, width, height, low, high) {
  const left = 46, floor = height - 18, top = 8;
  const y = (value) => floor - ((value - low) / (high - low || 1)) * (floor - top);
  draw.textAlign = "right";
  draw.strokeStyle = colour("--line");
  draw.fillStyle = colour("--soft");
  for (const mark of marksFor(low, high, 4)) {
    draw.beginPath();
    draw.moveTo(left, Math.round(y(mark)) + 0.5);
    draw.lineTo(width, Math.round(y(mark)) + 0.5);
    draw.stroke();
    draw.fillText(number(mark), left - 5, y(mark) + 4);
  }
  return { left, floor, y };
}

function nothing(draw, text) {
  draw.textAlign = "left";
  draw.fillStyle = colour("--soft");
  draw.fillText(text, 8, 24);
}

function line(draw, points, style, width, alpha) {
  draw.globalAlpha = alpha;
  draw.strokeStyle = style;
  draw.lineWidth = width;
  draw.beginPath();
  let isOpen = false; // a gap is where a trial has no value
  for (const point of points) {
    if (!point) { isOpen = false; continue; }
    if (isOpen) draw.lineTo(point[0], point[1]);
    else draw.moveTo(point[0], point[1]);
    isOpen = true;
  }
  draw.stroke();
  draw.globalAlpha = 1;
  draw.lineWidth = 1;
}

function dot(draw, x, y, style, radius, alpha) {
  draw.globalAlpha = alpha;
  draw.fillStyle = style;
  draw.beginPath();
  draw.arc(x, y, radius, 0, 7);
  draw.fill();
  draw.globalAlpha = 1;
}

// The range of values; far outliers among bad ones would flatten the rest, so the worst tenth is cut if it is far away.
function spanOf(values, isHigh) {
  const sorted = [...values].sort((one, other) => one - other);
  let low = sorted[0], high = sorted[sorted.length - 1];
  const most = sorted[Math.floor(sorted.length * 0.9)], least = sorted[Math.floor(sorted.length * 0.1)];
  if (!isHigh && high - low > 5 * (most - low) && most > low) high = most;
  if (isHigh && high - low > 5 * (high - least) && least < high) low = least;
  const space = (high - low || Math.abs(high) || 1) * 0.05;
  return [low - space, high + space];
}

function drawBest(drawing) {
  const { draw, width, height } = chart("bestchart", `Best ${drawing.objectives[0]} over time`);
  const done = drawing.trials.filter((trial) => trial.values[0] !== null && trial.ended && trial.state === "completed");
  if (!done.length) return nothing(draw, "No trial has completed yet.");
  const from = Math.min(search.started, ...done.map((trial) => trial.ended)), to = Math.max(from + 1, ...done.map((trial) => trial.ended));
  const [low, high] = spanOf(done.map((trial) => trial.values[0]), drawing.maximized[0]);
  const { left, floor, y } = frame(draw, width, height, low, high);
  const x = (at) => left + ((at - from) / (to - from)) * (width - left - 6);
  ticks(draw, from, to, x, floor, width);
  const inside = (value) => Math.max(8, Math.min(floor, y(value)));
  for (const trial of done) {
    const at = [x(trial.ended), inside(trial.values[0])];
    dot(draw, at[0], at[1], colourOf("completed"), 3, 0.5);
    drawnTrials.get("bestchart").push({ trial, points: [at] });
  }
  const steps = [];
  drawing.best_so_far.forEach(([at, value], place) => {
    const next = drawing.best_so_far[place + 1];
    steps.push([x(at), inside(value)], [x(next ? next[0] : to), inside(value)]);
  });
  line(draw, steps, colour("--bar"), 2, 1);
}

function drawPareto(drawing) {
  const [one, other] = drawing.objectives;
  const { draw, width, height } = chart("bestchart", "Pareto set", `${other} against ${one}`);
  const done = drawing.trials.filter((trial) => trial.values[0] !== null && trial.values[1] !== null && trial.state === "completed");
  if (!done.length) return nothing(draw, "No trial has completed yet.");
  const [low, high] = spanOf(done.map((trial) => trial.values[1]), drawing.maximized[1]);
  const [least, most] = spanOf(done.map((trial) => trial.values[0]), drawing.maximized[0]);
  const { left, floor, y } = frame(draw, width, height, low, high);
  const x = (value) => left + ((value - least) / (most - least)) * (width - left - 6);
  draw.textAlign = "center";
  for (const mark of marksFor(least, most, 5)) draw.fillText(number(mark), x(mark), floor + 15);
  for (const trial of done) {
    const at = [Math.min(width, Math.max(left, x(trial.values[0]))), Math.max(8, Math.min(floor, y(trial.values[1])))];
    dot(draw, at[0], at[1], trial.is_best ? colour("--bar") : colourOf("completed"), trial.is_best ? 4.5 : 3, trial.is_best ? 1 : 0.4);
    drawnTrials.get("bestchart").push({ trial, points: [at] });
  }
}

function drawParallel(drawing) {
  const note = drawing.left_out ? `${drawing.left_out} trials are not drawn` : "";
  const { draw, width, height } = chart("parallel", "Flags and results", note);
  if (!drawing.trials.length) return nothing(draw, "There is no trial yet.");
  const count = drawing.axes.length, top = 22, floor = height - 8;
  const x = (place) => 14 + (place / Math.max(1, count - 1)) * (width - 70);
  const y = (share) => floor - 6 - share * (floor - top - 12);
  const pathOf = (trial) => trial.places.map((share, place) => (share === null ? null : [x(place), y(share)]));
  const ordered = [...drawing.trials].sort((one, other) => Number(isPale(other)) - Number(isPale(one)) || one.goodness - other.goodness);
  for (const trial of ordered) {
    const points = pathOf(trial);
    if (isPale(trial)) line(draw, points, colour("--soft"), 1, 0.22);
    else if (trial.is_best) line(draw, points, colour("--bar"), 2.5, 1);
    else if (trial.state === "completed") line(draw, points, colourOf("completed"), 1, 0.15 + 0.6 * trial.goodness * trial.goodness);
    else line(draw, points, colourOf("running"), 1, 0.5);
    drawnTrials.get("parallel").push({ trial, points });
  }
  drawing.axes.forEach((axis, place) => drawAxis(draw, axis, x(place), y, (width - 70) / Math.max(1, count - 1) - 6));
}

function drawAxis(draw, axis, at, y, room) {
  draw.strokeStyle = colour("--soft");
  draw.beginPath();
  draw.moveTo(Math.round(at) + 0.5, y(0));
  draw.lineTo(Math.round(at) + 0.5, y(1));
  draw.stroke();
  draw.textAlign = "left";
  draw.fillStyle = colour("--text");
  draw.fillText(cutText(draw, axis.name, Math.max(room, 50)), at - 6, 12);
  let last = Infinity;
  for (const [share, text] of axis.marks) {
    if (last - y(share) < 11) continue; // marks of many choices would overlap
    last = y(share);
    const shown = cutText(draw, text, Math.max(room, 44)), space = draw.measureText(shown).width;
    draw.globalAlpha = 0.75; // lines go below the marks
    draw.fillStyle = colour("--back");
    draw.fillRect(at + 3, y(share) - 6, space + 4, 12);
    draw.globalAlpha = 1;
    draw.fillStyle = colour("--text");
    draw.fillText(shown, at + 5, y(share) + 4);
  }
}

function cutText(draw, text, most) {
  if (draw.measureText(text).width <= most) return text;
  let kept = text;
  while (kept.length > 1 && draw.measureText(`${kept}…`).width > most) kept = kept.slice(0, -1);
  return `${kept}…`;
}

function drawCurves(drawing) {
  const shown = drawing.trials.filter((trial) => trial.curve.length > 1);
  const { draw, width, height } = chart("curves", `${drawing.objectives[0]} by step`, shown.some(isPale) ? "pruned trials are pale" : "");
  if (!shown.length) return nothing(draw, "Trials print no step, or only one value.");
  const steps = shown.flatMap((trial) => [trial.curve[0][0], trial.curve[trial.curve.length - 1][0]]);
  const from = Math.min(...steps), to = Math.max(...steps);
  const [low, high] = spanOf(shown.flatMap((trial) => trial.curve.map((point) => point[1])), drawing.maximized[0]);
  const { left, floor, y } = frame(draw, width, height, low, high);
  const x = (step) => left + ((step - from) / Math.max(1, to - from)) * (width - left - 6);
  draw.textAlign = "center";
  for (const mark of marksFor(from, to, 6).filter(Number.isInteger)) draw.fillText(String(mark), Math.min(x(mark), width - 10), floor + 15);
  const ordered = [...shown].sort((one, other) => Number(isPale(other)) - Number(isPale(one)) || one.goodness - other.goodness);
  for (const trial of ordered) {
    const points = trial.curve.map(([step, value]) => [x(step), Math.max(2, Math.min(floor, y(value)))]);
    if (isPale(trial)) {
      line(draw, points, colour("--soft"), 1, 0.35);
      dot(draw, ...points[points.length - 1], colour("--soft"), 2, 0.5);
    } else if (trial.is_best) line(draw, points, colour("--bar"), 2.5, 1);
    else line(draw, points, colourOf(trial.state === "running" ? "running" : "completed"), 1, trial.state === "running" ? 0.9 : 0.5);
    drawnTrials.get("curves").push({ trial, points });
  }
}

function drawImportances(found) {
  const { draw, width, height } = chart("importances", "Importances", "");
  const shares = Object.entries(found.shares).sort((one, other) => other[1] - one[1]);
  if (!shares.length) {
    const words = `No importances: ${found.why}`.split(" ");
    let text = "", at = 24;
    draw.fillStyle = colour("--soft");
    for (const word of words) {
      if (text && draw.measureText(`${text} ${word}`).width > width - 12) { draw.fillText(text, 8, at); at += 15; text = word; }
      else text = text ? `${text} ${word}` : word;
    }
    return draw.fillText(text, 8, at);
  }
  const room = Math.min(22, (height - 8) / shares.length), name = Math.min(110, width / 3);
  shares.slice(0, Math.floor((height - 8) / 12)).forEach(([flag, share], place) => {
    const at = 6 + place * room, size = Math.max(1, share * (width - name - 50));
    draw.fillStyle = colour("--bar");
    draw.fillRect(name, at, size, Math.max(6, room - 6));
    draw.fillStyle = colour("--text");
    draw.textAlign = "right";
    draw.fillText(cutText(draw, flag, name - 8), name - 6, at + room / 2 + 1);
    draw.textAlign = "left";
    draw.fillText(`${Math.round(100 * share)} %`, name + size + 5, at + room / 2 + 1);
  });
}

// The trial whose line or dot is nearest to the pointer

function distance(point, from, to) {
  const dx = to[0] - from[0], dy = to[1] - from[1];
  const share = dx || dy ? Math.max(0, Math.min(1, ((point[0] - from[0]) * dx + (point[1] - from[1]) * dy) / (dx * dx + dy * dy))) : 0;
  return Math.hypot(point[0] - from[0] - share * dx, point[1] - from[1] - share * dy);
}

function trialAt(id, event) {
  const box = event.target.getBoundingClientRect(), at = [event.clientX - box.left, event.clientY - box.top];
  let found = null, least = NEAR;
  for (const { trial, points } of drawnTrials.get(id) || []) {
    for (let place = 0; place < points.length; place += 1) {
      const from = points[place], to = points[place + 1] || from;
      if (!from || (points.length > 1 && !points[place + 1])) continue;
      const far = distance(at, from, to);
      if (far < least) { least = far; found = trial; }
    }
  }
  return found;
}

for (const id of ["bestchart", "parallel", "curves"]) {
  const canvas = $(id).querySelector("canvas");
  canvas.addEventListener("mousemove", (event) => {
    const trial = trialAt(id, event);
    $("trial").textContent = trial ? `trial ${trial.number} ${trial.run.slice(0, 8)} ${trial.state}: ${trial.text}` : "";
  });
  canvas.addEventListener("click", (event) => {
    const trial = trialAt(id, event);
    if (trial && rows.has(trial.run)) open(trial.run);
  });
}

$("batch").addEventListener("change", () => { set("search", $("batch").value); search = null; });
$("searches").addEventListener("toggle", () => {
  document.body.classList.toggle("searching", $("searches").open);
  drawSearch();
});
window.addEventListener("resize", drawSearch);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawSearch);
pollSearches();
