// Long lists, a page at a time: the document holds one page of rows however many there are.

// Buttons to turn pages. `turned(first)` is called with the index of the first item to show.
function makePager(perPage, turned) {
  const back = element("button", { type: "button" }, "Previous");
  const onward = element("button", { type: "button" }, "Next");
  const place = element("span", { class: "num" });
  const node = element("nav", { class: "pager", "aria-label": "Pages" }, back, place, onward);
  let at = 0;
  let pages = 1;
  const show = () => {
    place.textContent = `${counted(at + 1)} of ${counted(pages)}`;
    back.disabled = at === 0;
    onward.disabled = at >= pages - 1;
    node.hidden = pages === 1;
  };
  const turn = (by) => {
    at = Math.min(Math.max(at + by, 0), pages - 1);
    show();
    turned(at * perPage);
  };
  back.addEventListener("click", () => turn(-1));
  onward.addEventListener("click", () => turn(1));
  const reset = (count) => {
    at = 0;
    pages = Math.max(1, Math.ceil(count / perPage));
    show();
  };
  return { node, reset };
}

// A table of `{heads, numeric, code, rows}`; nothing but `otherwise` where there are no rows.
function pagedTable({ heads, numeric, code = [], rows }, otherwise) {
  if (!rows.length) return element("p", { class: "muted" }, otherwise);
  const perPage = 50;
  const body = element("tbody");
  const fill = (first) => {
    body.replaceChildren(
      ...rows.slice(first, first + perPage).map((row) =>
        element("tr", {}, ...row.map((value, i) =>
          element("td", { class: numeric[i] ? "num" : null },
            element(code[i] ? "code" : "span", { class: "untrusted", dir: "auto" }, value))))),
    );
  };
  const pager = makePager(perPage, fill);
  pager.reset(rows.length);
  fill(0);
  const head = element("tr", {}, ...heads.map((name, i) =>
    element("th", { scope: "col", class: numeric[i] ? "num" : null }, name)));
  const table = element("table", { class: "paged" }, element("thead", {}, head), body);
  return element("div", {}, element("div", { class: "table", role: "region", "aria-label": "Table", tabindex: "0" }, table), pager.node);
}
