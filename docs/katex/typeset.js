// Typesets the formulas of a page. KaTeX lies beside this file, so that pages need no other site.
for (const place of document.querySelectorAll(".arithmatex")) {
  const formula = place.textContent.trim().replace(/^\\[([]/, "").replace(/\\[)\]]$/, "");
  katex.render(formula, place, {displayMode: place.tagName === "DIV", throwOnError: false});
}
