/**
 * Elements of the page. Whatever text is given becomes a text node: nothing that a job says is ever read as HTML.
 */

/** Characters that would hide or turn around what stands beside them: controls, and marks of direction. */
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** `text` with every hidden character made visible, and cut to `most` characters. */
export function plain(text, most = 4000) {
  const told = String(text ?? "").replace(/\r\n/g, "\n").replace(HIDDEN, "\ufffd");
  return told.length > most ? `${told.slice(0, most)}…` : told;
}

/**
 * A new element. `given` are attributes; a function under `onX` listens to X; undefined, null and false are left
 * out. Children are nodes or text.
 */
export function make(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) put(element, name, value);
  element.append(...children.flat().filter((child) => child != null && child !== false).map(node));
  return element;
}

function node(child) {
  return child instanceof Node ? child : document.createTextNode(plain(child));
}

function put(element, name, value) {
  if (typeof value === "function") element.addEventListener(name.slice(2), value);
  else if (value === true) element.setAttribute(name, "");
  else if (value != null && value !== false) element.setAttribute(name, plain(value));
}

/** Text of `element`, touched only when it differs: a screen reader hears changes, and a selection stays. */
export function say(element, text) {
  const told = plain(text);
  if (element.textContent !== told) element.textContent = told;
}

/** An attribute, touched only when it differs; null takes it away. */
export function mark(element, name, value) {
  if (value == null || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

/**
 * The children of `container`, one for each of `items` in their order: those known by `key` stay (and keep focus),
 * new ones are made by `create(item)`, and every one is brought up to date by `update(element, item)`.
 */
export function keep(container, items, key, create, update = () => {}) {
  const known = new Map([...container.children].map((child) => [child.dataset.key, child]));
  let before = null;
  for (const item of items) {
    const name = String(key(item));
    const element = known.get(name) ?? create(item);
    element.dataset.key = name;
    known.delete(name);
    update(element, item);
    const place = before ? before.nextSibling : container.firstChild;
    if (element !== place) container.insertBefore(element, place);
    before = element;
  }
  for (const gone of known.values()) gone.remove();
}

/** The element with this id. Throws when the page has none: a mistake of ours, not of whoever looks. */
export function named(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no element ${id}`);
  return found;
}
