// Chooses light or dark before the first paint: by Airflow's switch where Airflow serves the page, else by the browser.
"use strict";
(() => {
  const root = document.documentElement;
  const apply = () => {
    let choice = "system";
    if (root.dataset.themeOf === "airflow") {
      try {
        choice = localStorage.getItem("theme") || "system"; // the key of Airflow's own switch
      } catch {
        // no storage: the browser's preference
      }
    }
    root.classList.toggle("light", choice === "light");
    root.classList.toggle("dark", choice === "dark");
  };
  apply();
  // The switch is in another document of this origin: the frame's parent, or another tab.
  window.addEventListener("storage", (event) => {
    if (event.key === "theme" || event.key === null) apply();
  });
})();
