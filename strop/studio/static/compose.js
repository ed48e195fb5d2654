// The page that composes a configuration. The text is the only state: every answer of a form changes it on the server.
"use strict";

const root = document.getElementById("compose");
const form = document.getElementById("form");
const state = { known: root.dataset.known, mode: root.dataset.mode, dialect: root.dataset.dialect, structure: "", panel: "text" };
let pending = Promise.resolve(), typing;
const text = editor.create(document.getElementById("text"), {
  text: document.getElementById("text").dataset.text,
  label: "Text of the configuration",
  onInput() {
    markStale();
    clearTimeout(typing);
    typing = setTimeout(check, 400);
  },
  complete: (before, after) => post("/compose/completions", { ...request(), before, after }).catch(() => null),
});

const request = () => ({
  text: text.value, name: document.getElementById("name").value, known: state.known, mode: state.mode,
  dialect: state.dialect, structure: state.structure, here: document.getElementById("here").checked,
});

// One request after the other, so that each edit starts from the text of the one before.
function ask(path, values, then) {
  pending = pending.then(async () => {
    try {
      await then(await post(path, { ...request(), text: text.send(), ...values() }));
    } catch (error) {
      say(error.message, true);
    }
  });
  return pending;
}

function show(answer) {
  if (text.receive(answer.text)) return;  // What the user has typed meanwhile is checked next.
  text.show(answer.faults.filter((fault) => !fault.is_unanswered));
  markStale();
  if (answer.form !== undefined) replaceForm(answer.form);
  state.structure = answer.structure;
  for (const control of form.querySelectorAll("[data-key]")) {
    const value = answer.values[control.dataset.key] ?? "";
    if (control !== document.activeElement || control.tagName === "SELECT") setControl(control, value);
    control.closest(".field").toggleAttribute("data-written", value !== "");
  }
  document.getElementById("status").innerHTML = answer.status;
  document.getElementById("panel-differences").innerHTML = answer.differences;
  placeFaults(answer.faults);
  document.getElementById("start").disabled = answer.faults.length > 0;
  filterFields();
  if (state.panel === "plan") showPlan();
  if (state.panel === "conversion") showConversion();
}

function setControl(control, value) {
  if (control.tagName === "SELECT" && ![...control.options].some((option) => option.value === value)) {
    control.add(new Option(value, value));
  }
  control.value = value;
}

// A form with other fields: sections that were open stay open, and the focus stays on its field.
function replaceForm(markup) {
  const open = new Map([...form.querySelectorAll("details")].map((each) => [each.dataset.section, each.open]));
  const focused = document.activeElement?.dataset?.key;
  form.innerHTML = markup;
  for (const each of form.querySelectorAll("details")) if (open.has(each.dataset.section)) each.open ||= open.get(each.dataset.section);
  if (focused) form.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

// Each fault stands at its field, or at the nearest section around it.
function placeFaults(faults) {
  form.querySelectorAll(".fault-text").forEach((each) => each.remove());
  form.querySelectorAll(".has-fault").forEach((each) => each.classList.remove("has-fault"));
  for (const fault of faults) {
    const place = fieldOf(fault.key);
    if (!place) continue;
    if (fault.is_unanswered) continue;
    place.classList.add("has-fault");
    const line = document.createElement("p");
    line.className = "fault-text";
    line.textContent = fault.message;
    if (place.matches("details")) place.querySelector("summary").after(line); else place.append(line);
  }
}

function fieldOf(key) {
  for (let name = key; name; name = name.includes(".") ? name.slice(0, name.lastIndexOf(".")) : "") {
    const place = form.querySelector(`[data-field="${CSS.escape(name)}"]`) || form.querySelector(`[data-section="${CSS.escape(name)}"]`)
      || form.querySelector(`[data-field="${CSS.escape(name + ".type")}"]`);
    if (place) return place;
  }
  return null;
}

const assign = (key, value) => ask("/compose/set", () => ({ key, value }), show);
const check = () => ask("/compose/check", () => ({}), show);

form.addEventListener("change", (event) => {
  if (event.target.dataset.key) assign(event.target.dataset.key, event.target.value);
});
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("click", (event) => {
  const { add, remove } = event.target.dataset;
  if (add) assign(add, "{}").then(() => form.querySelector(`[data-section="${CSS.escape(add)}"] input`)?.focus());
  if (remove) assign(remove, null);
});

document.getElementById("here").addEventListener("change", check);

// Suggestions are fetched when a field gets the focus.
document.addEventListener("focusin", async (event) => {
  const kind = event.target.dataset?.suggest;
  if (!kind) return;
  try {
    const answer = await post("/compose/suggestions", { ...request(), kind });
    document.getElementById(event.target.getAttribute("list")).replaceChildren(...answer.suggestions.map((each) => new Option(each)));
  } catch { /* A field works without suggestions. */ }
});

// Tabs of the form and of the text.
document.querySelectorAll("[data-mode-tab]").forEach((tab) => tab.addEventListener("click", () => {
  state.mode = tab.dataset.modeTab;
  document.querySelectorAll("[data-mode-tab]").forEach((each) => each.setAttribute("aria-selected", each === tab));
  document.getElementById("search-bar").hidden = state.mode !== "expert";
  state.structure = "";
  check();
}));
document.querySelectorAll("[data-panel]").forEach((tab) => tab.addEventListener("click", () => {
  state.panel = tab.dataset.panel;
  document.querySelectorAll("[data-panel]").forEach((each) => {
    each.setAttribute("aria-selected", each === tab);
    document.getElementById(`panel-${each.dataset.panel}`).hidden = each !== tab;
  });
  if (state.panel === "plan") showPlan();
  if (state.panel === "conversion") showConversion();
}));
document.querySelectorAll("[role=tablist]").forEach((list) => list.addEventListener("keydown", (event) => {
  const tabs = [...list.querySelectorAll("[role=tab]")];
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
  next.focus();
  next.click();
}));

async function showPlan() {
  const response = await fetch(base + "/compose/plan", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request()),
  });
  const answer = await response.text();
  document.getElementById("panel-plan").innerHTML = response.ok ? answer : "";
  if (!response.ok) say(JSON.parse(answer).error, true);
}

