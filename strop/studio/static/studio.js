// Behavior that all pages share: parts that are refreshed, buttons that act, and messages.
"use strict";

const base = document.documentElement.dataset.base; // in front of all paths

function say(text, isError = false) {
  const toast = document.getElementById("toast");
  toast.textContent = text;
  toast.className = isError ? "error" : "";
  toast.hidden = false;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { toast.hidden = true; }, isError ? 12000 : 5000);
}

async function post(path, values) {
  const response = await fetch(base + path, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(values),
  });
  const answer = await response.json().catch(() => ({ error: `Studio answered ${response.status}.` }));
  if (!response.ok) throw new Error(answer.error || `Studio answered ${response.status}.`);
  return answer;
}

// data-refresh="URL" data-every="SECONDS": the element's content is fetched again while the page is visible.
function refreshRegularly(element) {
  const every = 1000 * Number(element.dataset.every);
  const load = async () => {
    try {
      if (!document.hidden) await refresh(element);
    } catch {
      say("Studio does not answer. It may have ended; runs that it started continue.", true);
    }
    setTimeout(load, every);
  };
  setTimeout(load, every);
}

async function refresh(element) {
  const url = new URL(element.dataset.refresh, location);
  const version = element.querySelector("[data-version]");
  if (version) url.searchParams.set("version", version.dataset.version);
  const response = await fetch(url);
  if (response.status !== 200) return;
  const text = await response.text();
  if (text === element.dataset.last) return;
  element.dataset.last = text;
  const chosen = [...element.querySelectorAll("input:checked")].map((input) => input.value);
  const focused = document.activeElement && element.contains(document.activeElement) ? document.activeElement : null;
  const key = focused && (focused.value || focused.getAttribute("href"));
  const scrolled = element.querySelector("pre");
  const atEnd = scrolled && scrolled.scrollTop + scrolled.clientHeight >= scrolled.scrollHeight - 40;
  const top = scrolled && scrolled.scrollTop;
  element.innerHTML = text;
  for (const input of element.querySelectorAll("input")) input.checked = chosen.includes(input.value);
  if (key) [...element.querySelectorAll("a, input")].find((e) => (e.value || e.getAttribute("href")) === key)?.focus();
  const pre = element.querySelector("pre");
  if (pre && scrolled) pre.scrollTop = "follow" in element.dataset && atEnd ? pre.scrollHeight : top;
  showState(element.querySelector("[data-state]")?.dataset.state);
}

// The badge and the buttons of a run follow its state.
function showState(state) {
  if (!state) return;
  const badge = document.getElementById("state");
  badge.textContent = state;
  badge.className = `badge ${state.replace(" ", "-")}`;
  for (const button of document.querySelectorAll("[data-shown-in]")) {
    button.hidden = !button.dataset.shownIn.split(" ").includes(state);
  }
}

// data-needs="NAME" data-least="N": a button that needs N chosen boxes of that name.
function updateNeeds() {
  for (const button of document.querySelectorAll("[data-needs]")) {
    const count = document.querySelectorAll(`input[name="${button.dataset.needs}"]:checked`).length;
    button.disabled = count < Number(button.dataset.least);
  }
}

document.addEventListener("change", (event) => {
  updateNeeds();
  if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
});

async function act(button, path, values) {
  button.disabled = true;
  try {
    let answer = await post(path, values);
    if (answer.question) {
      answer = confirm(answer.question) ? await post(path, { ...values, confirmed: true }) : {};
    }
    if (answer.location) location = answer.location;
    if (answer.message) say(answer.message);
  } catch (error) {
    say(error.message, true);
  }
  button.disabled = false;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-post]");
  if (!button) return;
  const more = button.dataset.with; // the field whose value goes with it
  act(button, button.dataset.post, { run: button.dataset.run, ...(more && { [more]: document.getElementById(more).value }) });
});

document.addEventListener("submit", (event) => {
  const path = event.target.dataset.postForm;
  if (!path) return;
  event.preventDefault();
  act(event.submitter, path, Object.fromEntries(new FormData(event.target)));
});

addEventListener("pageshow", updateNeeds);
document.querySelectorAll("[data-refresh]").forEach(refreshRegularly);
document.querySelectorAll("[data-follow] pre").forEach((pre) => { pre.scrollTop = pre.scrollHeight; });

// The arrow keys turn the pages of a list.
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, textarea, select") || event.altKey || event.ctrlKey || event.metaKey) return;
  const rel = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
  if (rel) document.querySelector(`a[rel=${rel}]`)?.click();
});
