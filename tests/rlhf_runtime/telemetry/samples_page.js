// Runs samples.js on a small stand-in for a page, and prints what is shown after each action.
// node samples_page.js SCRIPT < {"tree": ..., "actions": [[class, value], ...]}
"use strict";
const { readFileSync } = require("node:fs");

class Element {
  constructor({ classes, attributes, text, children }) {
    this.classes = classes;
    this.children = children.map((child) => new Element(child));
    this.own = text;
    this.hidden = "hidden" in attributes;
    this.dataset = { step: attributes["data-step"] };
    this.style = {};
    const chosen = this.children.find((child) => child.selected) || { attribute: "" };
    this.selected = "selected" in attributes;
    this.attribute = attributes.value || "";
    this.value = chosen.attribute;
    this.listeners = {};
  }
  get textContent() { return this.own + this.children.map((child) => child.textContent).join(""); }
  set textContent(text) { this.own = text; this.children = []; }
  getElementsByClassName(name) {
    const found = this.children.flatMap((child) => child.getElementsByClassName(name));
    return this.classes.includes(name) ? [this, ...found] : found;
  }
  addEventListener(kind, listener) { this.listeners[kind] = listener; }
}

const { tree, actions } = JSON.parse(readFileSync(0, "utf-8"));
const root = new Element(tree);
const one = (name) => root.getElementsByClassName(name)[0];
const shown = () => root.getElementsByClassName("prompt").filter((article) => !article.hidden).map((article) => ({
  asked: article.getElementsByClassName("asked")[0].textContent,
  step: article.dataset.step,
  answers: article.getElementsByClassName("answer").filter((answer) => !answer.hidden)
    .sort((a, b) => a.style.order - b.style.order).map((answer) => Number(answer.dataset.step)),
}));
globalThis.document = root;
(0, eval)(readFileSync(process.argv[2], "utf-8"));
const seen = [shown()];
for (const [name, value] of actions) {
  one(name).value = value;
  one(name).listeners[name === "query" ? "input" : "change"]();
  seen.push(shown());
}
console.log(JSON.stringify({ seen, count: one("count").textContent }));
