// The planner: sliders and boxes, the answer, the map, and other samplings.
const known = JSON.parse(document.getElementById("planner").textContent);
const source = known.grid ? new Gridded(known.grid) : new Served();
const at = (id) => document.getElementById(id);
const THREE = ["epsilon", "noise_multiplier", "rounds"];
const QUIET = 250, PATIENCE = 600, AGAIN = 3000;
let version = 0, showing = 0, found = null, busy = false, asked = false, timer = 0;

function solved() {
  const wanted = document.querySelector('input[name="solved"]:checked').value;
  return wanted === "noise_multiplier" && !shownHere(boxOf("noise_multiplier")) ? "epsilon" : wanted;
}
function boxOf(name) { return known.boxes.find((box) => box.name === name); }
function shownHere(box) {
  return Object.entries(box.when).every(([name, values]) => !at(name) || values.includes(at(name).value));
}
// Removes commas between thousands; a text with any other comma is no number.
function typed(box) {
  const text = at(box.name).value.trim();
  return box.whole && /^\d{1,3}(,\d{3})+$/.test(text) ? text.replaceAll(",", "") : text;
}
// Options of the question: those that are shown and given.
function options() {
  const given = {};
  for (const box of known.boxes) {
    const value = typed(box);
    if (value && box.name !== solved() && shownHere(box)) given[box.name] = value;
  }
  return given;
}
function arrange() {
  for (const box of known.boxes) {
    const entry = document.querySelector(`[data-entry="${box.name}"]`), slider = at(`${box.name}-slider`);
    entry.hidden = !shownHere(box);
    const answer = box.name === solved();
    at(box.name).disabled = answer;
    if (slider) slider.disabled = answer;
  }
  for (const hint of document.querySelectorAll("[data-unit]")) hint.hidden = hint.dataset.unit !== unit();
  document.querySelector('input[value="noise_multiplier"][name="solved"]').disabled = !shownHere(boxOf("noise_multiplier"));
}
function ends(box) {
  const clients = Number(at("clients")?.value);
  return box.name === "cohort" && clients > 1 ? [1, clients] : box.slider;
}
function slide(box) {
  const slider = at(`${box.name}-slider`), value = Number(typed(box));
  if (!slider || !(value > 0)) return;
  const [low, high] = ends(box);
  slider.value = 1000 * Math.log(value / low) / Math.log(high / low);
  slider.setAttribute("aria-valuetext", at(box.name).value);
}
function fromSlider(box) {
  const [low, high] = ends(box), value = low * (high / low) ** (at(`${box.name}-slider`).value / 1000);
  return box.whole ? String(value < 100 ? Math.round(value) : Number(value.toPrecision(2))) : String(Number(value.toPrecision(3)));
}

// On a change requests a quick answer at once, and the full answer after a moment without changes.
function changed() {
  version += 1;
  arrange();
  known.boxes.forEach(slide);
  soon();
  clearTimeout(timer);
  timer = setTimeout(() => {
    history.replaceState(null, "", fragment());
    later();
  }, QUIET);
}
async function soon() {
  asked = true;
  if (busy) return;
  busy = true;
  while (asked) {
    asked = false;
    const mine = version, answer = await source.answer(options());
    if (mine < showing || (mine === showing && found && !found.quick)) continue;
    if (answer.error) refused(answer, mine);
    else if (answer.unknown) wait();
    else show(answer, mine);
  }
  busy = false;
}
async function later() {
  const mine = version, turn = Date.now(), fresh = () => mine === version, given = options();
  const hurry = setTimeout(() => { if (fresh() && found) figures(undefined, fresh, given); }, PATIENCE);
  const answer = await source.answer(given, turn);
  clearTimeout(hurry);
  if (!fresh()) return;
  if (answer.superseded) { if (!document.hidden) setTimeout(() => { if (fresh()) later(); }, AGAIN); return; }
  if (answer.error) { refused(answer, mine); return; }
  show(answer, mine);
  await figures(turn, fresh, given);
  if (fresh()) await rows(answer, turn, fresh);
  if (fresh()) await map(turn, fresh, ahead(given));
}
// The plan with the rounds and noise of the answer.
function ahead(given) {
  const there = { ...given, rounds: String(found.rounds) };
  if (found.noise_multiplier !== null) there.noise_multiplier = String(found.noise_multiplier);
  delete there.epsilon;
  return there;
}
async function figures(turn, fresh, given) {
  const there = ahead(given), curve = await source.curve(there, turn);
  if (!fresh()) return;
  if (curve.points) drawCurve(at("curve"), curve, curve.here ?? Number(there.rounds)); else if (curve.error) emptied(at("curve"));
  await map(undefined, fresh, there);
}
// Requests the map by a quick account, without a turn number.
async function map(turn, fresh, there) {
  at("elsewhere").hidden = there.noise_multiplier === undefined;
  at("over").hidden = unit() === "record";
  if (there.noise_multiplier === undefined) { emptied(at("map")); return; }
  const over = (unit() === "client" && document.querySelector('input[name="over"]:checked')?.value) || "noise-multiplier";
  const cells = await source.map(over, there, turn);
  if (fresh() && cells.cells) draw(cells);
}
function draw(cells) {
  drawMap(at("map"), cells, (column, row) => {
    document.querySelector('input[name="solved"][value="epsilon"]').checked = true;
    at(cells.over === "cohort" ? "cohort" : "noise_multiplier").value = cells.values[0][column];
    at("rounds").value = cells.values[1][row];
    changed();
  });
}

