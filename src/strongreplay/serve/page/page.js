"use strict";

// Labels, file names and messages come from others: they are only ever set as text, never parsed as HTML.

const $ = (id) => document.getElementById(id);
const COUNT = 48; // samples of the contact sheet that are loaded at once
let status = null;
let numShown = 0;

function make(tag, text = "", ...children) {
  const node = document.createElement(tag);
  if (text !== "") node.textContent = text;
  node.append(...children);
  return node;
}

function classed(node, name) {
  node.className = name;
  return node;
}

function say(text, bad = false) {
  $("message").textContent = text;
  $("message").classList.toggle("bad", bad);
}

// Talking to the service

function headers() {
  const token = sessionStorage.getItem("token");
  return token ? { Authorization: `Bearer ${token}` } : {};
}

async function call(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  if (answer.ok) return answer;
  const found = await answer.json().catch(() => ({}));
  const text = found.error || `${path}: ${answer.status}`;
  throw new Error(answer.status === 401 ? "Give the token of the service above." : text);
}

const get = async (path) => (await call(path)).json();

async function order(path, content = {}) {
  const options = { method: "POST", body: JSON.stringify(content), headers: { "Content-Type": "application/json" } };
  return (await call(path, options)).json();
}

async function guarded(work) {
  try {
    return await work();
  } catch (error) {
    say(error.message, true);
    return null;
  }
}

// An image needs the token in a header, which <img src> cannot send.
async function picture(id, text) {
  if (!status.pictures) return make("span", "(no picture is kept)"); // of a frozen backbone, features are
  const image = make("img");
  image.alt = text;
  const content = await (await call(`/api/memory/${id}.png`)).blob();
  image.src = URL.createObjectURL(content);
  image.addEventListener("load", () => URL.revokeObjectURL(image.src), { once: true });
  return image;
}

function confirmed(title, text, action) {
  $("confirm-title").textContent = title;
  $("confirm-text").textContent = text;
  $("confirm-yes").textContent = action;
  const dialog = $("confirm");
  dialog.returnValue = "";
  dialog.showModal();
  $("confirm-no").focus();
  return new Promise((done) => {
    dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true });
  });
}

async function act(title, text, action, path, content, report) {
  if (!status.may_act) {
    say("The service has no token, so nothing can be changed here. Start it with --token FILE.", true);
    return;
  }
  if (!(await confirmed(title, text, action))) return;
  await guarded(async () => {
    const found = await order(path, content);
    await refresh();
    say(report(found));
  });
}

// Ask

async function askAll(files) {
  $("answers").replaceChildren();
  for (const file of files) await guarded(() => askOne(file));
  await guarded(showDrift);
}

async function askOne(file) {
  const options = { method: "POST", body: file, headers: { "Content-Type": file.type || "application/octet-stream" } };
  const found = await (await call("/predict?top=5", options)).json();
  const near = await (await call("/api/nearest", options)).json();
  const photo = classed(make("img"), "photo");
  photo.alt = "The photo that was asked about";
  photo.src = URL.createObjectURL(file);
  photo.addEventListener("load", () => URL.revokeObjectURL(photo.src), { once: true });
  const first = found.answers[0];
  const text = make("div", "", make("h3", `${file.name}: ${first.label}`));
  for (const guess of first.top) {
    const bar = make("meter");
    bar.value = guess.probability;
    bar.setAttribute("aria-label", `Probability of ${guess.label}`);
    const value = make("span", `${(100 * guess.probability).toFixed(1)} %`);
    text.append(classed(make("div", "", make("span", String(guess.label)), bar, value), "guess"));
  }
  text.append(classed(make("p", `Answered by ${found.version}. The most similar remembered samples:`), "quiet"));
  const list = classed(make("ul"), "small pictures");
  for (const one of near.samples) {
    const image = await picture(one.id, `Remembered ${one.label}`);
    list.append(make("li", "", image, make("span", `${one.label}, ${one.similarity.toFixed(2)}`)));
  }
  text.append(list, correctionField(file.name));
  $("answers").append(make("li", "", photo, text));
}

// Status

