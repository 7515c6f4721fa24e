// Checks pages in a real browser: valid HTML, accessibility (axe-core), no errors, nothing loaded, no overflow.
//
//   mkdir check && cd check && npm install html-validate axe-core puppeteer-core vnu-jar
//   node ../scripts/check_report.mjs REPORT.html ... [--shots FOLDER]
//
// Packages are taken from node_modules of the current directory. vnu-jar (the validator of the W3C) is used when it and
// java are there. CHROMIUM names the browser (default /usr/bin/chromium). Exit code 1 if anything was found.
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const here = createRequire(resolve("package.json"));
const { HtmlValidate } = here("html-validate");
const puppeteer = here("puppeteer-core");
const axe = readFileSync(here.resolve("axe-core/axe.min.js"), "utf8");
const found = [];

const given = process.argv.slice(2);
const at = given.indexOf("--shots");
const shots = at < 0 ? null : given.splice(at, 2)[1];
if (shots) mkdirSync(shots, { recursive: true });
if (!given.length) throw new Error("name at least one HTML file");

// Styles stand in the drawings (matplotlib) and rules of taste do not matter here; everything of the standard does.
const rules = new HtmlValidate({ extends: ["html-validate:standard", "html-validate:a11y"], rules: { "no-inline-style": "off" } });

async function validate(file) {
  const report = await rules.validateFile(file);
  for (const { messages } of report.results)
    for (const m of messages) found.push(`${file}:${m.line}: html-validate ${m.ruleId}: ${m.message}`);
  let jar;
  try { jar = here("vnu-jar"); } catch { return "html-validate"; }
  if (spawnSync("java", ["-version"]).error) return "html-validate";
  const run = spawnSync("java", ["-jar", jar, "--exit-zero-always", "--format", "json", file], { encoding: "utf8" });
  for (const m of JSON.parse(run.stderr).messages)
    if (m.type === "error") found.push(`${file}:${m.lastLine}: vnu: ${m.message}`);
  return "html-validate and vnu";
}

async function browse(browser, file, width, scheme) {
  const page = await browser.newPage();
  const where = `${file} at ${width} px, ${scheme}`;
  page.on("pageerror", wrong => found.push(`${where}: ${wrong.message}`));
  page.on("console", said => said.type() === "error" && found.push(`${where}: console: ${said.text()}`));
  page.on("request", wanted => {
    if (!wanted.url().startsWith("data:") && !wanted.isNavigationRequest()) found.push(`${where}: loads ${wanted.url()}`);
  });
  await page.setViewport({ width, height: 900 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.goto(pathToFileURL(resolve(file)).href);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  if (wide > 0) found.push(`${where}: the page is ${wide} px too wide`);
  if (shots) {
    const name = join(shots, `${basename(dirname(resolve(file)))}-${width}-${scheme}`);
    await page.screenshot({ path: `${name}-first.png` });
    await page.screenshot({ path: `${name}.png`, fullPage: true });
  }
  await page.evaluate(axe);
  const { violations, passes } = await page.evaluate(() => window.axe.run());
  for (const v of violations)
    found.push(`${where}: axe ${v.id} (${v.impact}): ${v.help}; ${v.nodes.length} times, first ${v.nodes[0].html.slice(0, 150)}`);
  const sorted = await page.evaluate(() => {
    const button = document.querySelector("table.sortable th.num button");
    if (!button) return true;
    button.click();
    const column = button.closest("th").cellIndex;
    const values = [...button.closest("table").tBodies[0].rows].map(row => row.cells[column].dataset.value)
      .filter(value => value !== undefined).map(Number);
    return values.every((value, i) => i === 0 || values[i - 1] >= value);
  });
  if (!sorted) found.push(`${where}: a click on a heading does not sort`);
  await page.close();
  return passes.length;
}

const folder = mkdtempSync(join(tmpdir(), "check-report-"));
const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  userDataDir: folder,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync"],
});
try {
  for (const file of given) {
    const size = statSync(file).size;
    if (size > 5e6) found.push(`${file}: ${size} bytes, more than 5 MB`);
    const validators = await validate(file);
    let passed = 0;
    for (const width of [400, 1400])
      for (const scheme of ["light", "dark"]) passed = await browse(browser, file, width, scheme);
    console.log(`${file}: ${(size / 1e6).toFixed(2)} MB; ${validators}; axe passed ${passed} rules; 400 and 1400 px, light and dark`);
  }
} finally {
  await browser.close();
  rmSync(folder, { recursive: true, force: true });
}
for (const line of found) console.error(line);
process.exitCode = found.length ? 1 : 0;
