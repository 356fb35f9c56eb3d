"use strict";
(() => {
  // Sorting: a press on a heading, by pointer or key. Empty cells come last both ways.
  const collator = new Intl.Collator("en", { numeric: true });
  const valueOf = (row, column, numeric) => {
    const cell = row.cells[column];
    if (!numeric) return cell.textContent.trim();
    return cell.dataset.v === "" || cell.dataset.v === undefined ? null : Number(cell.dataset.v);
  };
  const compare = (numeric, sign) => (a, b) => {
    if (a.value === null || b.value === null) return (a.value === null) - (b.value === null);
    return sign * (numeric ? a.value - b.value : collator.compare(a.value, b.value));
  };
  const sortBy = (table, heading) => {
    const descending = heading.getAttribute("aria-sort") === "ascending";
    const numeric = heading.dataset.kind === "number";
    for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => ({ row, value: valueOf(row, heading.cellIndex, numeric) }));
    rows.sort(compare(numeric, descending ? -1 : 1));
    body.append(...rows.map((entry) => entry.row));
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    table.tHead.addEventListener("click", (event) => {
      const heading = event.target.closest("th");
      if (heading) sortBy(table, heading);
    });
  }

  // Filtering the cells of the paper.
  const form = document.getElementById("filters");
  const rows = form ? [...document.getElementById("cells").tBodies[0].rows] : [];
  const filter = () => {
    const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const all = form.elements.all.checked;
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const fits = ["stream", "method", "verdict"].every(
        (name) => !form.elements[name].value || row.dataset[name] === form.elements[name].value);
      row.hidden = !((all || "run" in row.dataset) && fits && words.every((word) => text.includes(word)));
      shown += !row.hidden;
    }
    form.elements.shown.value = `${shown} of ${rows.length} cells shown`;
  };
  if (form) {
    form.addEventListener("input", filter);
    form.addEventListener("submit", (event) => event.preventDefault());
    filter();
  }

  // A link into a folded section opens it.
  const unfold = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (!target) return;
    const inside = target.querySelector(":scope > details");
    if (inside) inside.open = true;
    for (let node = target.parentElement; node; node = node.parentElement) {
      if (node.tagName === "DETAILS") node.open = true;
    }
    target.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  unfold();

  // A figure in its own size, which may scroll in its box.
  for (const button of document.querySelectorAll("button.enlarge")) {
    button.addEventListener("click", () => {
      const large = button.closest("figure").classList.toggle("large");
      button.setAttribute("aria-pressed", large);
    });
  }

  // Values of marks in figures: the browser shows a title late and not at all on touch.
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  document.body.append(tip);
  const place = (x, y) => {
    const box = tip.getBoundingClientRect();
    const left = Math.max(4, Math.min(x + 14, document.documentElement.clientWidth - box.width - 4));
    const above = y - box.height - 10;
    tip.style.transform = `translate(${left}px, ${above > 4 ? above : y + 18}px)`;
  };
  const show = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    place(x, y);
  };
  const hide = () => { tip.hidden = true; };
  const NEAR = 14; // pixels; a mark is small, a finger is not
  const nearest = (marks, x, y) => {
    let best = null, least = NEAR;
    for (const mark of marks) {
      const box = mark.getBoundingClientRect();
      const far = Math.hypot(x - (box.left + box.right) / 2, y - (box.top + box.bottom) / 2);
      if (far < least) [best, least] = [mark, far];
    }
    return best;
  };
  const listen = (svg) => {
    const marks = [];
    for (const title of svg.querySelectorAll("title")) {
      const mark = title.parentElement;
      if (mark === svg) continue;
      mark.dataset.tip = title.textContent;
      title.remove();
      marks.push(mark);
    }
    if (!marks.length) return;
    const atPointer = (event) => {
      const mark = event.target.closest("[data-tip]") || nearest(marks, event.clientX, event.clientY);
      if (mark) show(mark.dataset.tip, event.clientX, event.clientY);
      else hide();
    };
    svg.addEventListener("pointermove", atPointer);
    svg.addEventListener("pointerdown", atPointer);
    svg.addEventListener("pointerleave", hide);
    let current = -1;
    svg.setAttribute("tabindex", "0");
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step) return;
      event.preventDefault();
      current = (Math.max(current, step < 0 ? 0 : -1) + step + marks.length) % marks.length;
      const box = marks[current].getBoundingClientRect();
      show(marks[current].dataset.tip, (box.left + box.right) / 2, (box.top + box.bottom) / 2);
    });
    svg.addEventListener("blur", hide);
  };
  document.querySelectorAll("figure svg").forEach(listen);
  addEventListener("scroll", hide, { passive: true });
})();
