// Numbers on hover, zoom, linked marks, a choice among variants, and pictures to keep. The page works without it, too.
"use strict";
(() => {
  const tip = document.body.appendChild(Object.assign(document.createElement("div"), { id: "tip" }));
  const saved = [];
  for (const title of document.querySelectorAll("svg title")) {
    const owner = title.parentElement;
    owner.dataset.tip = title.textContent;
    saved.push([owner, title]);
    title.remove();
  }

  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest ? event.target.closest("[data-tip]") : null;
    tip.style.display = mark ? "block" : "none";
    if (!mark) return;
    tip.textContent = mark.dataset.tip;
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
  });
  const mark = (event, on) => {
    const key = event.target.dataset && event.target.dataset.key;
    if (!key) return;
    for (const other of event.target.closest("figure").querySelectorAll(`[data-key="${CSS.escape(key)}"]`))
      other.classList.toggle("on", on);
  };
  document.addEventListener("pointerover", (event) => mark(event, true));
  document.addEventListener("pointerout", (event) => mark(event, false));

  const rounded = (step) => {
    const power = 10 ** Math.floor(Math.log10(step));
    return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= step * 0.999);
  };

  // Zoom along x: the group "plot" is stretched, the group "ticks" drawn anew with round numbers.
  function alongX(svg, view) {
    const [left, right, from, to] = ["left", "right", "from", "to"].map((name) => Number(svg.dataset[name]));
    const scale = (to - from) / (view.to - view.from);
    const shift = left - ((view.from - from) / (to - from)) * (right - left) * scale - left * scale;
    svg.querySelector(".plot").setAttribute("transform", `matrix(${scale},0,0,1,${shift},0)`);
    for (const label of svg.querySelectorAll(".plot text.in")) {
      const [x, w, wide] = ["x", "w", "wide"].map((name) => Number(label.dataset[name]));
      const start = Math.max(x, (left - shift) / scale);  // a box that begins outside has its name at the edge
      label.setAttribute("transform", `translate(${start},0) scale(${1 / scale},1) translate(${-x},0)`);
      if (wide <= (x + w - start) * scale) label.removeAttribute("display");
      else label.setAttribute("display", "none");
    }
    const ticks = svg.querySelector(".ticks");
    const y = ticks.dataset.y;
    const step = rounded((view.to - view.from) / 8);
    const digits = Math.max(0, -Math.floor(Math.log10(step)));
    let text = "";
    for (let value = Math.ceil(view.from / step) * step; value <= view.to + step * 1e-6; value += step) {
      const x = left + ((value - view.from) / (view.to - view.from)) * (right - left);
      text += `<text x="${x.toFixed(1)}" y="${y}" text-anchor="middle">${value.toFixed(digits)}</text>`;
    }
    ticks.innerHTML = text;
  }

  function zoomable(svg) {
    const byX = svg.dataset.zoom === "x";
    const box = svg.viewBox.baseVal;
    const whole = byX ? { from: Number(svg.dataset.from), to: Number(svg.dataset.to) } : { x: 0, y: 0, w: box.width, h: box.height };
    let view = { ...whole };
    const show = () => {
      if (byX) alongX(svg, view);
      else svg.setAttribute("viewBox", `${view.x} ${view.y} ${view.w} ${view.h}`);
      svg.dataset.zoomed = byX ? String((whole.to - whole.from) / (view.to - view.from)) : String(whole.w / view.w);
    };
    const zoom = (factor, fx = 0.5, fy = 0.5) => {
      if (byX) {
        const at = view.from + fx * (view.to - view.from);
        const size = Math.min((view.to - view.from) / factor, whole.to - whole.from);
        view.from = Math.min(Math.max(at - fx * size, whole.from), whole.to - size);
        view.to = view.from + size;
      } else {
        const w = Math.min(view.w / factor, whole.w);
        const h = (w * whole.h) / whole.w;
        view = { x: view.x + fx * (view.w - w), y: view.y + fy * (view.h - h), w, h };
        view.x = Math.min(Math.max(view.x, 0), whole.w - w);
        view.y = Math.min(Math.max(view.y, 0), whole.h - h);
      }
      show();
    };
    const place = (event) => {
      const r = svg.getBoundingClientRect();
      let fx = (event.clientX - r.left) / r.width;
      if (byX) {
        const [left, right] = [Number(svg.dataset.left), Number(svg.dataset.right)];
        fx = (fx * whole_width - left) / (right - left);
      }
      return [Math.min(Math.max(fx, 0), 1), (event.clientY - r.top) / r.height];
    };
    const whole_width = box.width;
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      zoom(event.deltaY + event.deltaX < 0 ? 1.25 : 0.8, ...place(event));
    }, { passive: false });
    svg.addEventListener("dblclick", (event) => zoom(2, ...place(event)));
    let held = null;
    svg.addEventListener("pointerdown", (event) => { held = [event.clientX, event.clientY]; });
    addEventListener("pointerup", () => { held = null; });
    svg.addEventListener("pointermove", (event) => {
      if (!held) return;
      const r = svg.getBoundingClientRect();
      const [dx, dy] = [(event.clientX - held[0]) / r.width, (event.clientY - held[1]) / r.height];
      held = [event.clientX, event.clientY];
      if (byX) {
        const size = view.to - view.from;
        view.from = Math.min(Math.max(view.from - dx * size, whole.from), whole.to - size);
        view.to = view.from + size;
      } else {
        view.x = Math.min(Math.max(view.x - dx * view.w, 0), whole.w - view.w);
        view.y = Math.min(Math.max(view.y - dy * view.h, 0), whole.h - view.h);
      }
      show();
    });
    return { zoom, reset: () => { view = { ...whole }; show(); } };
  }

  function standalone(svg) {
    const copy = svg.cloneNode(true);
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    const style = document.createElementNS("http://www.w3.org/2000/svg", "style");
    style.textContent = "text{font:11px sans-serif;fill:#333}";
    copy.prepend(style);
    for (const marked of copy.querySelectorAll("[data-tip]")) {
      const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
      title.textContent = marked.dataset.tip;
      marked.append(title);
    }
    return new XMLSerializer().serializeToString(copy);
  }
  const keep = (url, name) => Object.assign(document.createElement("a"), { href: url, download: name }).click();
  function png(svg, name) {
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [2 * svg.viewBox.baseVal.width, 2 * svg.viewBox.baseVal.height];
      const context = canvas.getContext("2d");
      context.fillStyle = "#fff";
      context.fillRect(0, 0, canvas.width, canvas.height);
      context.drawImage(image, 0, 0, canvas.width, canvas.height);
      keep(canvas.toDataURL("image/png"), name);
    };
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(standalone(svg));
  }

  let number = 0;
  for (const svg of document.querySelectorAll("svg[data-zoom]")) {
    const figure = svg.closest("figure");
    const bar = figure.insertBefore(document.createElement("div"), svg);
    bar.className = "bar";
    const { zoom, reset } = zoomable(svg);
    const name = `picture-${++number}`;
    const button = (label, action, hint) =>
      bar.append(Object.assign(document.createElement("button"), { textContent: label, onclick: action, title: hint || "" }));
    button("+", () => zoom(1.6), "zoom in (also: double click, Ctrl and wheel)");
    button("−", () => zoom(1 / 1.6), "zoom out");
    button("whole", reset);
    button("SVG", () => keep("data:image/svg+xml;charset=utf-8," + encodeURIComponent(standalone(svg)), `${name}.svg`));
    button("PNG", () => png(svg, `${name}.png`));
  }

  // Of the figures of a group one is shown.
  for (const group of document.querySelectorAll("[data-choice]")) {
    const parts = [...group.children];
    if (parts.length < 2) continue;
    const select = document.createElement("select");
    parts.forEach((part, i) => { select.add(new Option(part.dataset.name, i)); part.hidden = i > 0; });
    select.onchange = () => parts.forEach((part, i) => { part.hidden = i !== Number(select.value); });
    group.prepend(select);
  }
})();
