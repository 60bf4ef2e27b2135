// A search field over a table: only the rows whose text has the words stay visible, and the type of
// exactly this name comes first.
// The address sets it too: architectures.html?type=qwen2.
const box = document.querySelector(".searchable");
const field = box.querySelector("input");
const table = box.querySelector("table");
const rows = [...table.tBodies];

function search() {
  table.append(...rows);
  const same = rows.find((row) => row.querySelector("td").textContent === field.value.trim());
  if (same) table.tHead.after(same);
  const words = field.value.toLowerCase().split(/\s+/);
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
  box.querySelector("output").textContent =
    `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
}

field.value = new URLSearchParams(location.search).get("type") ?? "";
field.addEventListener("input", search);
search();
