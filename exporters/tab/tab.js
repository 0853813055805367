// The *Tail latency* tab: an element of its own that asks Locust's web server for plain data and shows it.
// Everything that came from a user or a server is set as text; nothing is ever parsed as markup.

import { change, distribution, ms, overTime } from "./charts.js";

const PERIOD_MS = 2000;
const TAB_TITLE = "Tail latency";
const LEVELS = ["p50", "p95", "p99"];
const LINKS = {
  own: "./",
  rate: "../tailgate/rate",
  report: "report.html",
  csv: "requests.csv",
  summary: "summary.json",
};
const at = (path) => new URL(path, import.meta.url);

const SKELETON = `
<div class="page">
  <p class="simulated" hidden><strong>Simulated.</strong> These figures come from the embedded engine, not from a GPU.</p>
  <div class="head">
    <p class="about"></p>
    <nav aria-label="Pages and files of this run">
      <a class="rate" hidden>change the rate</a>
      <a class="own" target="_blank">own page</a>
      <a class="report" target="_blank" hidden>report</a>
      <a class="csv" hidden>requests as CSV</a>
      <a class="summary" hidden>summary.json</a>
    </nav>
  </div>
  <div class="status" role="status"><p class="validity"></p><ul class="reasons"></ul></div>
  <p class="verdict" hidden></p>
  <p class="stale" role="alert" hidden></p>
  <dl class="tiles" aria-label="Key figures"></dl>
  <div class="controls">
    <label for="class">Plots show</label> <select id="class"></select>
    <span class="legend"><i class="run"></i>this run <span class="of-base" hidden><i class="base"></i><b></b></span></span>
  </div>
  <div class="plots">
    <figure><figcaption>TTFT over time</figcaption><svg class="ttft time"></svg></figure>
    <figure><figcaption>TTFT distribution</figcaption><svg class="ttft shape"></svg></figure>
    <figure><figcaption>ITL over time</figcaption><svg class="itl time"></svg></figure>
    <figure><figcaption>ITL distribution</figcaption><svg class="itl shape"></svg></figure>
  </div>
  <p class="foot">Each point of a line rests on the last observations that its quantile needs: 20 for p50, 200 for p95,
    1,000 for p99. “Too few” is a quantile with fewer than ten observations beyond it.</p>
  <h2>Latencies, ms</h2>
  <div class="scroll" tabindex="0" role="region" aria-label="Latencies by class">
    <table class="figures"><thead><tr><th scope="col">Class</th><th scope="col">Metric</th><th scope="col" class="n">Count</th>
      <th scope="col" class="n">p50</th><th scope="col" class="n">p95</th><th scope="col" class="n">p99</th></tr></thead><tbody></tbody></table>
  </div>
  <h2>Workers</h2>
  <div class="scroll" tabindex="0" role="region" aria-label="Workers">
    <table class="workers"><thead><tr><th scope="col">Worker</th><th scope="col">Host</th><th scope="col">Clock</th>
      <th scope="col" class="n">In flight</th><th scope="col" class="n">CPU</th><th scope="col" class="n">Loop lag p99</th>
      <th scope="col" class="n">Packets lost</th><th scope="col">State</th></tr></thead><tbody></tbody></table>
  </div>
  <div class="errors" hidden><h2>Failed, by kind</h2><ul></ul></div>
</div>`;

