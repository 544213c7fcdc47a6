// Elements with their attributes and children; every text stays a text.

const SVG = "http://www.w3.org/2000/svg";

export function byId(id) {
  return document.getElementById(id);
}

export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svgElement(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Set a text only where it differs: what did not change is not read out again. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Fill a <dl> with [term, text] pairs, in place. */
export function setFigures(list, pairs) {
  while (list.children.length > pairs.length) list.lastElementChild.remove();
  pairs.forEach(([term, text], index) => {
    const pair =
      list.children[index] ?? list.appendChild(element("div", {}, element("dt"), element("dd")));
    setText(pair.firstElementChild, term);
    setText(pair.lastElementChild, text);
  });
}

/** Call `work` once in the next frame, however often it is asked for. */
export function everyFrame(work) {
  return gathered(work, requestAnimationFrame);
}

/** Call `work` at most once in so many milliseconds, and after the last time that it is asked for. */
export function paced(periodMs, work) {
  return gathered(work, (call) => setTimeout(call, periodMs));
}

function gathered(work, later) {
  let isAsked = false;
  return () => {
    if (isAsked) return;
    isAsked = true;
    later(() => {
      isAsked = false;
      work();
    });
  };
}
