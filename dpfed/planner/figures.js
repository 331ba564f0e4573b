// Figures of the planner: a curve and a map, drawn for the available width, with a tooltip at each mark.
const SVG = Object.assign(document.createElement("div"), { innerHTML: "<svg></svg>" }).firstChild.namespaceURI;
const H = 230, LEFT = 46, RIGHT = 12, TOP = 10, BOTTOM = 42;
// One unit per pixel, so that text has one size on every screen.
function width(figure) {
  return Math.max(300, Math.round(figure.clientWidth));
}
function shape(name, attributes, words) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (words !== undefined) made.textContent = words;
  return made;
}
// A mark with a tooltip.
function titled(mark, words) {
  mark.append(shape("title", {}, words));
  return mark;
}
function ticks(high, most) {
  const rough = high / (most - 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough * (1 - 1e-9));
  return Array.from({ length: Math.ceil(high / step - 1e-9) + 1 }, (_, k) => k * step);
}
function tick(value) {
  if (value && (value < 1e-4 || value >= 1e7)) return value.toExponential(1);
  return value.toLocaleString("en", { maximumFractionDigits: 6 });
}
function placed(figure, svg, caption, faint) {
  const words = document.createElement("figcaption"), beside = document.createElement("span");
  words.textContent = caption + " ";
  beside.className = "faint";
  beside.textContent = faint;
  words.append(beside);
  figure.replaceChildren(words, svg);
  figure.classList.remove("waiting");
}
function emptied(figure) {
  figure.replaceChildren();
}
// points: [x, epsilon, words]; here: the x of the plan.
function drawCurve(figure, found, here) {
  const points = found.points;
  if (points.length < 2) { emptied(figure); return; }
  const W = width(figure), ys = ticks(Math.max(...points.map((p) => p[1])), 5), last = points.at(-1)[0];
  const x = (value) => LEFT + (value / last) * (W - LEFT - RIGHT);
  const y = (value) => H - BOTTOM - (value / ys.at(-1)) * (H - TOP - BOTTOM);
  const svg = shape("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Epsilon over rounds, upper bound" });
  for (const one of ys) {
    svg.append(shape("path", { class: "grid", d: `M${LEFT} ${y(one)}H${W - RIGHT}` }));
    svg.append(shape("text", { x: LEFT - 6, y: y(one) + 4, "text-anchor": "end" }, tick(one)));
  }
  for (const one of ticks(last, 5).filter((one) => one <= last && Number.isInteger(one))) {
    svg.append(shape("text", { x: x(one), y: H - BOTTOM + 16, "text-anchor": "middle" }, tick(one)));
  }
  svg.append(shape("path", { class: "axis", d: `M${LEFT} ${H - BOTTOM}H${W - RIGHT}` }));
  svg.append(shape("text", { x: (LEFT + W - RIGHT) / 2, y: H - 6, "text-anchor": "middle" }, "rounds"));
  svg.append(shape("path", { class: "line", d: "M" + points.map((p) => `${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("L") }));
  const mark = points.find((p) => p[0] === here);
  if (mark) svg.append(shape("circle", { class: "dot", cx: x(mark[0]), cy: y(mark[1]), r: 4 }));
  for (const p of points) svg.append(titled(shape("circle", { class: "mark", cx: x(p[0]), cy: y(p[1]), r: 6 }), p[2]));
  placed(figure, svg, "Epsilon over rounds, upper bound", found.account);
}
// found: across, up, cells [colour value, short, words] row by row from the bottom, here; pick(column, row) when clicked.
function drawMap(figure, found, pick) {
  const W = width(figure), columns = found.across.length, rows = found.up.length, left = 58, top = 6, bottom = 44, high = 34 * rows;
  const wide = (W - left - 4) / columns, values = found.cells.map((cell) => cell[0]).filter((one) => one > 0);
  if (!values.length) { emptied(figure); return; }
  const low = Math.log(Math.min(...values)), span = Math.log(Math.max(...values)) - low || 1;
  const svg = shape("svg", { viewBox: `0 0 ${W} ${high + top + bottom}`, role: "img", class: "map", "aria-label": "Map of epsilon, upper bounds" });
  const noise = found.over === "noise-multiplier", place = (c, r) => [left + c * wide, top + high - (r + 1) * 34];
  found.cells.forEach(([value, brief, words], k) => {
    const c = k % columns, r = Math.floor(k / columns), [x, y] = place(c, r);
    const t = value === null ? 1 : value > 0 ? (Math.log(value) - low) / span : 0;
    const fill = `fill:color-mix(in srgb, var(--map-high) ${Math.round(100 * stretched(t))}%, var(--map-low))`;
    const cell = shape("rect", { x, y, width: wide, height: 34, style: fill });
    cell.addEventListener("click", () => pick(c, r));
    titled(cell, `${noise ? "noise multiplier" : "cohort"} ${found.across[c]}, ${found.up[r]} rounds: ${words}`);
    svg.append(cell, shape("text", { x: x + wide / 2, y: y + 21, "text-anchor": "middle", class: t > 0.5 ? "high" : "low" }, brief));
  });
  const [x, y] = place(...found.here);
  svg.append(shape("rect", { x, y, width: wide, height: 34, class: "here", fill: "none", "pointer-events": "none" }));
  found.up.forEach((words, r) => svg.append(shape("text", { x: left - 6, y: place(0, r)[1] + 21, "text-anchor": "end" }, words)));
  const longest = Math.max(...found.across.map((words) => words.length)), every = longest * 7 + 6 > wide ? 2 : 1, own = found.here[0] % every;
  found.across.forEach((words, c) => {
    if (c % every === own) svg.append(shape("text", { x: place(c, 0)[0] + wide / 2, y: top + high + 16, "text-anchor": "middle" }, words));
  });
  svg.append(shape("text", { x: left + (W - left) / 2, y: top + high + 36, "text-anchor": "middle" }, noise ? "noise multiplier" : "cohort"));
  svg.append(shape("text", { x: 11, y: top + high / 2, "text-anchor": "middle", transform: `rotate(-90 11 ${top + high / 2})` }, "rounds"));
  placed(figure, svg, "Epsilon, upper bounds", `${found.account}; a click takes a cell`);
}
// Shifts colours away from the middle, where neither dark nor light text is readable.
function stretched(t) {
  return t > 0.5 ? 0.72 + 0.56 * (t - 0.5) : 0.72 * t;
}
