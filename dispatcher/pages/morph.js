// Updates the content of an element to equal another one, and changes only differing nodes, so that focus, text
// selection, scroll positions, open details and figures survive an update.
// Elements are matched by id or data-key, else by order. Elements with data-keep are managed by scripts.
// A moved element keeps focus, and in browsers with `moveBefore` an open menu, too.
"use strict";
const morph = (() => {
  const move = (parent, node, place) => (parent.moveBefore ?? parent.insertBefore).call(parent, node, place);
  const keyOf = (node) => (node.nodeType === 1 ? node.id || node.dataset.key || "" : "");
  const isSame = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);
  const isReaders = (node, name) => name === "open" && (node.nodeName === "DETAILS" || node.nodeName === "DIALOG");

  // Keep unsent input, unless the server's value changes.
  const sentValue = (field) => (isBox(field) ? field.defaultChecked : field.defaultValue);
  const isBox = (field) => field.type === "checkbox" || field.type === "radio";
  const field = (from, change) => {
    const before = sentValue(from);
    const isUntouched = (isBox(from) ? from.checked : from.value) === before;
    change();
    if (from.type === "file" || (!isUntouched && sentValue(from) === before)) return;
    if (isBox(from)) from.checked = sentValue(from);
    else if (from.value !== sentValue(from)) from.value = sentValue(from);
  };
  const choice = (from, change) => {
    const wanted = () => from.querySelector("option[selected]")?.value;
    const before = wanted();
    change();
    if (wanted() !== before && wanted() !== undefined) from.value = wanted();
  };

  const attributes = (from, to) => {
    for (const { name, value } of to.attributes) {
      if (from.getAttribute(name) !== value && !isReaders(from, name)) from.setAttribute(name, value);
    }
    for (const { name } of [...from.attributes]) {
      if (!to.hasAttribute(name) && !isReaders(from, name)) from.removeAttribute(name);
    }
  };

  const node = (from, to) => {
    if (from.nodeType !== 1) {
      if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
      return;
    }
    if (from.hasAttribute("data-keep")) return;
    if (from.nodeName === "INPUT") field(from, () => attributes(from, to));
    else if (from.nodeName === "TEXTAREA") {
      field(from, () => {
        attributes(from, to);
        children(from, to);
      });
    } else if (from.nodeName === "SELECT") {
      choice(from, () => {
        attributes(from, to);
        children(from, to);
      });
    } else {
      attributes(from, to);
      children(from, to);
    }
  };

  const children = (from, to) => {
    const keyed = new Map();
    for (const child of from.childNodes) if (keyOf(child)) keyed.set(keyOf(child), child);
    let place = from.firstChild;
    for (const wanted of [...to.childNodes]) {
      const known = keyed.get(keyOf(wanted));
      if (known && isSame(known, wanted)) {
        if (known !== place) move(from, known, place);
        else place = place.nextSibling;
        node(known, wanted);
        keyed.delete(keyOf(wanted));
      } else if (!keyOf(wanted) && place && !keyOf(place) && isSame(place, wanted)) {
        const next = place.nextSibling;
        node(place, wanted);
        place = next;
      } else {
        from.insertBefore(wanted, place);
      }
    }
    while (place) {
      const next = place.nextSibling;
      place.remove();
      place = next;
    }
  };

  return (from, to) => {
    const focused = from.contains(document.activeElement) ? document.activeElement : null;
    children(from, to);
    if (focused?.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true });
  };
})();
