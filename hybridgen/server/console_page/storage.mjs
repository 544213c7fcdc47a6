// What the browser keeps; some keep nothing, and the page works there, too.

/** `kind` is "localStorage", or "sessionStorage" for what ends with the tab. */
export function recall(kind, place) {
  try {
    return window[kind].getItem(place);
  } catch {
    return null;
  }
}

export function keep(kind, place, text) {
  try {
    window[kind].setItem(place, text);
  } catch {
    // it lasts as long as the page, then
  }
}
