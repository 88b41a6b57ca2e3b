// On the page of the fields: a box that leaves only the rows that contain what you type.
const fieldRows = document.querySelectorAll("article table tbody tr");
if (/\/fields\/(index\.html)?$/.test(location.pathname) && fieldRows.length) {
  const box = document.createElement("input");
  box.type = "search";
  box.placeholder = "Search the fields: waiting, replay, rate ...";
  box.className = "field-search";
  box.setAttribute("aria-label", "Search the fields");
  document.querySelector("article h1").after(box);
  const show = () => {
    const words = box.value.toLowerCase().split(/\s+/);
    for (const row of fieldRows) row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
    for (const title of document.querySelectorAll("article h2")) {
      let next = title.nextElementSibling;  // a table, or what the theme has wrapped it in
      while (next && !next.matches("h2, table, :has(table)")) next = next.nextElementSibling;
      const table = next && (next.matches("table") ? next : next.querySelector("table"));
      if (table) title.hidden = table.hidden = !table.querySelector("tbody tr:not([hidden])");
    }
  };
  box.addEventListener("input", show);
  box.value = decodeURIComponent(location.hash.startsWith("#?") ? location.hash.slice(2) : "");
  show();
}
