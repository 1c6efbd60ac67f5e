// The output of one run, of its last attempt or of an earlier one.
"use strict";

const KEPT = 2000000; // the most characters of output that are kept
let rest = ""; // the last, incomplete line of the followed output
let chosen = null, attempt = "", next = -1, isAsking = false, attemptsKnown = "";

function open(id, ofAttempt = "") {
  if (id !== chosen) attemptsKnown = "";
  chosen = id;
  attempt = ofAttempt;
  next = -1;
  empty();
  $("output").hidden = false;
  set("run", id);
  drawRows();
  follow();
}

function closeOutput() {
  if (chosen === null) return;
  chosen = null;
  $("output").hidden = true;
  set("run", "");
  drawRows();
  $("table").focus({ preventScroll: true });
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
  if (chosen === null || isAsking) return;
  isAsking = true;
  const id = chosen, one = attempt;
  const row = rows.get(id);
  try {
    const piece = await asked(`guild/output?run=${encodeURIComponent(id)}&attempt=${one || 0}&from=${next}`)
      .catch(() => ({ text: "", next: -1, size: 0, from: 0, attempts: [] }));
    if (id === chosen && one === attempt) {
      const box = $("text");
      if (next >= 0 && piece.from !== next) empty(); // the run was started again
      if (piece.text) add(piece.text);
      if ($("follow").checked && piece.text) box.scrollTop = box.scrollHeight;
      next = piece.next;
      if (piece.attempts) showAttempts(piece.attempts, row);
      if (row && attemptsKnown && attemptsKnown !== attemptsOf(row)) { attemptsKnown = ""; next = -1; empty(); }
      showFacts(piece);
    }
  } finally {
    isAsking = false;
  }
  if (id !== chosen || one !== attempt) follow();
}

// Changes when a further attempt has begun or ended.
const attemptsOf = (row) => `${row.attempt || ""} ${(row.past || []).length}`;

function showAttempts(past, row) {
  if (row) attemptsKnown = attemptsOf(row);
  $("attempt").hidden = !past.length;
  const option = (value, text) => { const made = element("option", text); made.value = value; return made; };
  const made = past.map((each) => option(String(each.number), `attempt ${each.number}: ${each.how || "ended"}`));
  $("attempt").replaceChildren(option("", "last attempt"), ...made.reverse());
  $("attempt").value = attempt;
}

function showFacts(piece) {
  const row = rows.get(chosen);
  $("title").textContent = row ? [row.operation, row.label, chosen.slice(0, 8)].filter(Boolean).join(" ") : chosen;
  const parts = row ? [textOf(row), row.how, flagsOf(row), row.tags, row.worker ? `on ${row.worker}` : "", time(row), row.requests ? `requests ${row.requests}` : "", whyItWaits(row)] : [];
  if (!piece.size) parts.push("no output yet");
  $("facts").textContent = parts.filter(Boolean).join(" · ");
}

$("attempt").addEventListener("change", () => open(chosen, $("attempt").value));
$("close").addEventListener("click", closeOutput);
