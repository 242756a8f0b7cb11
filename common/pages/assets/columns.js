// Columns of numbers as `packed` in common/pages/document.py writes them: {f64: base64} and so on.

const COLUMN_KINDS = { f64: Float64Array, u8: Uint8Array, u16: Uint16Array, u32: Uint32Array };

function readColumn(column) {
  const [[kind, text]] = Object.entries(column);
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i += 1) bytes[i] = raw.charCodeAt(i);
  return new COLUMN_KINDS[kind](bytes.buffer);
}

// Places of the numbers of a column in rising order, NaN left out.
function sortedPlaces(values) {
  const places = new Uint32Array(values.length);
  let known = 0;
  for (let i = 0; i < values.length; i += 1) {
    if (!Number.isNaN(values[i])) {
      places[known] = i;
      known += 1;
    }
  }
  // Equal values keep the order of the table.
  return places.subarray(0, known).sort((a, b) => values[a] - values[b] || a - b);
}

// How many of the sorted places hold a value below `limit`, or at most `limit` if `inclusive`.
function countBelow(places, values, limit, inclusive) {
  let low = 0;
  let high = places.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    const value = values[places[middle]];
    if (value < limit || (inclusive && value === limit)) low = middle + 1;
    else high = middle;
  }
  return low;
}
