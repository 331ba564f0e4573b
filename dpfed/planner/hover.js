// Says what the nearest mark of a figure is, to a pointer, a finger or the arrow keys.
function readable(svg) {
  const marks = JSON.parse(svg.dataset.marks);
  const note = document.createElement("div");
  note.className = "note";
  note.setAttribute("role", "status");
  svg.parentNode.append(note);
  const ring = document.createElementNS(svg.namespaceURI, "circle");
  ring.setAttribute("r", 6);
  let now = -1;
  function show(i) {
    now = i;
    const [x, y, colour, words] = marks[i];
    const box = svg.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    ring.setAttribute("class", "ring c" + colour);
    ring.setAttribute("cx", x);
    ring.setAttribute("cy", y);
    svg.append(ring);
    note.textContent = words;
    note.style.display = "block";
    const most = box.width - note.offsetWidth;
    note.style.left = Math.max(0, Math.min(most, x * scale - note.offsetWidth / 2)) + "px";
    const above = y * scale - note.offsetHeight - 12;
    note.style.top = svg.offsetTop + (above < 0 ? y * scale + 14 : above) + "px";
  }
  function hide() {
    note.style.display = "none";
    ring.remove();
  }
  function nearest(event) {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    let best = 0, least = Infinity;
    marks.forEach(([mx, my], i) => {
      const off = (mx - x) ** 2 + ((my - y) / 2) ** 2;
      if (off < least) { least = off; best = i; }
    });
    show(best);
  }
  svg.addEventListener("pointermove", nearest);
  svg.addEventListener("pointerdown", nearest);
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) show(Math.max(0, now)); });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show((now + step + marks.length) % marks.length);
  });
}
document.querySelectorAll("svg[data-marks]").forEach(readable);
