"use strict";
(() => {
  const charts = [...document.querySelectorAll("figure.chart")];
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.body.appendChild(document.createElement("div"));
  tip.className = "tip";
  tip.hidden = true;

  function number(value) {
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace("+", "");
    const decimals = Math.max(0, 3 - Math.floor(Math.log10(size)));
    return value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  }
  function seconds(value) {
    if (value < 0.9995) return (value * 1000).toFixed(0) + " ms";
    if (value < 59.95) return value.toFixed(value < 9.995 ? 2 : 1) + " s";
    const whole = Math.round(value);
    if (whole < 3600) return Math.floor(whole / 60) + " min " + (whole % 60) + " s";
    return Math.floor(whole / 3600) + " h " + Math.floor((whole % 3600) / 60) + " min";
  }
  function bytes(value) {
    for (const unit of ["B", "KiB", "MiB", "GiB"]) {
      if (Math.abs(value) < 1024) return value.toFixed(unit === "B" ? 0 : 1) + " " + unit;
      value /= 1024;
    }
    return value.toFixed(1) + " TiB";
  }
  function text(value, format) {
    if (value === null || value === undefined) return "not finite";
    if (format === "fraction") return value.toFixed(3);
    if (format === "count") return Math.round(value).toLocaleString("en");
    if (format === "seconds") return seconds(value);
    if (format === "bytes") return bytes(value);
    return number(value);
  }
  function nearest(xs, x) {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle; else high = middle;
    }
    return Math.abs(xs[high] - x) < Math.abs(xs[low] - x) ? high : low;
  }
  function line(colour, name, value) {
    const row = document.createElement("div");
    const label = document.createElement("span");
    if (colour !== null) label.appendChild(document.createElement("i")).className = "b" + colour;
    label.append(name);
    const shown = document.createElement("b");
    shown.textContent = value;
    row.append(label, shown);
    return row;
  }
  function showTip(rows, x, y) {
    tip.replaceChildren(...rows);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 16 + box.width > innerWidth - 8 ? x - box.width - 16 : x + 16;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = Math.min(Math.max(8, y + 14), innerHeight - box.height - 8) + "px";
  }

  const steps = (chart) => data[charts.indexOf(chart)];
  const shown = new Map(charts.map((chart) => [chart, chart.querySelector(".value").textContent]));
  const family = (chart) => chart.closest("section").id === "startup" ? "startup" : "steps";

  function mark(chart, step) {
    const cursor = chart.querySelector(".cursor"), values = chart.querySelector(".value");
    const own = steps(chart);
    if (step === null) {
      cursor.classList.remove("on");
      values.textContent = shown.get(chart);
      return;
    }
    if (!own.s) return;
    const share = (step - own.x[0]) / (own.x[1] - own.x[0]);
    cursor.classList.toggle("on", share >= 0 && share <= 1);
    cursor.style.left = share * 100 + "%";
    if (own.s.length !== 1 || !own.s[0].x.length) return;
    const at = nearest(own.s[0].x, step);
    const small = document.createElement("small");
    small.textContent = "step " + own.s[0].x[at].toLocaleString("en");
    values.replaceChildren(small, text(own.s[0].y[at], own.f));
  }
  function markAll(source, step) {
    for (const chart of charts) if (family(chart) === family(source)) mark(chart, step);
  }
  function readOut(chart, share, x, y) {
    const own = steps(chart);
    if (own.s) {
      const wanted = own.x[0] + share * (own.x[1] - own.x[0]);
      const filled = own.s.filter((series) => series.x.length);
      if (!filled.length) return null;
      const step = filled[0].x[nearest(filled[0].x, wanted)];
      markAll(chart, step);
      if (filled.length > 1) {
        const rows = filled.map((s) => line(s.c, s.n, text(s.y[nearest(s.x, step)], own.f)));
        showTip([line(null, "step " + step.toLocaleString("en"), ""), ...rows], x, y);
      }
      return (step - own.x[0]) / (own.x[1] - own.x[0]);
    }
    const at = Math.min(own.r.length - 1, Math.max(0, Math.floor(share * own.r.length)));
    const [first, last] = own.r[at];
    const name = first === last ? "step " + first : "steps " + first + " to " + last;
    const total = own.l.reduce((sum, layer) => sum + layer.y[at], 0);
    const rows = own.l.filter((layer) => layer.y[at] > 0).map((layer) => line(layer.c, layer.n, text(layer.y[at], own.f)));
    showTip([line(null, name, text(total, own.f)), ...rows.reverse()], x, y);
    const cursor = chart.querySelector(".cursor");
    cursor.classList.add("on");
    cursor.style.left = ((at + 0.5) / own.r.length) * 100 + "%";
    return (at + 0.5) / own.r.length;
  }
  function leave(chart) {
    tip.hidden = true;
    markAll(chart, null);
    mark(chart, null);
  }

  for (const chart of charts) {
    const area = chart.querySelector(".area");
    let share = null;
    area.addEventListener("pointermove", (event) => {
      const box = area.getBoundingClientRect();
      share = readOut(chart, (event.clientX - box.left) / box.width, event.clientX, event.clientY);
    });
    area.addEventListener("pointerleave", () => leave(chart));
    chart.addEventListener("blur", () => leave(chart));
    chart.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      const own = steps(chart), box = area.getBoundingClientRect();
      const places = own.s
        ? own.s[0].x.map((x) => (x - own.x[0]) / (own.x[1] - own.x[0]))
        : own.r.map((_, i) => (i + 0.5) / own.r.length);
      const at = share === null ? (move > 0 ? -1 : places.length) : nearest(places, share);
      const next = places[Math.min(places.length - 1, Math.max(0, at + move))];
      share = readOut(chart, next, box.left + next * box.width, box.top);
    });
  }

  for (const sheet of document.querySelectorAll(".sheet")) {
    sheet.addEventListener("pointermove", (event) => {
      const bar = event.target.closest(".bar");
      if (!bar) { tip.hidden = true; return; }
      const who = bar.closest(".row").querySelector(".who").textContent;
      showTip([
        line(null, bar.dataset.c.replaceAll("_", " "), who),
        line(null, "starts after", seconds(+bar.dataset.s)),
        line(null, "takes", seconds(+bar.dataset.d)),
      ], event.clientX, event.clientY);
    });
    sheet.addEventListener("pointerleave", () => { tip.hidden = true; });
  }
  for (const group of document.querySelectorAll(".steps")) {
    group.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      for (const other of group.querySelectorAll("button")) other.setAttribute("aria-pressed", other === button);
      for (const sheet of group.parentElement.querySelectorAll(".sheet")) sheet.hidden = sheet.dataset.step !== button.dataset.step;
    });
  }
  for (const block of document.querySelectorAll(".code")) {
    if (!navigator.clipboard) break;
    const button = block.appendChild(document.createElement("button"));
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.querySelector("code").textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
})();
