// Shared by all pages. Text from data goes through textContent or setAttribute, never into markup.

const find = (selector, root = document) => root.querySelector(selector);
const findAll = (selector, root = document) => [...root.querySelectorAll(selector)];
const readData = (id) => JSON.parse(document.getElementById(id).textContent);

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

// A new HTML element; strings among the children become text nodes.
const element = (name, attributes = {}, ...children) =>
  build(document.createElement(name), attributes, children);

// A new SVG element.
const drawn = (name, attributes = {}, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

const counted = (value) => value.toLocaleString("en-US");

function shortNumber(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  if (size < 0.001) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}

// Seconds as `12 s`, `3 min 05 s`, `2 h 07 min`.
function spoken(seconds) {
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const two = (value) => String(value).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${counted(Math.floor(whole / 3600))} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

// A time within a video as `1:04.20`.
function clock(seconds) {
  const hundredths = Math.round(seconds * 100);
  const minutes = Math.floor(hundredths / 6000);
  return `${minutes}:${((hundredths % 6000) / 100).toFixed(2).padStart(5, "0")}`;
}

// About `wanted` round values from low to high.
function ticks(low, high, wanted) {
  const span = high - low || 1;
  const power = 10 ** Math.floor(Math.log10(span / wanted));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => span / value <= wanted);
  const values = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) {
    values.push(Number((i * step).toPrecision(12)));
  }
  return values;
}