async function showConversion() {
  const panel = document.getElementById("panel-conversion");
  const to = document.querySelector("[data-to]").dataset.to;
  try {
    const answer = await post("/compose/convert", { ...request(), to });
    panel.innerHTML = answer.html;
    panel.querySelector("#use-conversion").addEventListener("click", () => {
      text.value = answer.text;
      state.known = "";
      state.dialect = to;
      document.getElementById("name").value = document.getElementById("name").value.replace(/(-trinity)?\.ya?ml$/, to === "trinity" ? "-trinity.yaml" : "-strop.yaml");
      document.getElementById("dialect-name").textContent = to === "trinity" ? "A Trinity-RFT configuration" : "A run file of Strop";
      const tab = document.querySelector("[data-to]");
      tab.dataset.to = to === "trinity" ? "strop" : "trinity";
      tab.textContent = to === "trinity" ? "As a run file" : "As Trinity-RFT";
      document.querySelector("[data-panel=text]").click();
      check();
    });
  } catch (error) {
    panel.innerHTML = "";
    panel.append(Object.assign(document.createElement("p"), { className: "soft", textContent: error.message }));
  }
}

// Key, note and description of the fields that a section can have besides those that it shows.
const possibleFields = (section) => (section.dataset.possible ?? "").split("\n").filter(Boolean).map((line) => line.split("\t"));

// Search in the form with every field.
function filterFields() {
  const words = document.getElementById("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const onlyWritten = document.getElementById("only-written").checked;
  const filters = words.length > 0 || onlyWritten;
  let count = 0;
  const fits = (find) => words.every((word) => find.includes(word));
  for (const field of form.querySelectorAll(".section .field")) {
    const found = fits(field.dataset.find) && (!onlyWritten || "written" in field.dataset);
    field.hidden = !found;
    count += found;
  }
  for (const section of [...form.querySelectorAll(".section")].reverse()) {
    const fields = words.length && !onlyWritten ? possibleFields(section).filter(([key, note, help]) => fits(`${key} ${note} ${help}`.toLowerCase())) : [];
    const line = section.querySelector(":scope > .possible");
    if (line) {
      line.hidden = !fields.length;
      line.textContent = `Not set: ${fields.slice(0, 6).map(([key, note]) => note ? `${key} (${note})` : key).join(", ")}${fields.length > 6 ? ", ..." : ""}`;
    }
    const found = !onlyWritten && (fits(section.dataset.find) || fields.length > 0);
    count += found;
    section.hidden = filters && !found && !section.querySelector(".field:not([hidden]), .section:not([hidden])");
    if (filters && !section.hidden) section.open = true;
  }
  const nothing = document.getElementById("nothing-found");
  if (nothing) nothing.hidden = !filters || count > 0;
}
document.getElementById("search").addEventListener("input", filterFields);
document.getElementById("only-written").addEventListener("change", filterFields);
document.addEventListener("keydown", (event) => {
  const bar = document.getElementById("search-bar");
  if (event.key === "/" && !bar.hidden && !event.target.matches("input, textarea, select")) {
    event.preventDefault();
    document.getElementById("search").focus();
  }
  if (event.key === "s" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    document.getElementById("save").click();
  }
});

// A fault leads to its field, or to its line.
document.getElementById("status").addEventListener("click", (event) => {
  const fault = event.target.closest("[data-fault-key]");
  if (!fault) return;
  const place = fieldOf(fault.dataset.faultKey);
  if (place) {
    if (place.closest("[hidden]")) {  // by the search
      document.getElementById("search").value = "";
      document.getElementById("only-written").checked = false;
      filterFields();
    }
    for (let outer = place; outer; outer = outer.parentElement) if (outer.matches("details")) outer.open = true;
    (place.querySelector("input, select") || place.querySelector("summary")).focus();
    place.scrollIntoView({ block: "center" });
  } else if (fault.dataset.faultLine) {
    document.querySelector("[data-panel=text]").click();
    text.select(Number(fault.dataset.faultLine));
  }
});

function act(id, path, busy, then) {
  const button = document.getElementById(id);
  button.addEventListener("click", () => {
    button.disabled = true;
    say(busy);
    ask(path, () => ({}), then).then(() => { button.disabled = false; });
  });
}
act("save", "/compose/save", "Saving ...", (answer) => { state.known = answer.known; say("Saved."); });
act("start", "/compose/start", "Starting ...", (answer) => { state.known = answer.known; location = answer.location; });
act("complete-check", "/compose/complete-check", "Checking: this reads the data ...", (answer) => {
  document.getElementById("toast").hidden = true;
  document.getElementById("check-output").innerHTML = answer.html;
  markStale.checked = answer.text;
  markStale();
});

// A verdict is about the text that was checked.
function markStale() {
  const output = document.getElementById("check-output");
  const isStale = markStale.checked !== undefined && markStale.checked !== text.value;
  output.classList.toggle("stale", isStale);
  for (const note of output.querySelectorAll(".stale-note")) note.hidden = !isStale;
}
check();
