// SPDX-License-Identifier: Apache-2.0
// A field above each table that follows a mark: rows that lack a word of it are hidden.
for (const mark of document.querySelectorAll("div.searchable")) {
  const field = document.createElement("input");
  field.className = "filter";
  field.placeholder = "words that a row must have, for instance: matmul int64";
  mark.append(field);
  const rows = [];
  for (let next = mark.nextElementSibling; next && !rows.length; next = next.nextElementSibling)
    rows.push(...next.querySelectorAll("tbody tr"));
  const texts = rows.map((row) => row.textContent.toLowerCase());
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach((row, i) => (row.style.display = words.every((word) => texts[i].includes(word)) ? "" : "none"));
  });
}
