// The data of the page, HTML elements, numbers as text, and the looks of lines.
//
// The words in the data come from files that anybody may have written. They reach the page as text nodes and attributes
// only. Plotly reads a little HTML in its labels: it gets them escaped.

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

// --- words and elements

const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
};
const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const whole = (x) => Math.round(x).toLocaleString("en");
const short = (x) => (x >= 0.001 && x < 1e6 ? String(Number(x.toPrecision(3))) : x.toPrecision(3));
const decimals = (x, n) => x.toLocaleString("en", { minimumFractionDigits: n, maximumFractionDigits: n });
const percent = (x) => `${Number((100 * x).toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 })} %`;
const densityName = (x) => (x === null ? "dense" : percent(x));
const plural = (n, word) => `${whole(n)} ${word}${n === 1 ? "" : "s"}`;
const options = (select, names) => select.replaceChildren(...names.map((n, i) => make("option", { value: i }, n)));

// Whatever scrolls says so: in words above it while it holds more than it shows, and by a shadow at each edge behind
// which something is left.
const hint = (box) => {
  const frame = make("div", { class: "scroller" }), words = make("p", { class: "hint" }, box.dataset.hint);
  box.replaceWith(words, frame);
  frame.append(box);
  const sideways = () => box.scrollWidth > box.clientWidth + 1;
  const update = () => {
    const right = box.scrollWidth - box.clientWidth - box.scrollLeft;
    const below = box.scrollHeight - box.clientHeight - box.scrollTop;
    const edges = { left: box.scrollLeft, right, above: box.scrollTop, below };
    for (const [edge, rest] of Object.entries(edges)) frame.classList.toggle(edge, rest > 1);
    words.hidden = !(box.dataset.hint.endsWith("→") ? sideways() : box.scrollHeight > box.clientHeight + 1);
  };
  box.addEventListener("scroll", update, { passive: true });
  const observer = new ResizeObserver(update);
  [box, ...box.children].forEach((one) => observer.observe(one));
};

// --- looks, as dctps/analysis/page/looks.py writes them

const SHAPES = {
  circle: "M16 3.5a4.5 4.5 0 1 0 .01 0z", square: "M12 4h8v8h-8z", diamond: "M16 2.5l5.5 5.5-5.5 5.5-5.5-5.5z",
  "triangle-up": "M16 3l5.2 9h-10.4z", "triangle-down": "M16 13l5.2-9h-10.4z",
  cross: "M14.3 3h3.4v3.3H21v3.4h-3.3V13h-3.4V9.7H11V6.3h3.3z", hexagon: "M16 3l4.6 2.5v5L16 13l-4.6-2.5v-5z",
  x: "M12.4 2.6L16 6.2l3.6-3.6 1.8 1.8L17.8 8l3.6 3.6-1.8 1.8L16 9.8l-3.6 3.6-1.8-1.8L14.2 8l-3.6-3.6z",
  star: "M16 2l1.5 4.3 4.6.1-3.7 2.8 1.4 4.4-3.8-2.6-3.8 2.6 1.4-4.4-3.7-2.8 4.6-.1z",
  "triangle-left": "M20.5 2.8l-9 5.2 9 5.2z", "triangle-right": "M11.5 2.8l9 5.2-9 5.2z",
  "diamond-tall": "M16 1.5l3.6 6.5-3.6 6.5-3.6-6.5z", pentagon: "M16 2.8l4.95 3.6-1.9 5.8h-6.1l-1.9-5.8z",
};
const BROKEN_LINE = data.looks.dense[2]; // of the dense network, and to and between collapses
const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const shade = (colour) => (colour === "text" ? colourOf("--text") : colour);
const asLook = ([colour, marker, dash]) => ({ colour: shade(colour), marker, dash });
const look = (name) => asLook(data.looks[name]);
const faded = (colour) => `${colour}2e`;

const swatch = ({ colour, marker, dash }) => {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const part = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    svg.append(element);
  };
  for (const [name, value] of [["width", 32], ["height", 16], ["aria-hidden", "true"]]) svg.setAttribute(name, value);
  const dashes = dash === "solid" ? "none" : dash.replaceAll("px", "");
  part("path", { d: "M0 8h32", stroke: colour, "stroke-width": 2, "stroke-dasharray": dashes, fill: "none" });
  if (marker) part("path", { d: SHAPES[marker], fill: colour });
  return svg;
};
