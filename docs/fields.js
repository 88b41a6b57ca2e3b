// On the page of the fields: a box that leaves only the fields that contain what you type.
const fieldRows = document.querySelectorAll("article h2 ~ ul > li");
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
      const section = [title];  // and all that follows, up to the next title
      for (let next = title.nextElementSibling; next && next.tagName !== "H2"; next = next.nextElementSibling) section.push(next);
      const rows = section.flatMap(part => [...part.querySelectorAll(":scope > li")]);
      for (const part of section) part.hidden = rows.length > 0 && rows.every(row => row.hidden);
    }
  };
  box.addEventListener("input", show);
  box.value = decodeURIComponent(location.hash.startsWith("#?") ? location.hash.slice(2) : "");
  show();
}
