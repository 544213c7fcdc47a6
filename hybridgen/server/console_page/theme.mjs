// Light, dark, or as the system has it.

import { keep, recall } from "./storage.mjs";

const THEMES = ["auto", "light", "dark"];
const NAMES = { auto: "as the system has them", light: "light", dark: "dark" };
const PLACE = "hybridgen-theme";

function stored() {
  const theme = recall("localStorage", PLACE);
  return THEMES.includes(theme) ? theme : "auto";
}

function use(theme) {
  document.documentElement.dataset.theme = theme;
  keep("localStorage", PLACE, theme);
}

/** Let `button` go through the themes. */
export function connectTheme(button) {
  const show = () => {
    const theme = document.documentElement.dataset.theme;
    button.textContent = `◐ ${theme[0].toUpperCase()}${theme.slice(1)}`;
    button.setAttribute("aria-label", `Colours: ${NAMES[theme]}`);
  };
  button.addEventListener("click", () => {
    use(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
    show();
  });
  show();
}

document.documentElement.dataset.theme = stored();