function showHead() {
  document.title = `${status.version} - strongreplay`;
  $("version").textContent = status.version;
  const samples = status.memory.replay.samples + status.memory["held-out"].samples;
  const acts = status.may_act ? "" : " Nothing can be changed here: the service has no token.";
  $("summary").textContent =
    `${status.classes.length} classes, ${samples} remembered samples, method ${status.method}, written ${when(status.written)}.${acts}`;
}

const when = (text) => text.replace("T", " ").slice(0, 16);
const percent = (value) => (value === null || value === undefined ? "-" : value.toFixed(1));

function cells(row, values, numbers = []) {
  values.forEach((value, place) => {
    const cell = make("td", String(value));
    if (numbers.includes(place)) cell.className = "number";
    row.append(cell);
  });
  return row;
}

function showCandidate() {
  const found = status.candidate;
  $("candidate").hidden = !found;
  if (!found) return;
  const fell = found.fallen.length;
  const news = found.new_labels.length ? ` New classes: ${found.new_labels.join(", ")}.` : "";
  const limit = found.max_drop === null ? "" : ` by more than ${found.max_drop} points`;
  const why = fell ? `${fell} ${fell === 1 ? "class" : "classes"} fell${limit}.` : "It was refused by the limit that was given.";
  const stale = found.from !== status.version ? ` It was learnt from ${found.from}; roll back to it first.` : "";
  $("candidate-text").textContent = `Learnt from ${found.data || "unnamed data"}, ${when(found.written)}. ${why}${news}${stale}`;
  const rows = found.fallen.map((one) => {
    const row = make("tr");
    const head = make("th", String(one.label));
    head.scope = "row";
    row.append(head);
    return cells(row, [percent(one.before), percent(one.after), percent(one.before - one.after), `${one.where} samples`], [0, 1, 2]);
  });
  $("candidate-table").tBodies[0].replaceChildren(...rows);
  $("candidate-table").parentElement.hidden = !fell;
}

function showVersions() {
  const items = status.versions.map((one) => {
    const isUsed = one.version === status.version;
    const text = make("span", "", make("strong", one.version), ` ${when(one.written)}${one.from ? `, from ${one.from}` : ""}`);
    const item = make("li", "", text);
    if (isUsed) {
      item.className = "used";
      item.append(classed(make("span", "in use"), "chip"));
    } else {
      const button = make("button", `Roll back to ${one.version}`);
      button.type = "button";
      button.addEventListener("click", () => rollBack(one.version));
      item.append(button);
    }
    return item;
  });
  $("versions").replaceChildren(...items.reverse());
}

function rollBack(name) {
  const text = `${name} will answer instead of ${status.version}. Nothing is removed, and you can go back.`;
  return act(`Roll back to ${name}?`, text, `Use ${name}`, "/api/rollback", { version: name }, (found) => `${found.version} is in use now.`);
}

function accept() {
  const text = "It was refused because classes fell. It will answer from now on; you can roll back.";
  return act("Accept the refused update?", text, "Accept", "/api/accept", {}, (found) => `${found.version} is in use now.`);
}

function showClasses() {
  const names = status.versions.map((one) => one.version);
  const head = make("tr");
  ["class", "attention", "learnt", "replayed", "held out", ...names.map((name) => `${name} %`)].forEach((text, place) => {
    const cell = classed(make("th", text), place > 1 ? "number" : "");
    cell.scope = "col";
    head.append(cell);
  });
  $("classes").tHead.replaceChildren(head);
  const rows = status.timeline.map((line) => {
    const row = make("tr");
    const name = make("th", String(line.label));
    name.scope = "row";
    const marks = make("td", line.marks.length ? "" : "-");
    for (const mark of line.marks) marks.append(classed(make("span", mark), "mark"), " ");
    row.append(name, marks);
    cells(row, [line.samples, line.replay, line.held_out], [0, 1, 2]);
    for (const version of names) {
      const point = line.points.find((one) => one.version === version);
      const cell = classed(make("td", point ? percent(point.accuracy) : "-"), "number");
      if (point) {
        cell.title = `on ${point.judged_by} samples`;
        cell.style.setProperty("background-color", `rgb(var(--tint) / ${(point.accuracy / 250).toFixed(2)})`);
      }
      row.append(cell);
    }
    return row;
  });
  $("classes").tBodies[0].replaceChildren(...rows);
  const marked = status.timeline.filter((line) => line.marks.length).length;
  $("attention").textContent = marked ? `${marked} of ${status.timeline.length} classes need attention.` : "No class needs attention.";
  $("chart").replaceChildren(drawChart(names));
}

