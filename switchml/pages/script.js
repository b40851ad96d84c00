"use strict";
// Draws the charts, in the colours of the page's theme; copies command lines; switches between light and dark.
(() => {
  const root = document.documentElement;
  const colour = name => getComputedStyle(root).getPropertyValue(name).trim();

  // Of a legend beside an axis: as many columns as its longest name leaves room for; wider names are cut.
  function fitting(names, width) {
    const room = width - 60, longest = 6.5 * Math.max(1, ...names.map(name => name.length)) + 30;
    return { columns: Math.max(1, Math.floor(room / longest)), labelLimit: room - 25 };
  }
  const namesOf = spec => [spec, ...spec.layer ?? []].flatMap(one => one.encoding?.color?.scale?.domain ?? []);

  function config(names, width) {
    const [ink, dim, rule] = ["--ink", "--dim", "--rule"].map(colour);
    const text = { labelColor: dim, titleColor: dim, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal" };
    return {
      background: "transparent", font: getComputedStyle(document.body).fontFamily,
      axis: { ...text, gridColor: rule, domainColor: rule, tickColor: rule },
      axisQuantitative: { labelSeparation: 4 }, axisY: { labelLimit: innerWidth < 600 ? 130 : 330 },
      legend: { ...text, labelColor: ink, symbolType: "square", symbolOpacity: 1, orient: "top", title: null, ...fitting(names, width) },
      title: { color: ink, subtitleColor: dim, anchor: "start" },
      view: { stroke: null }, text: { color: ink, fill: ink }, style: { bound: { color: ink, fill: ink }, label: { opacity: innerWidth < 600 ? 0 : 1 } },
      header: { labelColor: ink, titleColor: dim },
    };
  }

  async function draw(figure) {
    const text = figure.querySelector("script").textContent;
    if (!text) return;  // nothing to show yet
    const spec = JSON.parse(text);
    const settings = { ast: true, renderer: spec.usermeta?.renderer ?? "svg", config: config(namesOf(spec), figure.clientWidth),
      actions: innerWidth >= 600 && { export: true, source: false, compiled: false, editor: false } };  // on a phone, over the legend
    try {
      figure.view?.finalize();
      figure.view = (await vegaEmbed(figure.querySelector("div"), spec, settings)).view;
      figure.dataset.drawn = "yes";
    } catch (error) {
      figure.querySelector("div").textContent = `This chart could not be drawn: ${error.message}`;
      console.error(error);
    }
  }
  window.drawCharts = within => Promise.all([...(within ?? document).querySelectorAll("figure.chart")].map(draw));

  const isDark = matchMedia("(prefers-color-scheme: dark)");
  const redraw = () => { root.dataset.theme ||= ""; return drawCharts(); };
  isDark.addEventListener("change", redraw);
  document.querySelector("button.theme")?.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : isDark.matches;
    root.dataset.theme = dark ? "light" : "dark";
    redraw();
  });
  document.addEventListener("click", async event => {
    if (!event.target.matches("button.copy")) return;
    const text = event.target.previousElementSibling.textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // files have no clipboard in some browsers
      const area = Object.assign(document.createElement("textarea"), { value: text });
      document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
    }
    event.target.textContent = "Copied";
    setTimeout(() => { event.target.textContent = "Copy"; }, 1500);
  });
  drawCharts();
})();
