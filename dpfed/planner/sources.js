// Sources of the planner's answers: the page's server, or a grid of answers in the page.
class Served {
  async answer(options, turn) { return this.ask("answer", options, turn); }
  async curve(options, turn) { return this.ask("curve", options, turn); }
  async map(over, options, turn) { return this.ask(over, options, turn); }
  // Requests without a turn number are answered at once by a quick account.
  async ask(kind, options, turn) {
    const body = JSON.stringify({ kind, options, turn: turn ?? 0, quick: turn === undefined });
    try {
      const headers = { "Content-Type": "application/json" };
      const response = await fetch("ask", { method: "POST", headers, body, cache: "no-store" });
      if (!response.headers.get("Content-Type").startsWith("application/json")) return { error: await response.text() };
      return await response.json();
    } catch {
      return { error: "The planner has ended. Start dpfed plan again; the address keeps this plan.", ended: true };
    }
  }
}
// Between grid points it shows the next point with less noise and more rounds, an upper bound.
class Gridded {
  constructor(grid) { this.grid = grid; }
  table(options) {
    const own = this.grid.tables.filter((one) => one.sampling === (options.sampling ?? "poisson"));
    return own.find((one) => one.sampling === "all" || !options.cohort || String(one.cohort) === options.cohort);
  }
  async answer(options) {
    const table = this.table(options), target = Number(options.epsilon);
    if (!table) return { error: "This page has no answers for that. Choose a cohort and who takes part." };
    const silent = table.noise[0] === null; // Bernoulli samples
    let column = silent ? 0 : lastIndex(table.noise, (z) => z <= Number(options.noise_multiplier));
    let row = table.rounds.findIndex((count) => count >= Number(options.rounds));
    const wanted = ["epsilon", "noise_multiplier", "rounds"].find((name) => !options[name] && !(silent && name === "noise_multiplier"));
    if (wanted === "noise_multiplier" && row >= 0) column = table.noise.findIndex((_, c) => this.epsilon(table, c, row) <= target);
    if (wanted === "rounds" && column >= 0) row = lastIndex(table.rounds, (_, r) => this.epsilon(table, column, r) <= target);
    if (!(column >= 0 && row >= 0)) return { error: this.beyond(table, wanted) };
    const z = table.noise[column], count = table.rounds[row], shown = table.cells[row][column];
    const exact = [silent ? z : options.noise_multiplier ?? z, options.rounds ?? count].every((one, k) => Number(one) === Number([z, count][k]));
    const text = (words) => words.replaceAll("{rounds}", count).replaceAll("{noise}", z);
    return {
      solved: wanted, quick: false, account: table.account, epsilon: Number(shown), noise_multiplier: z, rounds: count,
      shown: { epsilon: shown, noise_multiplier: table.noise_shown[column], rounds: count.toLocaleString("en"), delta: this.grid.delta },
      words: table.words, adjacency: table.adjacency, sensitivity: table.sensitivity, population: table.population, each_round: table.each_round,
      notes: [...(exact ? [] : [`for ${silent ? "" : `noise multiplier ${table.noise_shown[column]} and `}${count.toLocaleString("en")} rounds, the nearest grid point of this page with at least this epsilon`]), ...table.notes],
      command: text(table.command), python: text(table.python), others: this.others(table, options), column, row, table,
    };
  }
  epsilon(table, column, row) { return Number(table.cells[row][column]); }
  others(table, options) {
    const rest = this.grid.tables.filter((one) => one.sampling !== table.sampling && (one.cohort === table.cohort || one.sampling === "all"));
    return rest.map((one) => ({ sampling: one.sampling, adjacency: one.adjacency, options: { ...options, sampling: one.sampling } }));
  }
  beyond(table, wanted) {
    const count = table.rounds.map((one) => one.toLocaleString("en"));
    if (wanted !== "epsilon") return "No grid point of this page reaches the target. dpfed plan answers for all numbers.";
    return `This page has ${table.noise[0] === null ? "" : `noise multipliers from ${table.noise_shown[0]} and `}rounds up to ${count.at(-1)}. dpfed plan answers for all numbers.`;
  }
  async curve(options) {
    const found = await this.answer(options);
    if (found.error) return { points: [] };
    const points = found.table.rounds.map((count, r) => {
      const shown = found.table.cells[r][found.column];
      return [count, Number(shown), `${count.toLocaleString("en")} rounds: epsilon ${shown}`];
    });
    const last = 1.7 * found.rounds;
    return { points: points.filter((p) => p[0] <= last && Number.isFinite(p[1])), account: found.account, here: found.rounds };
  }
  async map(over, options) {
    const found = await this.answer(options);
    if (found.error) return { cells: [] };
    const { table } = found, [c, columns] = around(found.column, table.noise, 9), [r, rows] = around(found.row, table.rounds, 8);
    const cells = rows.flatMap((row) => columns.map((column) => {
      const shown = table.cells[row][column], value = Number(shown);
      return [Number.isFinite(value) ? value : null, table.brief[row][column], `epsilon ${shown}`];
    }));
    return {
      over: "noise-multiplier", across: columns.map((one) => table.noise_shown[one]), up: rows.map((one) => table.rounds[one].toLocaleString("en")),
      values: [columns.map((one) => String(table.noise[one])), rows.map((one) => String(table.rounds[one]))],
      cells, here: [c, r], account: found.account,
    };
  }
}
function lastIndex(values, fits) {
  for (let k = values.length - 1; k >= 0; k -= 1) if (fits(values[k], k)) return k;
  return -1;
}
// At most the given number of positions, including this one: [its index, the positions].
function around(place, values, most) {
  const first = Math.max(0, Math.min(place - Math.floor(most / 2), values.length - most));
  const places = values.map((_, k) => k).slice(first, first + most);
  return [place - first, places];
}