function svg(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function drawChart(names) {
  const [width, height, left, right, top, bottom] = [Math.max(280, $("chart").clientWidth), 260, 40, 120, 12, 26];
  const x = (place) => left + (names.length > 1 ? (place * (width - left - right)) / (names.length - 1) : 0);
  const y = (value) => top + ((100 - value) * (height - top - bottom)) / 100;
  const chart = svg("svg", { width, height, role: "img", "aria-label": "Accuracy of each class by version; the table has the numbers" });
  for (const value of [0, 50, 100]) {
    chart.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    chart.append(svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, `${value}`));
  }
  names.forEach((name, place) => chart.append(svg("text", { x: x(place), y: height - 6, "text-anchor": "middle" }, name)));
  const ends = [];
  const isFalling = (line) => line.marks.some((mark) => mark.startsWith("fell"));
  for (const line of [...status.timeline].sort((a, b) => isFalling(a) - isFalling(b))) {
    const points = line.points.map((one) => [x(names.indexOf(one.version)), y(one.accuracy)]);
    if (!points.length) continue;
    const group = svg("g", isFalling(line) ? { class: "falling" } : {});
    group.append(svg("title", {}, String(line.label)));
    group.append(svg("polyline", { points: points.map((point) => point.join(",")).join(" ") }));
    for (const [cx, cy] of points) group.append(svg("circle", { cx, cy, r: 3.5 }));
    chart.append(group);
    ends.push({ group, at: points[points.length - 1], label: String(line.label), first: isFalling(line) });
  }
  nameEnds(ends, width - right + 10, top, height - bottom);
  return chart;
}

// Names beside the last points, falling classes first where there is no room for all; pushed apart from the top
// down, then from the bottom up.
function nameEnds(ends, x, top, bottom) {
  const gap = 14;
  const some = ends.sort((a, b) => b.first - a.first).slice(0, Math.floor((bottom - top) / gap));
  some.sort((a, b) => a.at[1] - b.at[1]);
  const places = [];
  for (const end of some) places.push(Math.max(end.at[1] + 4, (places.at(-1) ?? -gap) + gap));
  for (let row = places.length - 1, limit = bottom + 4; row >= 0; row--, limit = places[row + 1] - gap) {
    places[row] = Math.min(places[row], limit);
  }
  some.forEach((end, row) => {
    const short = end.label.length > 16 ? `${end.label.slice(0, 15)}…` : end.label;
    end.group.append(svg("text", { x, y: places[row] }, short));
  });
}

// Memory

function showMemoryFilter() {
  const before = $("memory-label").value;
  const every = make("option", "all classes");
  every.value = "";
  const options = status.classes.map((one) => {
    const option = make("option", String(one.label));
    option.value = String(one.label);
    return option;
  });
  $("memory-label").replaceChildren(every, ...options);
  showLabels(status.classes.map((one) => one.label));
  if (options.some((option) => option.value === before)) $("memory-label").value = before;
}

async function showMemory(start = 0) {
  const label = $("memory-label").value;
  const filter = label ? `&label=${encodeURIComponent(label)}` : "";
  const found = await get(`/api/memory?start=${start}&count=${COUNT}${filter}`);
  const items = await Promise.all(found.samples.map(showSample));
  if (start === 0) $("memory").replaceChildren(...items);
  else $("memory").append(...items);
  numShown = start + items.length;
  $("memory-count").textContent = `${numShown} of ${found.total} samples`;
  $("more").hidden = numShown >= found.total;
  markChosen();
}

async function showSample(one) {
  const box = make("input");
  box.type = "checkbox";
  box.value = one.id;
  box.addEventListener("change", markChosen);
  const image = await picture(one.id, `Sample ${one.id} of ${one.label}`);
  const label = make("label", "", image, box, ` ${one.label}`);
  label.title = `${one.source}, ${one.kind}`;
  return make("li", "", label);
}

const chosen = () => [...document.querySelectorAll("#memory input:checked")].map((box) => Number(box.value));

function markChosen() {
  $("forget").disabled = chosen().length === 0;
}