function make(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

const count = (value) => value.toLocaleString("en-US");
const percent = (share, digits = 1) => (share === null || share === undefined ? "–" : `${(share * 100).toFixed(digits)}\u00a0%`);
const figure = (value) => (value >= 1000 ? count(Math.round(value)) : String(Number(value.toPrecision(4))));

class TailLatency extends HTMLElement {
  #timer = null;
  #data = null;
  #class = "";

  connectedCallback() {
    if (!this.shadowRoot) {
      const root = this.attachShadow({ mode: "open" });
      root.innerHTML = SKELETON;
      const style = document.createElement("link");
      style.rel = "stylesheet";
      style.href = at("tab.css");
      root.prepend(style);
      for (const [name, path] of Object.entries(LINKS)) this.#find(`a.${name}`).href = at(path);
      this.#find("a.own").hidden = location.pathname === at("./").pathname;
      this.#find("select").addEventListener("change", (event) => {
        this.#class = event.target.value;
        this.#ask();
      });
      new ResizeObserver(() => this.#draw()).observe(this.#find(".plots"));
    }
    this.#ask();
  }

  disconnectedCallback() {
    clearTimeout(this.#timer);
  }

  #find(selector) {
    return this.shadowRoot.querySelector(selector);
  }

  async #ask() {
    clearTimeout(this.#timer);
    if (!document.hidden) {
      try {
        const url = at("data");
        url.searchParams.set("class", this.#class);
        const answer = await fetch(url, { cache: "no-store" });
        if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
        this.#data = await answer.json();
        this.#find(".stale").hidden = true;
        this.#show();
      } catch (error) {
        const stale = this.#find(".stale");
        if (stale.hidden) stale.textContent = `No answer from Locust since ${new Date().toLocaleTimeString()} (${error.message}); these figures are old.`;
        stale.hidden = false;
      }
    }
    clearTimeout(this.#timer);
    if (this.isConnected) this.#timer = setTimeout(() => this.#ask(), PERIOD_MS);
  }

  #show() {
    const data = this.#data;
    this.#theme();
    const run = data.run;
    this.toggleAttribute("empty", !run);
    if (!run) {
      this.#find(".about").textContent = "No run yet: start one, and its tails show here.";
      return;
    }
    const facts = [run.label, run.workload, run.model, run.engine, `${run.clock ?? "unknown"} clock`];
    this.#find(".about").textContent = [...new Set(facts.filter(Boolean)), `${run.seconds.toFixed(0)} s`, run.over ? "over" : data.state].join(" · ");
    this.#find(".simulated").hidden = !run.simulated;
    this.#find("a.rate").hidden = run.over || !run.open_loop;
    for (const name of ["report", "csv", "summary"]) this.#find(`a.${name}`).hidden = !run.over;
    this.#status(data);
    this.#tiles(data);
    this.#classes(data);
    this.#draw();
    this.#figures(data);
    this.#workers(data.workers);
    const errors = Object.entries(data.requests.by_error);
    this.#find(".errors").hidden = !errors.length;
    this.#find(".errors ul").replaceChildren(...errors.map(([kind, n]) => make("li", `${count(n)} × ${kind}`)));
  }

  #status({ validity, verdict }) {
    const line = this.#find(".validity");
    const words = { valid: "Valid", "not valid": "Not valid", "valid so far": "Valid so far" };
    // A status is read out when its text changes, so it is only set when it does.
    if (line.textContent !== words[validity.word]) line.textContent = words[validity.word];
    this.#find(".status").dataset.word = validity.word;
    const reasons = this.#find(".reasons");
    if ([...reasons.children].map((item) => item.textContent).join("\n") !== validity.reasons.join("\n")) {
      reasons.replaceChildren(...validity.reasons.map((reason) => make("li", reason)));
    }
    const shown = this.#find(".verdict");
    shown.hidden = !verdict;
    if (verdict) {
      shown.dataset.word = verdict.word;
      const refused = verdict.word === "not comparable";
      shown.replaceChildren(make("strong", refused ? "Against the baseline: " : `Against the baseline: ${verdict.word}. `), verdict.sentence);
    }
  }

  #tiles({ figures, rates, requests, goodput }) {
    const tiles = [];
    const add = (name, value, beside = "") => {
      const tile = make("div");
      tile.append(make("dt", name), make("dd", value), make("dd", beside, "beside"));
      tiles.push(tile);
    };
    for (const [metric, title] of [["ttft", "TTFT"], ["itl", "ITL"]]) {
      const row = figures.find((one) => one.class === "" && one.metric === metric);
      // The farthest quantile that rests on enough.
      const level = LEVELS.findLast((name) => row && row[name].value !== null);
      const { value = null, baseline = null } = level ? row[level] : {};
      const beside = baseline === null ? "" : `baseline ${ms(baseline)} ms, ${change(value, baseline)}`;
      add(level ? `${title} ${level}` : title, value === null ? "too few" : `${ms(value)} ms`, beside);
    }
    const base = rates.baseline_output_tokens_per_s;
    add("Output", `${figure(rates.output_tokens_per_s)} tok/s`, base === null ? `${figure(rates.requests_per_s)} requests/s` : `baseline ${figure(base)} tok/s`);
    add("Goodput", goodput.slo ? percent(goodput.share) : "–", goodput.slo ? `met ${goodput.slo.replaceAll(",", ", ")}` : "no SLO was given");
    add("Answered", count(requests.ok), `${count(requests.failed)} failed, ${count(requests.cancelled)} cancelled`);
    add("In flight", count(requests.in_flight), "");
    this.#find(".tiles").replaceChildren(...tiles);
  }

  #classes({ classes, class: shown }) {
    const select = this.#find("select");
    const wanted = ["", ...classes];
    if ([...select.options].map((option) => option.value).join("\n") !== wanted.join("\n")) {
      select.replaceChildren(...wanted.map((name) => Object.assign(make("option", name || "all classes"), { value: name })));
    }
    this.#class = shown;
    if (select.value !== shown) select.value = shown;
  }

  #draw() {
    const data = this.#data;
    if (!data?.run) return;
    for (const [metric, name] of [["ttft", "TTFT"], ["itl", "ITL"]]) {
      const row = data.figures.find((one) => one.class === data.class && one.metric === metric);
      const baseline = Object.fromEntries(LEVELS.map((level) => [level, row?.[level].baseline ?? null]));
      overTime(this.#find(`svg.${metric}.time`), name, data.over_time[metric], baseline);
      const shape = data.distribution[metric];
      distribution(this.#find(`svg.${metric}.shape`), name, shape.bins, shape.baseline);
    }
    this.#find(".of-base").hidden = !data.baseline;
    if (data.baseline) this.#find(".of-base b").textContent = `baseline ${data.baseline.label}`;
  }

  #figures({ figures }) {
    const body = this.#find(".figures tbody");
    const rows = figures.map((row, i) => {
      const line = make("tr");
      const first = i === 0 || figures[i - 1].class !== row.class;
      if (first) line.className = "first";
      line.append(Object.assign(make("th", row.class || "all", first ? "" : "again"), { scope: "row" }));
      line.append(make("td", row.title), make("td", count(row.count), "n"));
      for (const level of LEVELS) {
        const { value, baseline } = row[level];
        const cell = make("td", value === null ? "too few" : ms(value), value === null ? "n muted" : "n");
        if (baseline !== null) cell.append(make("small", `${ms(baseline)}${value === null ? "" : ` ${change(value, baseline)}`}`));
        line.append(cell);
      }
      return line;
    });
    body.replaceChildren(...rows);
  }

  #workers(workers) {
    const rows = workers.map((worker) => {
      const line = make("tr");
      line.append(Object.assign(make("th", worker.name), { scope: "row" }), make("td", worker.host), make("td", worker.clock));
      line.append(make("td", count(worker.in_flight), "n"), make("td", percent(worker.cpu, 0), "n"));
      line.append(make("td", worker.loop_lag_p99_s === null ? "–" : `${ms(worker.loop_lag_p99_s)} ms`, "n"));
      line.append(make("td", count(worker.ring_drops), "n"), make("td", worker.lost ?? "reports", worker.lost ? "bad" : ""));
      return line;
    });
    this.#find(".workers tbody").replaceChildren(...rows);
  }

  /** Locust keeps its theme to itself: what the page's background is tells it. */
  #theme() {
    const parts = getComputedStyle(document.body).backgroundColor.match(/[\d.]+/g)?.map(Number) ?? [255, 255, 255];
    const dark = parts[3] !== 0 && 0.299 * parts[0] + 0.587 * parts[1] + 0.114 * parts[2] < 128;
    this.dataset.theme = dark ? "dark" : "light";
  }

  recolour() {
    if (this.shadowRoot) this.#theme();
  }
}

customElements.define("tailgate-tail-latency", TailLatency);

/** In Locust's own page: the element stands under the tabs while ours is the chosen one. */
function follow(root) {
  const element = document.createElement("tailgate-tail-latency");
  element.setAttribute("role", "tabpanel");
  element.setAttribute("aria-label", TAB_TITLE);
  const place = () => {
    const tab = root.querySelector('[role="tab"][aria-selected="true"]');
    const home = root.querySelector("main");
    if (home && tab?.textContent === TAB_TITLE) {
      if (home.lastElementChild !== element) home.append(element);
      element.recolour();
    } else {
      element.remove();
    }
  };
  new MutationObserver(place).observe(root, { subtree: true, childList: true, attributes: true, attributeFilter: ["aria-selected"] });
  // Locust's switch of colours changes rules of style, no attribute.
  root.addEventListener("click", () => setTimeout(() => element.recolour(), 50));
  place();
}

const locust = document.getElementById("root");
if (locust) follow(locust);