function show(answer, mine) {
  found = answer;
  showing = mine;
  at("error").hidden = true;
  at("answered").hidden = false;
  for (const id of ["numbers", "facts"]) at(id).classList.remove("waiting");
  badge(answer.quick ? "mind" : "good", answer.quick ? "quick upper bound, refining" : "upper bound");
  const numbers = [
    ["epsilon", "epsilon, at most", `delta ${answer.shown.delta}`],
    ["noise_multiplier", "noise multiplier", `sensitivity ${answer.sensitivity}`],
    ["rounds", "rounds", answer.each_round],
  ].filter(([name]) => name !== "noise_multiplier" || answer.noise_multiplier !== null);
  at("numbers").replaceChildren(...numbers.map(([name, words, beside]) => {
    const one = made("div", "", name === answer.solved ? "solved" : "");
    const value = made("div", answer.shown[name], "number");
    value.dataset.number = name;
    one.append(value, made("div", words), made("div", beside, "faint"));
    return one;
  }));
  const facts = [["Population", answer.population], ["Holds for", answer.words], ["Neighbours", `${neighbours(answer.adjacency)}.`], ["Account", `${answer.account}.`], ...(answer.readings ? [["Membership tests", answer.readings]] : []), ...(answer.notes.length ? [["Mind", answer.notes]] : [])];
  at("facts").replaceChildren(...facts.flatMap(([name, words]) => [made("dt", name), listed(words)]));
  at("command").textContent = answer.command;
  at("python").textContent = answer.python;
  const box = at(answer.solved);
  box.value = answer.solved === "rounds" ? String(answer.rounds) : answer.shown[answer.solved];
  slide(boxOf(answer.solved));
}
// The words of an adjacency, for clients or records.
function neighbours(adjacency) {
  const words = known.neighbours[adjacency];
  return unit() === "record" ? words.replaceAll("client", "record") : words;
}
function unit() { return (at("unit")?.value ?? known.grid?.fixed.unit) || "client"; }
// After a change of the unit, boxes that are empty or hold the other unit's example receive the unit's example.
let before = unit();
function exemplify() {
  const now = unit();
  if (now === before) return;
  const old = known.examples[before], fresh = known.examples[now];
  for (const box of known.boxes) {
    const value = typed(box);
    if (box.name in fresh && box.name !== solved() && (!value || value === old[box.name])) at(box.name).value = fresh[box.name];
  }
  before = now;
}
function badge(mood, words) {
  at("account").className = `badge ${mood}`;
  at("account").textContent = words;
}
// Marks the shown answer as one of an earlier plan.
function wait() {
  badge("mind", "computing");
  for (const id of ["numbers", "facts", "curve", "map"]) at(id).classList.add("waiting");
  for (const one of document.querySelectorAll("[data-number]")) one.textContent = "…";
}
function refused(answer, mine) {
  for (const id of ["numbers", "facts", "curve", "map", "command", "python"]) at(id).replaceChildren();
  at("what-if").tBodies[0].replaceChildren();
  found = null;
  showing = mine;
  badge("bad", answer.ended ? "ended" : "no answer");
  at("answered").hidden = true;
  at("error").textContent = answer.error;
  at("error").hidden = false;
  if (at(solved()).disabled) at(solved()).value = "";
}
function made(name, words, kind) {
  const one = document.createElement(name);
  one.textContent = words;
  if (kind) one.className = kind;
  return one;
}
function listed(words) {
  const one = made("dd", Array.isArray(words) ? "" : words);
  if (Array.isArray(words)) {
    const list = document.createElement("ul");
    list.append(...words.map((line) => made("li", line)));
    one.append(list);
  }
  return one;
}
async function rows(answer, turn, fresh) {
  const body = at("what-if").tBodies[0];
  at("otherwise").hidden = !answer.others.length;
  if (!answer.others.length) return;
  at("what-if-number").textContent = { epsilon: "epsilon", noise_multiplier: "noise multiplier", rounds: "rounds" }[answer.solved];
  const lines = [{ sampling: at("sampling")?.value ?? "poisson", adjacency: answer.adjacency, own: answer }, ...answer.others];
  const cells = lines.map((line) => {
    const row = made("tr", ""), number = made("td", line.own ? answer.shown[answer.solved] : "…", "n"), last = made("td", line.own ? "this plan" : "");
    if (!line.own) {
      const take = made("button", "Use");
      take.type = "button";
      take.addEventListener("click", () => fill(line.options, answer.solved));
      last.append(take);
    }
    row.append(made("td", known.samplers[line.sampling].split(":")[0] + (line.detail ? `, ${line.detail}` : "")), made("td", line.adjacency), number, last);
    return [row, number];
  });
  body.replaceChildren(...cells.map(([row]) => row));
  for (const [k, line] of lines.entries()) {
    if (line.own) continue;
    const other = await source.answer(line.options, turn);
    if (!fresh() || other.superseded) return;
    cells[k][1].textContent = other.error ? "no account" : other.shown[answer.solved];
    if (other.error) cells[k][1].title = other.error;
  }
}