function forget() {
  const ids = chosen();
  const text =
    `${ids.length} chosen ${ids.length === 1 ? "sample" : "samples"}, and all with the same pixels, will be erased from every version. ` +
    "This cannot be undone. Weights that were trained on them do not change.";
  return act("Forget for good?", text, "Forget", "/api/forget", { ids }, (found) => `Forgotten: ${found.num_samples} samples.`);
}

// Confusions and history

async function showConfusions() {
  const found = await get("/api/confusions");
  const parts = [];
  for (const pair of found.pairs.slice(0, 20)) {
    const title = `${pair.label} taken for ${pair.answer}: ${pair.count} of ${pair.judged_by} held-out samples`;
    const list = classed(make("ul"), "pictures");
    for (const id of pair.ids) list.append(make("li", "", await picture(id, `${pair.label} taken for ${pair.answer}`)));
    parts.push(classed(make("h3", title), "pair"), list);
  }
  $("confusions").replaceChildren(...(parts.length ? parts : [make("p", "No held-out sample has a wrong answer.")]));
}

async function showDrift() {
  const found = await get("/api/drift");
  let text = found.problem || "No request has been answered by this version yet.";
  if (found.samples) {
    const share = (value) => `${(100 * value).toFixed(1)} %`;
    text = `${found.unlike} of the newest ${found.samples} images (${share(found.share)}) are unlike the held-out samples; ${share(found.rate)} would be by chance. `;
    text += found.over ? `This is over the limit of ${share(found.limit)}: look at them, label some and learn.` : `The limit is ${share(found.limit)}.`;
    const changed = found.classes.filter((one) => one.p < 0.01).map((one) => `${one.label} ${share(one.before)} → ${share(one.now)}`);
    if (changed.length) text += ` Other shares of answers than on held-out samples: ${changed.join(", ")}.`;
  }
  $("drift").textContent = text;
  $("drift").classList.toggle("warned", Boolean(found.over));
}

async function showHistory() {
  const rows = (await get("/api/history")).map((one) => {
    const parts = [];
    if (one.data) parts.push(one.data);
    if (one.samples !== undefined) parts.push(`${one.samples} samples`);
    if (one.from) parts.push(`from ${one.from}`);
    if (one.forgotten) parts.push(`without ${one.forgotten.join(", ")}`);
    return cells(make("tr"), [when(one.when), one.act, one.version || "-", parts.join(", ") || "-", one.by || "command"]);
  });
  $("history").tBodies[0].replaceChildren(...rows);
}

async function begin() {
  const ready = await get("/ready");
  if (ready.needs_token && !sessionStorage.getItem("token")) {
    $("summary").textContent = "Give the token of the service to see the model.";
    $("token").focus();
  } else {
    await refresh();
  }
}

async function refresh() {
  status = await get("/api/status");
  showHead();
  showCandidate();
  showVersions();
  showClasses();
  showMemoryFilter();
  await Promise.all([showMemory(), showConfusions(), showHistory(), showDrift()]);
  document.body.dataset.version = status.version;
}

// A version that a command puts in use appears by itself.
async function watch() {
  const found = await fetch("/ready").then((answer) => answer.json()).catch(() => null);
  if (found && status && found.version !== status.version) await guarded(refresh);
}

function start() {
  $("photos").addEventListener("change", (event) => askAll([...event.target.files]));
  const drop = $("drop");
  for (const name of ["dragover", "dragleave", "drop"]) {
    drop.addEventListener(name, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", name === "dragover");
      if (name === "drop") askAll([...event.dataTransfer.files]);
    });
  }
  $("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("token", $("token").value.trim());
    $("token").value = "";
    say("");
    guarded(refresh);
  });
  $("accept").addEventListener("click", accept);
  $("forget").addEventListener("click", forget);
  $("more").addEventListener("click", () => guarded(() => showMemory(numShown)));
  $("memory-label").addEventListener("change", () => guarded(() => showMemory()));
  $("confirm-no").addEventListener("click", () => $("confirm").close(""));
  $("confirm-yes").addEventListener("click", () => $("confirm").close("yes"));
  window.addEventListener("resize", () => status && showClasses());
  guarded(begin);
  setInterval(watch, 5000);
}

start();
