// A scrolling grid that holds only the items in view, however many there are.

const TALLEST_PX = 8e6; // Browsers cut off elements that are much taller; past it, scrolling is scaled.

// `make(item)` gives the element of an item, `update(element, item)` brings it up to date; elements
// are reused while their item stays in view. `rowHeight(columnWidth)` is in pixels.
function makeGrid({ label, minWidth, gap, rowHeight, make, update }) {
  const list = element("ol", { class: "grid-items" });
  const node = element("div", { class: "grid", role: "region", "aria-label": label, tabindex: "0" }, list);
  let items = [];
  let shown = new Map(); // Item to its element.
  let size = { columns: 1, width: 0, pitch: 1, total: 0, height: 0 };

  const measure = () => {
    const inner = list.clientWidth;
    const columns = Math.max(1, Math.floor((inner + gap) / (minWidth + gap)));
    const width = (inner - gap * (columns - 1)) / columns;
    const pitch = rowHeight(width) + gap;
    const total = Math.ceil(items.length / columns) * pitch;
    size = { columns, width, pitch, total, height: Math.min(total, TALLEST_PX) };
    list.style.height = `${Math.max(0, size.height - gap)}px`;
  };
  // How far the content is scrolled, in pixels of the whole content.
  const offset = () => {
    const reach = size.height - node.clientHeight;
    if (reach <= 0) return 0;
    return (node.scrollTop / reach) * (size.total - node.clientHeight);
  };
  const draw = () => {
    const top = offset();
    const shift = top - node.scrollTop;
    const view = node.clientHeight;
    const first = Math.max(0, Math.floor((top - view / 2) / size.pitch)) * size.columns;
    const last = Math.min(items.length, Math.ceil((top + view * 1.5) / size.pitch) * size.columns);
    const kept = new Map();
    for (let place = first; place < last; place += 1) {
      const item = items[place];
      const one = shown.get(item) ?? list.appendChild(make(item));
      shown.delete(item);
      kept.set(item, one);
      update(one, item);
      const row = Math.floor(place / size.columns);
      const left = (place % size.columns) * (size.width + gap);
      one.style.width = `${size.width}px`;
      one.style.transform = `translate(${left}px, ${row * size.pitch - shift}px)`;
      one.setAttribute("aria-setsize", items.length);
      one.setAttribute("aria-posinset", place + 1);
      one.dataset.place = place;
    }
    for (const one of shown.values()) one.remove();
    shown = kept;
  };
  const scrollTo = (place) => {
    const row = Math.floor(place / size.columns);
    const top = offset();
    if (row * size.pitch >= top && (row + 1) * size.pitch - gap <= top + node.clientHeight) return;
    const reach = size.height - node.clientHeight;
    const wanted = Math.max(0, row * size.pitch - (node.clientHeight - size.pitch) / 2);
    node.scrollTop = size.total > size.height ? (wanted / (size.total - node.clientHeight)) * reach : wanted;
    draw();
  };
  // Arrow keys move among the items; what is not in view yet is brought there first.
  node.addEventListener("keydown", (event) => {
    const at = event.target.closest?.("[data-place]")?.dataset.place;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -size.columns, ArrowDown: size.columns };
    if (at === undefined || !(event.key in steps)) return;
    const place = Number(at) + steps[event.key];
    event.preventDefault();
    if (place < 0 || place >= items.length) return;
    scrollTo(place);
    shown.get(items[place])?.querySelector("button")?.focus({ preventScroll: true });
  });
  node.addEventListener("scroll", draw, { passive: true });
  new ResizeObserver(() => { measure(); draw(); }).observe(node);
  return {
    node,
    // Other items; the place of scrolling stays if `keep`.
    set(wanted, keep = false) {
      items = wanted;
      measure();
      if (!keep) node.scrollTop = 0;
      draw();
    },
    draw,
    scrollTo,
  };
}
