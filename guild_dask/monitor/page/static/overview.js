// The workers, what ends next, and the use of slots over the last hour.
"use strict";

const HOUR = 3600;

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

function showOverview() {
  showWorkers();
  showNext();
  showUse();
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
  $("workers").replaceChildren(...(made.length ? made : [element("small", "There is no worker yet.")]));
}

function nextLine(run, text) {
  const row = rows.get(run) || { run }, line = element("li");
  const button = element("button", [run.slice(0, 8), row.operation, row.label, ownFlags(row)].filter(Boolean).join(" "));
  button.title = button.textContent;
  button.addEventListener("click", () => open(run));
  line.append(button, element("span", text));
  return line;
}

function showNext() {
  const running = [...rows.values()].filter((row) => row.state === "running");
  const known = (state ? state.next : []).filter((each) => (rows.get(each.run) || {}).state === "running");
  let made = known.map((each) => nextLine(each.run, each.seconds === null ? "longer than expected" : `in ~${duration(each.seconds)}`));
  if (!known.length) {
    // Nothing has completed yet, so there is no estimate: those that have run longest.
    made = running.sort((one, other) => one.since - other.since).slice(0, 5).map((row) => nextLine(row.run, `for ${time(row)}`));
  }
  const title = known.length || !running.length ? "Ends next" : "Running longest";
  $("next").querySelector("h2").textContent = title;
  const more = running.length - made.length;
  if (more > 0) made.push(element("li", `and ${more} more`));
  $("next").querySelector("ol").replaceChildren(...(made.length ? made : [element("li", "No run is running.")]));
}

// The attempts of all runs that have started: when, where, and in which state they ended.
function attempts(end) {
  const found = [];
  for (const row of rows.values()) {
    for (const one of row.past || []) {
      const hint = `attempt ${one.attempt}: ${duration(one.ran)}${one.how ? ` (${one.how})` : ""}`;
      found.push({ row, worker: one.worker, start: one.at - one.ran, stop: one.at, kind: "retried", hint });
    }
    const hint = `${textOf(row)} ${time(row)}`, kind = stateOf(row);
    if (row.state === "running") found.push({ row, worker: row.worker, start: row.since, stop: end, kind, hint });
    else if (isOver(row)) found.push({ row, worker: row.worker, start: row.at - row.ran, stop: row.at, kind, hint });
  }
  return found;
}

// The mean number of attempts in each of so many equal parts of a time.
function busy(found, from, to, count) {
  const part = (to - from) / count, sums = new Array(count).fill(0);
  for (const { start, stop } of found) {
    const first = Math.max(0, Math.floor((start - from) / part)), last = Math.min(count - 1, Math.floor((stop - from) / part));
    for (let place = first; place <= last; place += 1) {
      sums[place] += Math.max(0, Math.min(stop, from + (place + 1) * part) - Math.max(start, from + place * part));
    }
  }
  return sums.map((sum) => sum / part);
}

// Makes a canvas as large as it is shown, and returns what draws on it.
function pen(canvas, height) {
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.height = `${height}px`;
  const made = canvas.getContext("2d");
  made.scale(scale, scale);
  made.font = "11px system-ui, sans-serif";
  return { draw: made, width, height };
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function showUse() {
  const canvas = $("use").querySelector("canvas"), end = now(), parts = 60;
  const slots = (state ? state.workers : []).reduce((sum, worker) => sum + worker.slots, 0);
  // A scheduler that has just started has no hour behind it.
  const from = Math.max(end - HOUR, Math.min(state ? state.started : end, end - 120));
  const found = busy(attempts(end), from, end, parts);
  const worked = Math.max(1, end - Math.max(from, state ? state.started : end));
  const mean = (found.reduce((sum, each) => sum + each, 0) * (end - from)) / parts / worked;
  $("use").querySelector("h2").firstChild.data = from > end - HOUR ? "Slots in use since the start " : "Slots in use, last hour ";
  $("use").querySelector("small").textContent = slots ? `${Math.min(100, Math.round((100 * mean) / slots))} % on average` : "";
  const { draw, width, height } = pen(canvas, 92), floor = height - 18, left = 26;
  const most = Math.max(slots, 1, ...found), y = (value) => floor - (value / most) * (floor - 8);
  const x = (at) => left + ((at - from) / (end - from)) * (width - left);
  ticks(draw, from, end, x, floor, width);
  draw.fillStyle = colourOf("running");
  const part = (end - from) / parts;
  found.forEach((value, place) => {
    const at = x(from + place * part);
    if (value) draw.fillRect(at, y(value), Math.max(1, x(from + (place + 1) * part) - at - 0.5), floor - y(value));
  });
  draw.strokeStyle = draw.fillStyle = colour("--soft");
  draw.setLineDash([4, 3]);
  draw.beginPath();
  draw.moveTo(left, y(slots) + 0.5);
  draw.lineTo(width, y(slots) + 0.5);
  draw.stroke();
  draw.textAlign = "right";
  draw.fillText(String(slots), left - 6, y(slots) + 4);
  draw.fillText("0", left - 6, floor);
}
