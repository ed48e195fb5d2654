// The editor of Studio's page Compose: CodeMirror with YAML, completions of the server, and the faults of a check.
import { autocompletion } from "@codemirror/autocomplete";
import { yaml } from "@codemirror/lang-yaml";
import { syntaxHighlighting } from "@codemirror/language";
import { setDiagnostics } from "@codemirror/lint";
import { ChangeSet } from "@codemirror/state";
import { EditorView } from "@codemirror/view";
import { classHighlighter } from "@lezer/highlight";
import { basicSetup } from "codemirror";

// The change between the common beginning and the common end of two texts.
function difference(old, value) {
  const shorter = Math.min(old.length, value.length);
  let begin = 0, end = 0;
  while (begin < shorter && old[begin] === value[begin]) begin++;
  while (end < shorter - begin && old.at(-1 - end) === value.at(-1 - end)) end++;
  return { from: begin, to: old.length - end, insert: value.slice(begin, value.length - end) };
}

// complete(before, after) answers with { word, options } or null; onInput is called for changes by the user.
export function create(parent, { text, label, onInput, complete }) {
  let isOwn = false;
  const source = async (context) => {
    if (!context.explicit && !context.matchBefore(/[\w./-]+$/)) return null;
    const { doc } = context.state;
    const found = await complete(doc.sliceString(0, context.pos), doc.sliceString(context.pos));
    return found && { from: context.pos - found.word.length, options: found.options, validFor: /^[\w./-]*$/ };
  };
  const view = new EditorView({
    doc: text,
    parent,
    extensions: [
      basicSetup,
      yaml(),
      syntaxHighlighting(classHighlighter),
      autocompletion({ override: [source] }),
      EditorView.contentAttributes.of({ "aria-label": label, spellcheck: "false", tabindex: "0" }),
      EditorView.updateListener.of((update) => {
        if (!update.docChanged) return;
        since = since.compose(update.changes);
        if (!isOwn) onInput();
      }),
    ],
  });
  // The text that the server works on, and what the user has changed since it was sent.
  let sent = view.state.doc, since = ChangeSet.empty(sent.length);
  const change = (changes) => {
    isOwn = true;
    view.dispatch({ changes });
    isOwn = false;
  };
  return {
    get value() { return view.state.doc.toString(); },
    set value(value) { change(difference(this.value, value)); },
    send() {
      sent = view.state.doc;
      since = ChangeSet.empty(sent.length);
      return sent.toString();
    },
    // Makes the server's changes of the text that was sent; tells whether the user has typed something meanwhile.
    receive(value) {
      const isTyped = !since.empty;
      change(ChangeSet.of(difference(sent.toString(), value), sent.length).map(since));
      return isTyped;
    },
    select(number) {
      const line = view.state.doc.line(Math.min(Math.max(number, 1), view.state.doc.lines));
      view.dispatch({ selection: { anchor: line.from, head: line.to }, scrollIntoView: true });
      view.focus();
    },
    show(faults) {
      const places = faults.filter((fault) => fault.line && fault.line <= view.state.doc.lines);
      view.dispatch(setDiagnostics(view.state, places.map(({ line, message }) => {
        const { from, to, text: content } = view.state.doc.line(line);
        return { from: from + content.search(/\S|$/), to, severity: "error", message };
      })));
    },
  };
}
