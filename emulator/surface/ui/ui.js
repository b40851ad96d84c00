"use strict";
// Sends what is chosen, shows what comes back. Texts become text nodes, never markup.
addEventListener("DOMContentLoaded", () => {
  const form = document.querySelector("#controls"), axes = document.querySelector("#axes");
  const section = name => document.querySelector(`section#${name}`);
  const make = (tag, text = "", more = {}) => Object.assign(document.createElement(tag), { textContent: text, ...more });
  const chosen = () => Object.fromEntries([...new FormData(form)].filter(([, value]) => value.trim() !== ""));

  function table({ columns, rows }) {
    const row = (tag, cells) => { const line = make("tr"); line.append(...cells.map(cell => make(tag, cell))); return line; };
    const made = make("table");
    made.append(row("th", columns), ...rows.map(cells => row("td", cells)));
    return made;
  }

  function chart(figure, spec) {
    figure.querySelector("script").textContent = JSON.stringify(spec);
    delete figure.dataset.drawn;
    return figure;
  }

  function newChart(title, spec) {
    const box = make("div"), figure = make("figure", "", { className: "chart" });
    figure.append(make("script", "", { type: "application/json" }), make("div"));
    box.append(make("h3", title), chart(figure, spec));
    return box;
  }

  const latest = {};
  async function answer(name, body, show) {
    const here = section(name), number = latest[name] = (latest[name] ?? 0) + 1;
    const shown = here.querySelector(".shown"), alert = here.querySelector("[role=alert]");
    shown.classList.add("busy");
    let found;
    try {
      const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
      found = await (await fetch({ job: "emulate" }[name] ?? name, options)).json();
    } catch (error) {
      found = { error: `switchml ui does not answer: ${error.message}` };
    }
    if (number !== latest[name]) return;  // something else was chosen meanwhile
    alert.textContent = found.error ?? "";
    const command = here.querySelector(".command");
    if (command) {  // what is refused has none
      command.hidden = !found.command;
      command.querySelector("code").textContent = found.command ?? "";
    }
    if (!found.error) {
      await show(found, here, shown);
      shown.classList.remove("busy");
    }
    here.dataset.answered = number;
  }

  function emulate() {
    history.replaceState(null, "", `#${new URLSearchParams(chosen())}`);
    return answer("job", { options: chosen() }, async (found, here, shown) => {
      const lines = found.choice.flatMap(line => [line, document.createElement("br")]);
      shown.querySelector(".choice").replaceChildren(...lines);
      shown.querySelector(".splits").replaceChildren(...(found.splits ? [table(found.splits)] : []));
      shown.querySelector(".tiles").replaceChildren(...found.tiles.map(([name, value]) => {
        const tile = make("div", "", { className: "tile" });
        tile.append(make("b", value), make("span", name));
        return tile;
      }));
      for (const name of ["breakdown", "memory", "timeline"]) chart(document.querySelector(`#${name}`), found[name]);
      shown.querySelector("ul").replaceChildren(...found.assumptions.map(line => make("li", line)));
      await drawCharts(shown);
    });
  }

  function sweep() {
    const { along, values, by, of } = Object.fromEntries(new FormData(axes));
    const swept = by ? { [along]: values, [by]: of } : { [along]: values };
    return answer("sweep", { options: chosen(), sweep: swept }, async (found, here, shown) => {
      shown.querySelector(".charts").replaceChildren(...found.charts.map(one => newChart(one.title, one.spec)));
      shown.querySelector(".wide").replaceChildren(table(found.table));
      await drawCharts(shown);
    });
  }

  const secret = document.querySelector("#secret");
  const status = () => answer("status", { secret: secret.value }, (found, here, shown) => {
    shown.replaceChildren(make("p", found.head), ...found.tables.flatMap(one => {
      const wide = make("div", "", { className: "wide" });
      wide.append(table(one));
      return [make("h3", one.title), wide, ...one.notes.map(note => make("p", note, { className: "dim" }))];
    }));
  });

  let timer, watching;
  form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(emulate, 250); });
  form.addEventListener("submit", event => { event.preventDefault(); emulate(); });
  axes.addEventListener("submit", event => { event.preventDefault(); sweep(); });
  secret.form.addEventListener("submit", event => { event.preventDefault(); status(); });
  document.querySelector("nav").addEventListener("click", event => {
    const name = event.target.dataset.tab;
    if (!name) return;
    for (const tab of document.querySelectorAll("nav button")) tab.setAttribute("aria-selected", tab.dataset.tab === name);
    for (const each of document.querySelectorAll(".results section")) each.hidden = each.id !== name;
    form.hidden = name === "status";
    clearInterval(watching);
    if (name === "status") { status(); watching = setInterval(status, 2000); }
    if (name === "sweep" && !section("sweep").dataset.answered) sweep();
    if (name === "job") emulate();
  });
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    const control = form.elements.namedItem(name);
    if (control) control.value = value;
  }
  emulate();
});