// Fills the boxes from options; a missing option is empty, or the first choice.
function fill(given, wanted) {
  for (const box of known.boxes) {
    const here = at(box.name);
    here.value = given[box.name] ?? (here.options ? here.options[0].value : "");
  }
  before = unit();
  document.querySelector(`input[name="solved"][value="${wanted}"]`).checked = true;
  if (at("details")) at("details").open ||= [...at("details").querySelectorAll("[data-entry]")].some((one) => given[one.dataset.entry]);
  changed();
}
function fromAddress() {
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  return Object.keys(given).length ? given : null;
}
function open() {
  const strange = Object.entries(fromAddress() ?? {}).find(([name, value]) => !at(name) && known.grid?.fixed[name] !== value);
  if (known.grid && strange) {
    refused({ error: `The address has ${strange.join("=")}, but this page is for one plan only. dpfed plan opens such links.` }, version);
    return;
  }
  const given = fromAddress() ?? known.start, lacking = THREE.filter((name) => !given[name]);
  fill(given, fromAddress() ? (lacking.length === 1 ? lacking[0] : lacking.find((name) => name !== "noise_multiplier") ?? "epsilon") : known.solved);
}
function say(words) { at("shared").textContent = words; }
async function copy(text, done) {
  try { await navigator.clipboard.writeText(text); say(done); } catch { say(text); }
}
function fragment() { return `#${new URLSearchParams(options())}`; }
function link() {
  return (known.grid ? location.href.split("#")[0] : `${location.origin}/`) + fragment();
}
for (const box of known.boxes) {
  at(box.name).addEventListener(at(box.name).options ? "change" : "input", box.name === "unit" ? () => { exemplify(); changed(); } : changed);
  at(`${box.name}-slider`)?.addEventListener("input", () => { at(box.name).value = fromSlider(box); changed(); });
}
for (const one of document.querySelectorAll('input[name="solved"]')) {
  one.addEventListener("change", () => {
    for (const name of THREE) if (!at(name).value && found) at(name).value = found.shown[name].replaceAll(",", "");
    changed();
  });
}
for (const one of document.querySelectorAll('input[name="over"]')) one.addEventListener("change", changed);
for (const one of document.querySelectorAll("[data-copy]")) {
  one.addEventListener("click", () => copy(at(one.dataset.copy).textContent, "Copied."));
}
at("form").addEventListener("submit", (event) => event.preventDefault());
at("link").addEventListener("click", () => copy(link(), known.grid ? "Copied." : `Copied. It opens with: dpfed plan '${link()}'`));
at("save")?.addEventListener("click", () => {
  if (!found) return;
  const file = document.createElement("a");
  file.href = URL.createObjectURL(new Blob([found.file], { type: "application/json" }));
  file.download = "plan.json";
  file.click();
  URL.revokeObjectURL(file.href);
});
window.addEventListener("hashchange", open);
open();
