// The conversation with a run's model.
"use strict";

const chat = document.getElementById("chat"), conversation = document.getElementById("conversation");
let isNew = true;

function add(role, text) {
  const turn = document.createElement("li");
  turn.className = `turn ${role}`;
  turn.append(Object.assign(document.createElement("span"), { className: "role", textContent: role }));
  turn.append(Object.assign(document.createElement("pre"), { textContent: text }));
  conversation.append(turn);
  turn.scrollIntoView({ block: "nearest" });
  return turn;
}

chat.addEventListener("submit", async (event) => {
  event.preventDefault();
  const { message, before } = chat.elements, send = chat.querySelector("[type=submit]");
  const values = { run: chat.dataset.run, message: message.value, before: before.checked, is_new: isNew };
  send.disabled = true;
  let turn;
  try {
    if (isNew) {
      const { question } = await post("/run/say", values);
      if (!confirm(question)) return;
      values.confirmed = true;
    }
    turn = [add("user", message.value), add("assistant", "...")];
    const { answer } = await post("/run/say", values);
    turn[1].querySelector("pre").textContent = answer || "(empty)";
    isNew = false;
    message.value = "";
  } catch (error) {
    turn?.forEach((each) => each.remove());
    isNew = true;
    say(error.message, true);
  } finally {
    before.disabled = !isNew;
    send.disabled = false;
    message.focus();
  }
});
chat.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) chat.requestSubmit();
});
document.getElementById("new-chat").addEventListener("click", async () => {
  await post("/run/end-chat", {}).catch(() => null);
  conversation.replaceChildren();
  isNew = true;
  chat.elements.before.disabled = false;
  chat.elements.message.focus();
});
