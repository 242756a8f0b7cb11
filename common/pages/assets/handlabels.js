// What a viewer says of clips by hand: keep or reject. Kept in the browser, saved as a file.

// `known`: ids of the page's clips. `changed()` is called after every label.
function makeHandLabels(known, changed) {
  const key = `vfm labels ${location.pathname}`;
  const labels = new Map(); // Clip id to whether it shall be kept.
  const there = new Set(known);
  const read = () => {
    labels.clear();
    try {
      for (const [id, keep] of JSON.parse(localStorage.getItem(key) ?? "[]")) {
        if (there.has(id)) labels.set(id, keep === true);
      }
    } catch { /* No storage, or not ours: labels last as long as the page. */ }
  };
  read();
  // The same page in another window, whose labels may also come later than this one is opened.
  window.addEventListener("storage", (event) => {
    if (event.key !== key) return;
    read();
    changed();
  });
  const store = () => {
    try {
      localStorage.setItem(key, JSON.stringify([...labels]));
    } catch { /* As above. */ }
    changed();
  };
  return {
    get: (id) => labels.get(id),
    // The same label again takes it back.
    set(id, keep) {
      if (labels.get(id) === keep) labels.delete(id);
      else labels.set(id, keep);
      store();
    },
    clear() {
      labels.clear();
      store();
    },
    ids: () => labels,
    csv: () => ["clip_id,keep", ...[...labels].map(([id, keep]) => `${csvField(id)},${keep ? 1 : 0}`), ""].join("\n"),
  };
}

const csvField = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

function saveFile(name, text) {
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type: "text/plain" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// A button that copies the text of `source()` and says so.
function copyButton(name, source) {
  const button = element("button", { type: "button" }, name);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(source());
    } catch {
      // Where there is no clipboard for pages, the old way: select, then copy.
      const box = element("textarea", { class: "copied" }, source());
      document.body.append(box);
      box.select();
      document.execCommand("copy");
      box.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = name; }, 1200);
  });
  return button;
}
