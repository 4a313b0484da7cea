/* Runs in every page before its own scripts: what the tests ask of the document. */

window.checks = {
  violations: [],
  stops: [],

  /** Elements that can come only from text rendered as HTML, and links to elsewhere. */
  intruders() {
    const isOwn = ({ href, protocol }) => protocol === "blob:" || new URL(href, location).origin === location.origin;
    const isStrange = (one) =>
      ["img", "iframe", "object", "embed", "base", "frame", "template"].includes(one.localName) ||
      (["script", "link", "style"].includes(one.localName) && !one.closest("head")) ||
      (one.localName === "a" && one.hasAttribute("href") && !isOwn(one)) ||
      [...one.attributes].some(({ name }) => name.startsWith("on"));
    return [...document.querySelectorAll("*")].filter(isStrange).map((one) => one.outerHTML.slice(0, 200));
  },

  /** Every text node, title and label in an element. */
  texts(selector) {
    const found = [];
    const walker = document.createTreeWalker(document.querySelector(selector), NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (node.nodeType === Node.TEXT_NODE) found.push(node.data);
      else for (const name of ["title", "aria-label", "placeholder"]) if (node.hasAttribute(name)) found.push(`${name}=${node.getAttribute(name)}`);
    }
    return found;
  },

  /** The controls that Tab should reach, each with a number; of radio buttons, the checked one. Empties `stops`. */
  controls() {
    checks.stops = [];
    const named = (one) => `${one.localName} ${one.className} ${(one.ariaLabel ?? one.textContent ?? "").trim().slice(0, 40)}`;
    return [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")]
      .filter((one) => one.tabIndex >= 0 && !one.disabled && one.checkVisibility({ visibilityProperty: true }))
      .filter((one) => one.type !== "radio" || one.checked)
      .map((one, number) => {
        one.dataset.number = number;
        return { number, name: named(one) };
      });
  },

  /** What reaches beyond the window and is not in something that scrolls or cuts. */
  tooWide() {
    const isCut = (one) => {
      for (let outer = one.parentElement; outer && outer !== document.body; outer = outer.parentElement) {
        if (getComputedStyle(outer).overflowX !== "visible") return true;
      }
      return false;
    };
    const main = document.querySelector("main");
    const sideways = [document.scrollingElement, main].filter((one) => one.scrollWidth > innerWidth).map((one) => `${one.localName} scrolls sideways`);
    const beyond = [...document.querySelectorAll("body, main, main *, aside, dialog, dialog *")].filter((one) => {
      const { left, right, width } = one.getBoundingClientRect();
      return width && one.checkVisibility() && (right > innerWidth + 1 || left < -1) && !isCut(one);
    });
    return [...sideways, ...beyond.slice(0, 5).map((one) => `${one.localName}.${one.className}`)];
  },
};

/* Adds a numbered control that gets the focus to `stops`, with whether its focus is seen. */
addEventListener("focusin", ({ target }) => {
  const number = Number(target.dataset.number ?? NaN);
  if (Number.isNaN(number) || window.checks.stops.at(-1)?.number === number) return;
  const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(target);
  const isSeen = (outlineStyle !== "none" && parseFloat(outlineWidth) > 0) || boxShadow !== "none";
  window.checks.stops.push({ number, isSeen });
});

addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI, sample }) => {
  window.checks.violations.push(`${violatedDirective}: ${blockedURI} ${sample}`);
});
