// The page on which a person chooses the better of two responses, or answers the questions of a run.
"use strict";

const place = document.getElementById("rate");
let skipped = 0;
const choices = []; // of this page: another person's are not undone

async function next() {
  const form = document.querySelector("form.filters");
  const query = new URLSearchParams(new FormData(form));
  query.set("skipped", skipped);
  const response = await fetch(`${base}/rate/pair?${query}`);
  if (response.ok) place.innerHTML = await response.text();
  else say("Studio has no further pair.", true);
}

async function choose(button) {
  const pair = document.getElementById("pair").dataset;
  if (pair.question) return answer({ chosen: button.dataset.choice, rejected: button.dataset.other });
  try {
    const choice = {
      run: pair.run, set: pair.set, file: pair.file, step: pair.step, group: pair.group,
      chosen: button.dataset.choice, rejected: button.dataset.other,
    };
    await post("/rate/choose", choice);
    choices.push(choice);
    await next();
  } catch (error) {
    say(error.message, true);
  }
}

async function answer(values) {
  const { run, question } = document.getElementById("pair").dataset;
  try {
    await post("/rate/answer", { run, id: question, ...values });
  } catch (error) {
    say(error.message, true);
  }
  await next();
}

function submit() {
  const scores = {};
  for (const field of place.querySelectorAll("[data-score]")) {
    const chosen = field.querySelector("input:checked");
    if (chosen) scores[field.dataset.score] = Number(chosen.value);
  }
  if (Object.keys(scores).length) answer({ scores });
  else say("Give at least one response a score, or skip the question.", true);
}

function skip() {
  if (document.getElementById("pair").dataset.question) return answer({});
  skipped += 1;
  return next();
}

async function undo() {
  try {
    if (!choices.length) return say("No choice of this page is left to undo.", true);
    say((await post("/rate/undo", choices.pop())).message);
    await next();
  } catch (error) {
    say(error.message, true);
  }
}

place.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.choice) choose(button);
  if (button.id === "skip") skip();
  if (button.id === "submit") submit();
  if (button.id === "undo") undo();
});
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const buttons = place.querySelectorAll("[data-choice]");
  if (event.key === "1" || event.key === "2") buttons[Number(event.key) - 1]?.click();
  if (event.key === "s") document.getElementById("skip")?.click();
  if (event.key === "u") document.getElementById("undo")?.click();
});
setInterval(() => { if (document.getElementById("no-question")) next(); }, 3000);
