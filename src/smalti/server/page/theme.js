// Before anything is painted: light or dark as it was chosen last, else as the system has it.
// It is no module, because modules wait until the page is read.
try {
  const chosen = JSON.parse(localStorage.getItem("smalti.theme"));
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // A browser that keeps nothing, or keeps it otherwise: the system decides.
}
