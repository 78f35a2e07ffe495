"use strict";
{
  const box = document.getElementById("words");
  const counter = document.getElementById("shown");
  const all = [...document.querySelectorAll("[data-of]")].map((e) => [e, e.dataset.of.toLowerCase()]);
  const apply = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const [element, text] of all) {
      element.hidden = !words.every((word) => text.includes(word));
      count += !element.hidden;
    }
    counter.textContent = words.length ? `${count} of ${all.length}` : "";
    history.replaceState(null, "", box.value ? "?show=" + encodeURIComponent(box.value) : location.pathname);
  };
  document.getElementById("filter").addEventListener("submit", (event) => event.preventDefault());
  box.value = new URLSearchParams(location.search).get("show") || "";
  box.addEventListener("input", apply);
  if (box.value) apply();
}
