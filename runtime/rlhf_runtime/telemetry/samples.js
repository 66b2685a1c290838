(() => {
  // Texts of models are only compared and hidden here, never written into the page.
  const samples = document.getElementsByClassName("samples")[0];
  if (!samples) return;
  const one = (name) => samples.getElementsByClassName(name)[0];
  const all = (parent, name) => [...(parent ? parent.getElementsByClassName(name) : [])];
  const query = one("query"), left = one("left"), right = one("right"), step = one("step");

  function matches(texts) {
    const wanted = query.value.trim().toLowerCase();
    return texts.some((text) => text.textContent.toLowerCase().includes(wanted));
  }
  function showEvaluation(article) {
    const answers = all(article, "answer");
    for (const answer of answers) {
      answer.hidden = answer.dataset.step !== left.value && answer.dataset.step !== right.value;
      answer.style.order = answer.dataset.step === left.value ? "0" : "1";
    }
    const shown = answers.filter((answer) => !answer.hidden);
    article.hidden = !shown.length || !matches([...all(article, "asked"), ...shown]);
  }
  // A search is over all steps.
  function showStep(article) {
    article.hidden = query.value.trim() ? !matches([article]) : article.dataset.step !== step.value;
  }
  function show() {
    const evaluated = all(one("evaluated"), "prompt"), trained = all(one("trained"), "prompt");
    evaluated.forEach(showEvaluation);
    trained.forEach(showStep);
    const articles = [...evaluated, ...trained], shown = articles.filter((article) => !article.hidden);
    one("count").textContent = shown.length + " of " + articles.length + " prompts";
  }
  query.addEventListener("input", show);
  for (const select of [left, right, step]) if (select) select.addEventListener("change", show);
  show();
})();
