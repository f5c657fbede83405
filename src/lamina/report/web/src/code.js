// Panes of code: CodeMirror, read only, with lines marked from outside.
import { EditorState, StateEffect, StateField } from "@codemirror/state";
import {
  Decoration,
  EditorView,
  drawSelection,
  highlightActiveLine,
  highlightActiveLineGutter,
  keymap,
  lineNumbers,
} from "@codemirror/view";
import { defaultKeymap } from "@codemirror/commands";
import { HighlightStyle, StreamLanguage, syntaxHighlighting } from "@codemirror/language";
import { search, searchKeymap } from "@codemirror/search";
import { cpp } from "@codemirror/lang-cpp";
import { python } from "@codemirror/lang-python";
import { tags } from "@lezer/highlight";

const assembly = StreamLanguage.define({
  name: "assembly",
  token(stream) {
    if (stream.sol() && stream.match(/^\S.*:$/)) return "labelName";
    if (stream.eatSpace()) return null;
    if (stream.match(/^(\/\/|;).*/)) return "comment";
    if (stream.match(/^[0-9a-f]+:/)) return "meta";
    if (stream.match(/^%?(r|e)?(ax|bx|cx|dx|si|di|sp|bp|ip)\b|^r\d+[dwb]?\b|^[xyz]mm\d+|^k\d\b|^%\w+\d*/)) return "variableName";
    if (stream.match(/^-?(0x[0-9a-f]+|\d+)\b/)) return "number";
    if (stream.match(/^(BYTE|WORD|DWORD|QWORD|XMMWORD|YMMWORD|ZMMWORD|PTR)\b/)) return "typeName";
    if (stream.match(/^[.\w@$]+/)) return "keyword";
    stream.next();
    return null;
  },
});

const colours = HighlightStyle.define([
  { tag: [tags.keyword, tags.controlKeyword, tags.definitionKeyword], color: "var(--code-keyword)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--code-string)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--code-number)" },
  { tag: [tags.comment, tags.meta], color: "var(--code-comment)", fontStyle: "italic" },
  { tag: [tags.typeName, tags.className, tags.standard(tags.typeName)], color: "var(--code-type)" },
  { tag: [tags.function(tags.variableName), tags.labelName], color: "var(--code-function)" },
]);

const LANGUAGES = { python: () => python(), cpp: () => cpp(), asm: () => assembly, ptx: () => assembly };

const look = EditorView.theme({
  "&": { height: "100%", fontSize: "12px", backgroundColor: "transparent" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.5" },
  ".cm-gutters": { backgroundColor: "transparent", color: "var(--faint)", border: "none" },
  ".cm-activeLine": { backgroundColor: "transparent" },
  ".cm-activeLineGutter": { backgroundColor: "transparent", color: "var(--text)" },
  "&.cm-focused": { outline: "none" },
});

const mark = StateEffect.define();
const marks = StateField.define({
  create: () => Decoration.none,
  update(value, transaction) {
    for (const effect of transaction.effects) if (effect.is(mark)) return effect.value;
    return transaction.docChanged ? Decoration.none : value;
  },
  provide: (field) => EditorView.decorations.from(field),
});
const CLASSES = {
  hover: Decoration.line({ class: "line-hover" }),
  chosen: Decoration.line({ class: "line-chosen" }),
  pinned: Decoration.line({ class: "line-pinned" }),
};

export const nonce = document.querySelector("style[nonce]")?.nonce ?? "";

// Parsing more than so many characters in the background makes jumps wait; such a text is shown without colours.
const MOST_COLOURED = 1_000_000;

export function plainExtensions(language, length = 0) {
  return [
    EditorView.cspNonce.of(nonce),
    EditorState.readOnly.of(true),
    lineNumbers(),
    syntaxHighlighting(colours),
    look,
    length > MOST_COLOURED ? [] : (LANGUAGES[language] ?? LANGUAGES.python)(),
  ];
}

export class Pane {
  constructor(parent, { onHover, onChoose, label }) {
    this.handlers = { onHover, onChoose };
    this.shown = null;
    this.states = new Map();
    this.view = new EditorView({ parent, state: EditorState.create({ extensions: EditorView.cspNonce.of(nonce) }) });
    this.name = label;
    this.hovered = 0;
  }

  destroy() {
    this.view.destroy();
  }

  show(text) {
    if (this.shown === text) return;
    if (this.shown) this.states.set(this.shown.number, this.view.state);
    this.shown = text;
    this.view.setState(this.states.get(text.number) ?? this.#state(text));
    if (this.states.size > 24) this.states.delete(this.states.keys().next().value);
  }

  #state(text) {
    const events = EditorView.domEventHandlers({
      mousemove: (event, view) => this.#hover(view.posAtCoords({ x: event.clientX, y: event.clientY }, false)),
      mouseleave: () => this.#leave(),
      click: (event, view) => {
        const position = view.posAtCoords({ x: event.clientX, y: event.clientY }, false);
        this.handlers.onChoose(view.state.doc.lineAt(position).number);
      },
      keydown: (event, view) => {
        if (event.key !== "Enter") return false;
        this.handlers.onChoose(view.state.doc.lineAt(view.state.selection.main.head).number);
        return true;
      },
    });
    return EditorState.create({
      doc: text.text,
      extensions: [
        ...plainExtensions(text.language, text.text.length),
        highlightActiveLine(),
        highlightActiveLineGutter(),
        drawSelection(),
        search({ top: true }),
        keymap.of([...searchKeymap, ...defaultKeymap]),
        EditorView.contentAttributes.of({ "aria-label": this.name, "aria-readonly": "true" }),
        marks,
        events,
      ],
    });
  }

  #hover(position) {
    const line = this.view.state.doc.lineAt(position).number;
    if (line === this.hovered) return;
    this.hovered = line;
    this.handlers.onHover(line);
  }

  #leave() {
    this.hovered = 0;
    this.handlers.onHover(0);
  }

  // `lines` gives line numbers by class: hover, chosen, pinned.
  mark(lines) {
    const doc = this.view.state.doc;
    const found = [];
    for (const [kind, numbers] of Object.entries(lines)) {
      for (const number of numbers ?? []) {
        if (number <= doc.lines) found.push(CLASSES[kind].range(doc.line(number).from));
      }
    }
    this.view.dispatch({ effects: mark.of(Decoration.set(found, true)) });
  }

  scrollTo(line) {
    const doc = this.view.state.doc;
    const at = doc.line(Math.min(Math.max(1, line), doc.lines)).from;
    this.view.dispatch({ selection: { anchor: at }, effects: EditorView.scrollIntoView(at, { y: "center", x: "start" }) });
  }
}
