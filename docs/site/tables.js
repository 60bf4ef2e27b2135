// On a narrow screen a table that is wider than its box becomes a list: a row is a block, and each
// cell has the name of its column before it.
function stack() {
  for (const table of document.querySelectorAll(".table-wrapper table, .searchable table")) {
    const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    table.classList.remove("stacked");
    if (innerWidth > 736 || table.scrollWidth <= table.parentElement.clientWidth) continue;
    table.classList.add("stacked");
    for (const body of table.tBodies)
      for (const row of body.rows)
        for (const [place, cell] of [...row.cells].entries()) {
          cell.classList.toggle("blank", !cell.textContent.trim());
          if (cell.colSpan === 1) cell.dataset.column = names[place];
        }
  }
}

addEventListener("DOMContentLoaded", () => {
  for (const pre of document.querySelectorAll(".highlight-text pre"))
    pre.classList.toggle("table", /\S {2,}\S/.test(pre.textContent)); // it has columns
  stack();
});
addEventListener("resize", stack);
